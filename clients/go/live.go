package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const channelsOf = `SELECT relation::text, channel::text FROM pinpoint.channels_of($1)`

// NotWatchedError is the error of a live query that reads a table which is not watched.
type NotWatchedError struct{ Table string }

func (e *NotWatchedError) Error() string {
	literal := "'" + strings.ReplaceAll(e.Table, "'", "''") + "'"
	return fmt.Sprintf("the table %q is not watched: execute SELECT pinpoint.watch(%s)", e.Table, literal)
}

// Unwrap gives the SQLSTATE.
func (e *NotWatchedError) Unwrap() error {
	return &pgconn.PgError{Severity: "ERROR", Code: "55000", Message: e.Error()}
}

// ErrNoLive is the error of a live query on a server without pg_pinpoint 1.1.
var ErrNoLive error = noLive{}

type noLive struct{}

func (noLive) Error() string {
	return "live queries need the extension pg_pinpoint 1.1 or later in this database"
}

// Unwrap gives the SQLSTATE.
func (e noLive) Unwrap() error {
	return &pgconn.PgError{Severity: "ERROR", Code: "0A000", Message: e.Error()}
}

// liveQuery is one query that is executed for all its consumers. For the listener, it is a
// subscriber. The mutex of the client protects consumers and interrupt.
type liveQuery struct {
	interest
	client     *Client
	key, query string
	arguments  []any
	consumers  map[*Live]bool
	dirty      chan struct{}
	told       chan struct{}
	ended      context.Context
	cancel     context.CancelFunc // of ended
	interrupt  context.CancelFunc // of what is executing
}

func newLiveQuery(client *Client, key, query string, arguments []any) *liveQuery {
	ctx, cancel := context.WithCancel(client.context)
	return &liveQuery{interest: newInterest(), client: client, key: key, query: query, arguments: arguments,
		consumers: map[*Live]bool{}, dirty: make(chan struct{}, 1), told: make(chan struct{}, 1),
		ended: ctx, cancel: cancel, interrupt: func() {}}
}

// put is called with the mutex held.
func (q *liveQuery) put(event Event) {
	if disconnected, ok := event.(Disconnected); ok {
		q.tell(Result{Err: disconnected})
	}
	wake(q.dirty)
}

func (q *liveQuery) putChanged([]string) {
	wake(q.told)
	wake(q.dirty)
}

// end is called with the mutex held.
func (q *liveQuery) end(err error) {
	for live := range q.consumers {
		live.end(err)
	}
	delete(q.client.live, q.key)
	delete(q.client.listener.subscribers, subscriber(q))
	wake(q.client.listener.changes)
	q.cancel()
}

func (q *liveQuery) run() {
	defer q.client.running.Done()
	options := q.client.options
	failures := 0
	for q.ended.Err() == nil {
		select {
		case <-q.dirty: // what changes from now on is in another execution
		case <-q.ended.Done():
			return
		}
		q.client.mu.Lock()
		connected, generation := q.client.listener.connected != nil, q.client.generation
		ctx, cancel := context.WithCancel(q.ended)
		q.interrupt = cancel
		q.client.mu.Unlock()
		if !connected {
			cancel()
			continue // the next connection sets dirty
		}
		pause := time.Now().Add(options.MinInterval)
		result, err := q.execute(ctx, generation)
		cancel()
		if err == nil {
			failures = 0
		} else {
			wake(q.dirty)
			failures++
			result = Result{Err: err}
			backoff := math.Min(options.MaxBackoff.Seconds(), options.MinBackoff.Seconds()*math.Pow(2, float64(min(failures, 30))))
			pause = time.Now().Add(time.Duration(backoff * float64(time.Second)))
		}
		q.client.mu.Lock()
		// If the connection was lost meanwhile, the rows may be from another server.
		if generation == q.client.generation && q.ended.Err() == nil {
			q.tell(result)
		}
		q.client.mu.Unlock()
		sleep(q.ended, time.Until(pause))
	}
}

// tell is called with the mutex held.
func (q *liveQuery) tell(result Result) {
	for live := range q.consumers {
		live.put(result)
	}
}

