package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"sync"
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

// ErrNoLive is the error of a live query on a server without pg_pinpoint.
var ErrNoLive = errors.New("live queries need the extension pg_pinpoint 1.1 or later in this database")

// liveQuery is one query that is executed for all its consumers. The mutex of the client protects
// consumers and cancel.
type liveQuery struct {
	client       *Client
	key, query   string
	arguments    []any
	subscription *Subscription
	consumers    map[*Live]bool
	dirty        chan struct{}
	ended        context.Context
	end          context.CancelFunc
	cancel       context.CancelFunc // of what is executing
}

func newLiveQuery(client *Client, key, query string, arguments []any, subscription *Subscription) *liveQuery {
	ctx, end := context.WithCancel(client.context)
	return &liveQuery{client: client, key: key, query: query, arguments: arguments, subscription: subscription,
		consumers: map[*Live]bool{}, dirty: make(chan struct{}, 1), ended: ctx, end: end, cancel: func() {}}
}

// interrupt is called with the mutex held, when the listening connection is lost: what is
// executing may never end.
func (q *liveQuery) interrupt() {
	q.cancel()
}

func (q *liveQuery) run() {
	defer q.client.running.Done()
	go q.watch()
	options := q.client.options
	failures, told := 0, ""
	for q.ended.Err() == nil {
		select {
		case <-q.dirty: // what changes from now on is in another execution
		case <-q.ended.Done():
			return
		}
		q.client.mu.Lock()
		connected := q.client.listener.connected != nil
		ctx, cancel := context.WithTimeout(q.ended, options.QueryTimeout)
		q.cancel = cancel
		q.client.mu.Unlock()
		if !connected {
			cancel()
			continue // the next connection sets dirty
		}
		pause := time.Now().Add(options.MinInterval)
		result, err := q.execute(ctx)
		cancel()
		if err == nil {
			failures, told = 0, ""
			q.tell(result)
		} else {
			wake(q.dirty)
			failures++
			if isToBeTold(err) && err.Error() != told {
				told = err.Error()
				q.tell(Result{Err: err})
			}
			backoff := math.Min(options.MaxBackoff.Seconds(), options.MinBackoff.Seconds()*math.Pow(2, float64(min(failures, 30))))
			pause = time.Now().Add(time.Duration(backoff * float64(time.Second)))
		}
		select {
		case <-time.After(time.Until(pause)):
		case <-q.ended.Done():
		}
	}
}

// isToBeTold tells errors of the query from those of the connection.
func isToBeTold(err error) bool {
	var pgError *pgconn.PgError
	var notWatched *NotWatchedError
	return errors.As(err, &pgError) || errors.As(err, &notWatched) || errors.Is(err, ErrNoLive)
}

func (q *liveQuery) watch() {
	for _, err := range q.subscription.All(q.ended) {
		if err != nil {
			return
		}
		wake(q.dirty)
	}
}

func (q *liveQuery) tell(result Result) {
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for live := range q.consumers {
		live.put(result)
	}
}

func (q *liveQuery) execute(ctx context.Context) (result Result, err error) {
	client := q.client
	select {
	case client.slots <- struct{}{}:
		defer func() { <-client.slots }()
	case <-ctx.Done():
		return result, ctx.Err()
	}
	client.mu.Lock()
	generation := client.generation
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

// connect connects to the server whose changes are heard.
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
		err = errors.New("this is another server")
	}
	if err != nil {
		closeNow(conn)
		return nil, err
	}
	return conn, nil
}

// serverOf returns the part of a position that tells the server.
func serverOf(position string) string {
	return strings.Join(strings.SplitN(position, "-", 3)[:2], "-")
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
	s := q.subscription
	q.client.mu.Lock()
	for channel := range s.channels {
		if !channels[channel] {
			s.remove([]string{channel})
		}
	}
	var fresh []string
	for channel := range channels {
		if !s.channels[channel] {
			fresh = append(fresh, channel)
		}
	}
	if len(fresh) > 0 {
		s.add(fresh)
	}
	q.client.mu.Unlock()
	for !q.hears(channels) {
		select {
		case <-s.told:
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
		if !q.subscription.heard[channel] {
			return false
		}
	}
	return true
}

// Live gives the results of a live query. A slow consumer gets the newest one.
type Live struct {
	shared *liveQuery
	mu     sync.Mutex
	latest *Result
	err    error
	ready  chan struct{}
}

func (l *Live) put(result Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = &result
	wake(l.ready)
}

func (l *Live) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	wake(l.ready)
}

// Next waits for the next result. The error is that of ctx, ErrClosed, or why the client cannot go
// on; the error of a query that is tried again is in the result.
func (l *Live) Next(ctx context.Context) (Result, error) {
	for {
		l.mu.Lock()
		latest, err := l.latest, l.err
		l.latest = nil
		l.mu.Unlock()
		if latest != nil {
			return *latest, nil
		}
		if err != nil {
			return Result{}, err
		}
		select {
		case <-l.ready:
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
}

// All iterates over the results, until an error.
func (l *Live) All(ctx context.Context) iter.Seq2[Result, error] {
	return func(yield func(Result, error) bool) {
		for {
			result, err := l.Next(ctx)
			if !yield(result, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the live query for this consumer.
func (l *Live) Close() {
	client := l.shared.client
	client.mu.Lock()
	delete(l.shared.consumers, l)
	last := len(l.shared.consumers) == 0 && client.live[l.shared.key] == l.shared
	if last {
		delete(client.live, l.shared.key)
	}
	client.mu.Unlock()
	if last {
		l.shared.end()
		l.shared.subscription.Close()
	}
	l.end(ErrClosed)
}
