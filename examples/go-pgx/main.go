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
	"github.com/jackc/pgx/v5/pgconn"
)

// A worker looks again after this time, whatever it was told: a job may have been
// given up by another worker.
const lookAgain = time.Minute

// When an attempt to connect or a query is given up, and the time before the next
// attempt to connect.
const (
	timeout        = 10 * time.Second
	reconnectAfter = 200 * time.Millisecond
)

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

func listen(ctx context.Context, channels ...string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if _, err = conn.Exec(ctx, "LISTEN "+channel); err != nil {
			conn.Close(ctx)
			return nil, err
		}
	}
	return conn, nil
}

// cache is a copy of the settings, and the position up to which it is right.
type cache struct {
	rows     map[string]string
	position *string
}

func (c *cache) stopped() bool {
	_, stop := c.rows["stop"]
	return stop
}

// keepCache keeps a copy of the settings until there is one with the name "stop".
func keepCache(ctx context.Context) error {
	c := &cache{}
	for !c.stopped() {
		// First LISTEN, then look: what changes in between is told.
		conn, err := listen(ctx, "setting_changed", "pinpoint_heartbeat")
		if err != nil {
			time.Sleep(reconnectAfter)
			continue
		}
		err = c.follow(ctx, conn)
		if err != nil && !conn.IsClosed() {
			return err
		}
		conn.Close(ctx)
	}
	return nil
}

// follow keeps the cache right until there is a "stop", or no heartbeat any more.
func (c *cache) follow(ctx context.Context, conn *pgx.Conn) error {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var interval int // in milliseconds; 0 is never
	changed, position := []string{"setting_changed"}, (*string)(nil)
	err := conn.QueryRow(asking,
		`SELECT setting::int FROM pg_settings
		  WHERE name = 'pinpoint.heartbeat_interval'
		    AND to_regproc('pinpoint.changed_since') IS NOT NULL`).Scan(&interval)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // stock PostgreSQL does not know what has changed
	case err != nil:
		return err
	default:
		err := conn.QueryRow(asking,
			"SELECT changed, position FROM pinpoint.changed_since($1, 'setting_changed')",
			c.position).Scan(&changed, &position)
		if err != nil {
			return err
		}
	}
	if len(changed) == 0 {
		fmt.Println("nothing missed")
	} else if err := c.load(asking, conn); err != nil {
		return err
	}
	c.position = position

	for !c.stopped() {
		notification, err := wait(ctx, conn, 3*time.Duration(interval)*time.Millisecond)
		if err != nil || notification == nil {
			return err
		}
		if notification.Channel == "pinpoint_heartbeat" {
			position, _, _ := strings.Cut(notification.Payload, " ")
			c.position = &position
		} else if err := c.refresh(ctx, conn, notification.Payload); err != nil {
			return err
		}
	}
	return nil
}

func (c *cache) load(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "SELECT key, value FROM settings ORDER BY key")
	if err != nil {
		return err
	}
	copied := map[string]string{}
	lines := []string{}
	var key, value string
	_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error {
		copied[key] = value
		lines = append(lines, key+" = "+value)
		return nil
	})
	if err != nil {
		return err
	}
	c.rows = copied
	fmt.Println("loaded", len(copied))
	for _, line := range lines {
		fmt.Println(line)
	}
	return nil
}

func (c *cache) refresh(ctx context.Context, conn *pgx.Conn, key string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var value string
	err := conn.QueryRow(ctx, "SELECT value FROM settings WHERE key = $1", key).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		delete(c.rows, key)
		fmt.Println(key, "gone")
		return nil
	}
	if err != nil {
		return err
	}
	c.rows[key] = value
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
			if _, err := wait(ctx, conn, lookAgain); err != nil {
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

// wait waits for a notification, for a limited time unless that is 0. There is none: nil.
func wait(ctx context.Context, conn *pgx.Conn, limit time.Duration) (*pgconn.Notification, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	notification, err := conn.WaitForNotification(ctx)
	if ctx.Err() != nil {
		return nil, nil
	}
	return notification, err
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
