package pinpoint

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// inquiry is what a client wants to know of each server. to_regprocedure raises an error if the role may not use the
// schema. With pinpoint.sql there are no heartbeats, even if the server has the library for another database. $1 is the
// process ID that the connection was given: behind a pooler, settings are not for this client.
const inquiry = `
	SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(), installed AND NOT usable,
	       CASE WHEN usable THEN to_regprocedure('pinpoint.changed_since(text,text[])') IS NOT NULL ELSE false END,
	       CASE WHEN usable THEN to_regprocedure('pinpoint.channels_of(text)') IS NOT NULL ELSE false END,
	       coalesce((SELECT setting::int FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'
	                 AND EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_pinpoint')), 0),
	       (SELECT coalesce(min(setting::int), 0) FROM pg_settings
	         WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0'),
	       (SELECT string_agg(set_config(name, CASE setting WHEN '0' THEN '1s' ELSE '0' END, false), '') FROM pg_settings
	         WHERE pg_backend_pid() = $1::text::bigint AND (name = 'idle_session_timeout' AND setting <> '0'
	               OR name = 'client_connection_check_interval' AND setting = '0' AND version() ~ 'linux'))
	  FROM (SELECT count(*) > 0 AS installed, coalesce(bool_or(has_schema_privilege(oid, 'USAGE')), false) AS usable
	          FROM pg_namespace WHERE nspname = 'pinpoint') AS schema`

const getPosition = `SELECT pinpoint.position()`

// server is what a client knows of the server of a connection.
type server struct {
	version   int
	standby   bool
	pooled    bool
	denied    bool          // there is a schema pinpoint that the role may not use
	pinpoint  bool          // 1.0 or later
	current   bool          // 1.1 or later
	interval  time.Duration // of heartbeats
	timeLimit time.Duration // of a statement or a transaction; 0 if there is none
}

func (s server) heartbeats() bool { return s.pinpoint && s.interval > 0 }

// noLive returns why there are no live queries, or nil.
func (s server) noLive() error {
	switch {
	case s.denied:
		return ErrNoUsage
	case !s.current:
		return ErrNoLive
	}
	return nil
}

// over is a context that has ended.
var over, _ = context.WithTimeout(context.Background(), 0)

// closeNow closes a connection without waiting for the server.
func closeNow(conn *pgx.Conn) { _ = conn.Close(over) }

func (c *Client) inquire(ctx context.Context, conn *pgx.Conn) (s server, err error) {
	var pid uint32
	var set *string
	err = c.fetch(ctx, conn, inquiry, []any{fmt.Sprint(conn.PgConn().PID())}, &s.version, &s.standby, &pid, &s.denied,
		&s.pinpoint, &s.current, &s.interval, &s.timeLimit, &set)
	s.pooled = pid != conn.PgConn().PID()
	s.interval *= time.Millisecond
	s.timeLimit *= time.Millisecond
	return s, err
}

// fetch executes a query at READ COMMITTED, which the functions need, and scans its row.
func (c *Client) fetch(ctx context.Context, conn *pgx.Conn, query string, arguments []any, targets ...any) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.timeout)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, query, arguments...).Scan(targets...)
	})
	if err == nil {
		c.counters.heard()
	}
	return err
}

func (c *Client) exec(ctx context.Context, conn *pgx.Conn, statement string, arguments ...any) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.timeout)
	defer cancel()
	_, err := conn.Exec(ctx, statement, arguments...)
	return err
}

// forgetNotifications forgets those that other clients of a pooler listen for, which pgx collects.
func forgetNotifications(conn *pgx.Conn) {
	for err := error(nil); err == nil; {
		_, err = conn.WaitForNotification(over) // only what is there
	}
}

// ---- Connections of live queries ------------------------------------------------

// session is the time in which the client is connected. The connections of live queries end with it, as the next one may be
// to another server.
type session struct {
	Connected
	since   time.Time
	context context.Context
	cancel  context.CancelFunc
	slots   chan struct{} // connections for live queries that are in use
	idle    []*pgx.Conn   // others; the mutex of the client protects them
}

func newSession(c *Client, connected Connected) *session {
	ctx, cancel := context.WithCancel(c.context)
	return &session{Connected: connected, since: time.Now(), context: ctx, cancel: cancel,
		slots: make(chan struct{}, c.options.queryConnections)}
}

// close is called with the mutex held. What is executing may never end without it.
func (s *session) close() {
	s.cancel()
	for _, conn := range s.idle {
		closeNow(conn)
	}
	s.idle = nil
}

// acquire returns a connection to the server on which the client listens, and whether it was used before. It waits for one
// of query_connections. This is not a pgxpool.Pool, which sends a ping on each connection that was idle for a second.
func (c *Client) acquire(ctx context.Context, s *session) (conn *pgx.Conn, used bool, err error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	c.locked(func() {
		if n := len(s.idle); n > 0 {
			conn, s.idle = s.idle[n-1], s.idle[:n-1]
		}
	})
	if conn != nil {
		return conn, true, nil
	}
	if conn, err = c.connectToHeard(ctx); err != nil {
		<-s.slots
	}
	return conn, false, err
}

func (c *Client) release(conn *pgx.Conn, s *session) {
	defer func() { <-s.slots }()
	c.locked(func() {
		if !conn.IsClosed() && s.context.Err() == nil {
			s.idle = append(s.idle, conn)
		} else {
			closeNow(conn)
		}
	})
}

// connectToHeard connects to the server on which the client listens.
func (c *Client) connectToHeard(ctx context.Context) (conn *pgx.Conn, err error) {
	var heard string
	c.locked(func() {
		if heard = c.listener.position; heard == "" {
			err = c.listener.server.noLive()
		}
	})
	if err != nil {
		return nil, err
	}
	if conn, err = pgx.ConnectConfig(ctx, c.config); err != nil {
		return nil, err
	}
	if err = c.checkServer(ctx, conn, heard); err != nil {
		closeNow(conn)
		return nil, err
	}
	return conn, nil
}

func (c *Client) checkServer(ctx context.Context, conn *pgx.Conn, heard string) error {
	s, err := c.inquire(ctx, conn)
	if err == nil {
		err = s.noLive()
	}
	var position string
	if err == nil {
		err = c.fetch(ctx, conn, getPosition, nil, &position)
	}
	if err == nil && serverOf(position) != serverOf(heard) {
		err = errOtherServer
	}
	return err
}

// serverOf returns the part of a position that tells the server.
func serverOf(position string) string {
	parts := strings.Split(position, "-") // those of a false heartbeat may be fewer
	return strings.Join(parts[:min(2, len(parts))], "-")
}
