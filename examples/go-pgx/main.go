// A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//
//	example cache | worker
//
// DATABASE_URL names the database, which has ../schema.sql.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A worker looks again after this time, whatever it was told: a job may have been
// given up by another worker.
const lookAgain = time.Minute

func main() {
	ctx := context.Background()
	var err error
	switch os.Args[1] {
	case "cache":
		err = keepCache(ctx)
	case "worker":
		err = work(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func listen(ctx context.Context, channel string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	if _, err = conn.Exec(ctx, "LISTEN "+channel); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// keepCache keeps a copy of the settings until there is one with the name "stop".
func keepCache(ctx context.Context) error {
	for {
		conn, err := listen(ctx, "setting_changed")
		if err == nil {
			err = follow(ctx, conn)
			if err == nil || !conn.IsClosed() {
				return errors.Join(err, conn.Close(ctx))
			}
		}
		// What changed meanwhile nobody will tell: connect, and read all.
	}
}

// follow begins after LISTEN, so that what changes while it reads is told.
func follow(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "SELECT key, value FROM settings")
	if err != nil {
		return err
	}
	cache := map[string]string{}
	var key, value string
	_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error {
		cache[key] = value
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println("loaded", len(cache))
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if err := refresh(ctx, conn, cache, notification.Payload); err != nil {
			return err
		}
		if _, stop := cache["stop"]; stop {
			return nil
		}
	}
}

func refresh(ctx context.Context, conn *pgx.Conn, cache map[string]string, key string) error {
	var value string
	err := conn.QueryRow(ctx, "SELECT value FROM settings WHERE key = $1", key).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		delete(cache, key)
		fmt.Println(key, "gone")
		return nil
	}
	if err != nil {
		return err
	}
	cache[key] = value
	fmt.Println(key, "=", value)
	return nil
}

// work does jobs until one says "stop".
func work(ctx context.Context) error {
	conn, err := listen(ctx, "job_added")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	fmt.Println("ready")
	for done := 0; ; {
		payload, err := takeJob(ctx, conn)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			if err := wait(ctx, conn); err != nil {
				return err
			}
		case err != nil:
			return err
		case payload == "stop":
			fmt.Println("done", done)
			return nil
		default:
			done++
		}
	}
}

func wait(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	_, err := conn.WaitForNotification(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// takeJob does one job, which nobody else does meanwhile, and returns its payload.
// There is none: pgx.ErrNoRows.
func takeJob(ctx context.Context, conn *pgx.Conn) (payload string, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var id int64
		err := tx.QueryRow(ctx,
			`SELECT id, payload FROM jobs WHERE result IS NULL
			  ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1`).Scan(&id, &payload)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx,
			"UPDATE jobs SET result = $1, worker = pg_backend_pid() WHERE id = $2",
			strings.ToUpper(payload), id)
		return err
	})
	return payload, err
}
