package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// database makes an empty database with a version of the extension on the server of PINPOINT_DSN, on which the tests
// may create databases. It returns its configuration, and a connection to it.
func database(t *testing.T, version string) (*pgx.ConnConfig, *pgx.Conn) {
	t.Helper()
	dsn := os.Getenv("PINPOINT_DSN")
	if dsn == "" {
		t.Skip("PINPOINT_DSN is not set")
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("pinpoint_%s_%d", strings.ToLower(t.Name()), os.Getpid())
	server := connect(t, config)
	execute(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { execute(t, server, "DROP DATABASE "+name+" (FORCE)") })
	config.Database = name
	conn := connect(t, config)
	if version != "" {
		execute(t, conn, "CREATE EXTENSION pg_pinpoint VERSION '"+version+"'")
	}
	return config, conn
}

func connect(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNow(conn) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(context.Background(), statement); err != nil {
			t.Fatal(statement, err)
		}
	}
}

func clientOf(t *testing.T, config *pgx.ConnConfig, options ...Option) *Client {
	t.Helper()
	c, err := NewWithConfig(t.Context(), config, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// nextResult waits for the next result.
func nextResult(t *testing.T, live *Live) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	result, err := live.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func nextChanged(t *testing.T, s *Subscription, channel string) {
	t.Helper()
	for !slices.Contains(next[Changed](t, s).Channels, channel) {
	}
}

func TestSubscriptions(t *testing.T) {
	config, conn := database(t, "1.1")
	var log strings.Builder
	c := clientOf(t, config, WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithBackoff(time.Millisecond, time.Millisecond))
	s := subscribe(t, c, "a")
	if connected := next[Connected](t, s); connected.Mode != Push {
		t.Error(connected)
	}
	nextChanged(t, s, "a")
	other := subscribe(t, c, "a", "b")
	nextChanged(t, other, "b")
	if err := s.Add("c"); err != nil {
		t.Fatal(err)
	}
	nextChanged(t, s, "c")
	execute(t, conn, "NOTIFY b, 'x'", "NOTIFY c, 'y'")
	if n := next[Notification](t, s); n.Payload != "y" {
		t.Error(n)
	}
	if n := next[Notification](t, other); n.Payload != "x" {
		t.Error(n)
	}
	s.Remove("a", "c")
	execute(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	if lost := next[Disconnected](t, other); sqlState(lost) != "57P01" {
		t.Error(lost)
	}
	next[Connected](t, other)
	if stats := c.Stats(); stats.Events < 7 || stats.Reconnects != 1 || stats.Dropped != 0 || stats.Quiet > deadline {
		t.Errorf("%+v", stats)
	}
	other.Close()
	for event, err := range other.All(t.Context()) {
		if err != nil {
			t.Error(event, err)
		}
	}
	c.Close()
	if err := finalError(t, s); !errors.Is(err, ErrClientClosed) {
		t.Error(err)
	}
	for _, text := range []string{"pinpoint: connected", "mode=push", "pinpoint: not connected", "retry_in="} {
		if !strings.Contains(log.String(), text) {
			t.Error("not in the log:", text, log.String())
		}
	}
}

func TestLiveQueries(t *testing.T) {
	config, conn := database(t, "1.1")
	execute(t, conn, `CREATE TABLE "it's" (id int)`)
	c := clientOf(t, config, WithMinInterval(0), WithBackoff(time.Millisecond, 10*time.Millisecond))
	live, err := c.Live(`SELECT id FROM "it's" WHERE id > $1::int`, 0)
	if err != nil {
		t.Fatal(err)
	}
	result, watch := nextResult(t, live), `SELECT pinpoint.watch('"it''s"')`
	if sqlState(result.Err) != "55000" || !strings.Contains(result.Err.Error(), watch) {
		t.Fatal(result)
	}
	execute(t, conn, watch)
	for id := range 3 {
		execute(t, conn, fmt.Sprintf(`INSERT INTO "it's" VALUES (%d)`, id))
		for result = nextResult(t, live); result.Err != nil || len(result.Rows) != id; {
			result = nextResult(t, live)
		}
	}
	if !slices.Equal(result.Columns, []string{"id"}) || result.Rows[0][0] != int32(1) {
		t.Error(result)
	}
	live.Close()
	if _, err := live.Next(t.Context()); err != ErrClosed {
		t.Error(err)
	}
}

// That the client listens on the table, too, is no reason to execute a query again.
func TestFirstRowsNeedOneExecution(t *testing.T) {
	config, conn := database(t, "1.1")
	execute(t, conn, "CREATE TABLE orders AS SELECT 1 AS id", "SELECT pinpoint.watch('orders')", "CREATE SEQUENCE executions")
	live, err := clientOf(t, config, WithMinInterval(0)).Live("SELECT nextval('executions') FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	nextResult(t, live)
	time.Sleep(200 * time.Millisecond)
	var executions int
	if err := conn.QueryRow(t.Context(), "SELECT last_value FROM executions").Scan(&executions); err != nil || executions != 1 {
		t.Error(executions, err)
	}
}

// managed makes a database with managed/pinpoint.sql, which has positions but no heartbeats, and a watched table.
func managed(t *testing.T) (*pgx.ConnConfig, *pgx.Conn) {
	t.Helper()
	config, conn := database(t, "")
	file, err := os.ReadFile("../../managed/pinpoint.sql")
	if err != nil {
		t.Skip("managed/pinpoint.sql is only in the repository")
	}
	if _, err := conn.PgConn().Exec(t.Context(), string(file)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "CREATE TABLE orders (id int)", "SELECT pinpoint.watch('orders')", "INSERT INTO orders VALUES (1)")
	return config, conn
}

// Without heartbeats, a live query asks for changes that are not notified, also while its connection is busy.
func TestQuestions(t *testing.T) {
	config, conn := managed(t)
	c := clientOf(t, config, WithCheckInterval(50*time.Millisecond), WithMinInterval(0))
	other := subscribe(t, c, "other")
	nextChanged(t, other, "other")
	live, err := c.Live("SELECT * FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	wait := func(columns int) {
		t.Helper()
		for len(nextResult(t, live).Columns) != columns {
		}
	}
	wait(1)
	position := c.listener.position
	for columns := 2; columns < 7; columns++ { // more than the executions that the beginning causes
		execute(t, conn, fmt.Sprintf("ALTER TABLE orders ADD COLUMN c%d int", columns))
		wait(columns)
	}
	ended := make(chan struct{})
	notifier := connect(t, config)
	go func() {
		defer close(ended)
		for c.context.Err() == nil {
			if _, err := notifier.Exec(t.Context(), "NOTIFY other"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	execute(t, conn, "ALTER TABLE orders ADD COLUMN c7 int")
	wait(7)
	c.mu.Lock()
	if c.listener.position != position {
		t.Error("a reconnection would miss changes of subscriptions")
	}
	c.mu.Unlock()
	c.Close()
	<-ended
	for event, err := range other.All(t.Context()) {
		if _, ok := event.(Changed); ok {
			t.Error("the subscription was told")
		}
		if err != nil {
			break
		}
	}
}

func TestQuestionThatFails(t *testing.T) {
	config, conn := managed(t)
	c := clientOf(t, config, WithCheckInterval(50*time.Millisecond), WithBackoff(time.Millisecond, 10*time.Millisecond))
	live, err := c.Live("SELECT * FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	nextResult(t, live)
	execute(t, conn, `CREATE OR REPLACE FUNCTION pinpoint.changed_since("position" text, VARIADIC channels text[]) RETURNS pinpoint.changes
		LANGUAGE plpgsql AS 'BEGIN RAISE ''planted''; END'`)
	for lost := (Disconnected{}); !errors.As(nextResult(t, live).Err, &lost) || !strings.Contains(lost.Error(), "planted"); {
	}
}

func TestRoleWithoutUsage(t *testing.T) {
	config, conn := database(t, "1.1")
	role := config.Database + "_outsider"
	execute(t, conn, "CREATE ROLE "+role)
	t.Cleanup(func() { execute(t, conn, "DROP OWNED BY "+role, "DROP ROLE "+role) })
	execute(t, conn, "REVOKE USAGE ON SCHEMA pinpoint FROM PUBLIC")
	own := conn.Config().Copy()
	own.RuntimeParams["role"] = role
	c := clientOf(t, own, WithCheckInterval(10*time.Millisecond), WithBackoff(time.Millisecond, 10*time.Millisecond))
	s := subscribe(t, c, "a")
	nextChanged(t, s, "a")
	execute(t, conn, "NOTIFY a, 'x'")
	next[Notification](t, s)
	live, err := c.Live("SELECT 1 AS one")
	if err != nil {
		t.Fatal(err)
	}
	if result := nextResult(t, live); !errors.Is(result.Err, ErrNoUsage) {
		t.Error(result.Err)
	}
	execute(t, conn, "GRANT USAGE ON SCHEMA pinpoint TO "+role)
	for nextResult(t, live).Err != nil {
	}
}

// A consumer that comes while a live query fails need not wait for its next execution.
func TestConsumerOfFailingQuery(t *testing.T) {
	config, _ := database(t, "1.0")
	c := clientOf(t, config, WithBackoff(time.Hour, time.Hour))
	for range 2 {
		live, err := c.Live("SELECT 1")
		if err != nil {
			t.Fatal(err)
		}
		if result := nextResult(t, live); !errors.Is(result.Err, ErrNoLive) {
			t.Error(result.Err)
		}
	}
}

func TestOldExtension(t *testing.T) {
	config, conn := database(t, "1.0")
	c := clientOf(t, config, WithBackoff(time.Millisecond, 10*time.Millisecond))
	nextChanged(t, subscribe(t, c, "a"), "a")
	live, err := c.Live("SELECT 1 AS one")
	if err != nil {
		t.Fatal(err)
	}
	if result := nextResult(t, live); !errors.Is(result.Err, ErrNoLive) || sqlState(result.Err) != "0A000" {
		t.Error(result.Err)
	}
	execute(t, conn, "ALTER EXTENSION pg_pinpoint UPDATE TO '1.1'")
	for nextResult(t, live).Err != nil {
	}
	waiting := clientOf(t, config, WithMode(Wait))
	nextChanged(t, subscribe(t, waiting, "a"), "a")
}

func TestIdleSessionTimeout(t *testing.T) {
	config, _ := database(t, "")
	config.RuntimeParams["idle_session_timeout"] = "1h"
	c := clientOf(t, config)
	conn := connect(t, c.config)
	if _, err := c.inquire(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	var value string
	if err := conn.QueryRow(t.Context(), "SHOW idle_session_timeout").Scan(&value); err != nil || value != "0" {
		t.Error(value, err)
	}
}

// A pooler gives process IDs that no server has.
func TestLargeProcessID(t *testing.T) {
	_, conn := database(t, "")
	if _, err := conn.Exec(t.Context(), inquiry, "4294967295"); err != nil {
		t.Error(err)
	}
}

// A thousand live queries share two connections.
func TestManyLiveQueries(t *testing.T) {
	config, conn := database(t, "1.1")
	execute(t, conn, "CREATE TABLE orders (id int)", "SELECT pinpoint.watch('orders')")
	c := clientOf(t, config)
	began := time.Now()
	lives := []*Live{}
	for number := range 1000 {
		live, err := c.Live("SELECT count(*) + $1::int AS n FROM orders", number)
		if err != nil {
			t.Fatal(err)
		}
		lives = append(lives, live)
	}
	wait := func(rows int) {
		for number, live := range lives {
			for result := (Result{}); len(result.Rows) == 0 || result.Rows[0][0] != int64(number+rows); {
				if result = nextResult(t, live); result.Err != nil {
					t.Fatal(result.Err)
				}
			}
		}
	}
	wait(0)
	t.Log("first rows after", time.Since(began))
	began = time.Now()
	execute(t, conn, "INSERT INTO orders VALUES (1)")
	wait(1)
	t.Log("a change after", time.Since(began))
	var connections int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").Scan(&connections); err != nil || connections > 4 {
		t.Error(connections, err)
	}
}