// execute executes the query. generation is that of the connections to use.
func (q *liveQuery) execute(ctx context.Context, generation int) (result Result, err error) {
	client := q.client
	select {
	case client.slots <- struct{}{}:
		defer func() { <-client.slots }()
	case <-ctx.Done():
		return result, ctx.Err()
	}
	client.mu.Lock()
	var conn *pgx.Conn
	if n := len(client.idle); n > 0 {
		conn, client.idle = client.idle[n-1], client.idle[:n-1]
	}
	client.mu.Unlock()
	if conn == nil {
		if conn, err = q.connect(ctx); err != nil {
			return result, err
		}
	}
	defer func() {
		client.mu.Lock()
		defer client.mu.Unlock()
		if !conn.IsClosed() && generation == client.generation {
			client.idle = append(client.idle, conn)
		} else {
			closeNow(conn)
		}
	}()

	ctx, cancel := context.WithTimeout(ctx, client.options.QueryTimeout)
	defer cancel()
	forgetNotifications(conn)
	if err := q.listenToTables(ctx, conn); err != nil {
		return result, err
	}
	rows, err := conn.Query(ctx, q.query, q.arguments...)
	if err != nil {
		return result, err
	}
	for _, field := range rows.FieldDescriptions() {
		result.Columns = append(result.Columns, field.Name)
	}
	result.Rows, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	return result, err
}

// connect connects to the server on which the client listens.
func (q *liveQuery) connect(ctx context.Context) (*pgx.Conn, error) {
	q.client.mu.Lock()
	heard := q.client.listener.position
	q.client.mu.Unlock()
	if heard == "" {
		return nil, ErrNoLive
	}
	conn, err := q.client.connect(ctx)
	if err != nil {
		return nil, err
	}
	var position string
	err = q.client.listener.fetch(ctx, conn, getPosition, nil, &position)
	if err == nil && serverOf(position) != serverOf(heard) {
		err = errors.New("the connection leads to another server than the one on which the client listens")
	}
	if err != nil {
		closeNow(conn)
		return nil, err
	}
	return conn, nil
}

// serverOf returns the part of a position that tells the server.
func serverOf(position string) string {
	parts := strings.SplitN(position, "-", 3) // those of a false heartbeat may be fewer
	return strings.Join(parts[:min(2, len(parts))], "-")
}

// listenToTables listens on the channels of the tables that the query reads, before it is executed.
func (q *liveQuery) listenToTables(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, channelsOf, q.query)
	if err != nil {
		return err
	}
	channels := map[string]bool{}
	var table string
	var channel *string
	_, err = pgx.ForEachRow(rows, []any{&table, &channel}, func() error {
		if channel == nil {
			return &NotWatchedError{table}
		}
		channels[*channel] = true
		return nil
	})
	if err != nil {
		return err
	}
	q.client.mu.Lock()
	if !maps.Equal(channels, q.channels) {
		q.channels = channels
		maps.DeleteFunc(q.heard, func(channel string, _ bool) bool { return !channels[channel] })
		wake(q.client.listener.changes)
	}
	q.client.mu.Unlock()
	for !q.hears(channels) {
		select {
		case <-q.told:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (q *liveQuery) hears(channels map[string]bool) bool {
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for channel := range channels {
		if !q.heard[channel] {
			return false
		}
	}
	return true
}

// localPort is the part of an error of the connection that is another one at each attempt.
var localPort = regexp.MustCompile(`:[0-9]+->`)

// Live gives the results of a live query. A slow consumer gets the newest one.
type Live struct {
	consumer[Result]
	shared *liveQuery
	latest *Result
	told   string // the error of the query, if that was the last result
}

func (l *Live) put(result Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := ""
	if _, disconnected := result.Err.(Disconnected); result.Err != nil && !disconnected {
		told = localPort.ReplaceAllString(result.Err.Error(), "->")
		if told == l.told {
			return
		}
	}
	l.told, l.latest = told, &result
	wake(l.ready)
}

func (l *Live) takeLatest() (result Result, ok bool) {
	if l.latest != nil {
		result, ok = *l.latest, true
		l.latest = nil
	}
	return result, ok
}

// Close ends the live query for this consumer: Next returns ErrClosed. The last one also ends its execution.
func (l *Live) Close() {
	l.end(ErrClosed)
	mu := &l.shared.client.mu
	mu.Lock()
	defer mu.Unlock()
	known := l.shared.consumers[l]
	delete(l.shared.consumers, l)
	if known && len(l.shared.consumers) == 0 {
		l.shared.end(ErrClosed)
	}
}
