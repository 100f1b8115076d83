package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const channelsOf = `SELECT relation::text, channel::text FROM pinpoint.channels_of($1)`

// Live gives the rows of a query now, and after each change of a table that it reads. The arguments are
// those of $1, $2 ... Equal queries share one execution if their arguments are equal and of basic types: strings,
// numbers, bool, nil, time.Time, and slices of these. It returns the error that has ended the client
// (ErrClientClosed after Close). An error of the query is in a Result.
func (c *Client) Live(query string, arguments ...any) (*Live, error) {
	key := keyOf(query, arguments)
	c.mu.Lock()
	defer c.mu.Unlock()
	shared := c.live[key]
	if shared == nil {
		shared = &liveQuery{client: c, key: key, query: query, arguments: slices.Clone(arguments),
			consumers: map[*Live]bool{}, dirty: make(chan struct{}, 1)}
		shared.ended, shared.cancel = context.WithCancel(c.context)
		if err := c.attach(shared); err != nil {
			return nil, err
		}
		if key != "" {
			c.live[key] = shared
		}
		c.spawn(shared.run)
	}
	live := &Live{shared: shared}
	live.start(live.takeLatest, c)
	shared.consumers[live] = true
	if disconnected, ok := c.listener.current().(Disconnected); ok {
		live.put(Result{Err: disconnected})
	} else if shared.failure != nil {
		live.put(*shared.failure)
	}
	wake(shared.dirty) // a result that is at hand may be older than this call
	return live, nil
}

// keyOf returns a text that equal live queries have in common, or "" if an argument cannot be compared.
func keyOf(query string, arguments []any) string {
	key := fmt.Sprintf("%q", query)
	for _, argument := range arguments {
		if argument != nil && !isBasic(reflect.TypeOf(argument)) {
			return ""
		}
		if moment, ok := argument.(time.Time); ok {
			argument = moment.Round(0) // without the monotonic clock
		}
		key += fmt.Sprintf(" %T %#v %v", argument, argument, argument) // only %v has the offset of a time
	}
	return key
}

// isBasic tells predeclared types, time.Time, and slices of them. Another type with a name may have an encoding of its own.
func isBasic(of reflect.Type) bool {
	for of.Kind() == reflect.Slice && of.PkgPath() == "" {
		of = of.Elem()
	}
	kind := of.Kind()
	return of == reflect.TypeFor[time.Time]() ||
		of.PkgPath() == "" && (kind >= reflect.Bool && kind <= reflect.Float64 && kind != reflect.Uintptr || kind == reflect.String)
}

// liveQuery is one query that is executed for all its consumers. For the listener, it is a
// subscriber. The mutex of the client protects consumers and failure.
type liveQuery struct {
	client     *Client
	key, query string
	arguments  []any
	consumers  map[*Live]bool
	failure    *Result // the last one, if the query or its connection has failed
	dirty      chan struct{}
	ended      context.Context
	cancel     context.CancelFunc // of ended
}

// put is called with the mutex held. A result that is not taken is replaced.
func (q *liveQuery) put(event Event) {
	if disconnected, ok := event.(Disconnected); ok {
		q.tell(Result{Err: disconnected})
	}
	wake(q.dirty)
}

// end is called with the mutex held.
func (q *liveQuery) end(err error) {
	for live := range q.consumers {
		live.end(err)
	}
	delete(q.client.live, q.key)
	q.client.listener.leave(q)
	q.cancel()
}

func (q *liveQuery) run() {
	options := &q.client.options
	failures := 0
	for {
		select {
		case <-q.dirty:
		case <-q.ended.Done():
			return
		}
		var s *session
		q.client.locked(func() {
			s = q.client.listener.connected
			select {
			case <-q.dirty: // what changes from now on is in another execution
			default:
			}
		})
		if s == nil {
			continue // the next connection sets dirty
		}
		began := time.Now()
		result := q.execute(s)
		given := q.give(result, s)
		delay := options.minInterval - time.Since(began)
		if result.Err == nil {
			failures = 0
		} else {
			failures++
			wake(q.dirty)
			delay = backoff(options.minBackoff, options.maxBackoff, failures, rand.Float64)
			if given { // its message may have values of parameters
				options.logger.Warn("pinpoint: a live query has failed", "query", q.query, "sqlstate", sqlState(result.Err),
					"retry_in", delay)
			}
		}
		sleep(q.ended, delay)
	}
}

// give gives a result to the consumers. If the connection was lost meanwhile, the rows may be from another server.
func (q *liveQuery) give(result Result, s *session) (given bool) {
	q.client.locked(func() {
		if given = s.context.Err() == nil && q.ended.Err() == nil; given {
			q.tell(result)
		}
	})
	return given
}

// tell is called with the mutex held.
func (q *liveQuery) tell(result Result) {
	q.failure = nil
	if _, disconnected := result.Err.(Disconnected); result.Err != nil && !disconnected {
		q.failure = &result
	}
	for live := range q.consumers {
		live.put(result)
	}
}

func (q *liveQuery) execute(s *session) Result {
	ctx, cancel := context.WithCancel(q.ended)
	defer cancel()
	defer context.AfterFunc(s.context, cancel)()
	for {
		conn, used, err := q.client.acquire(ctx, s)
		if err != nil {
			return Result{Err: err}
		}
		result, ended := q.executeOn(ctx, conn, s)
		timedOut := errors.Is(result.Err, context.DeadlineExceeded)
		if !used || !ended || timedOut || result.Err == nil || ctx.Err() != nil {
			return result
		}
		// It has ended while it was idle, or by the query itself, which the next connection will show.
	}
}

// executeOn listens on the channels of the tables that the query reads, and then executes it. It releases the connection, and
// returns whether that has ended.
func (q *liveQuery) executeOn(ctx context.Context, conn *pgx.Conn, s *session) (result Result, ended bool) {
	defer func() {
		ended = conn.IsClosed() // before another query can have it
		q.client.release(conn, s)
	}()
	if limit := q.client.options.queryTimeout; limit != Unlimited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
		defer func() {
			if errors.Is(result.Err, context.DeadlineExceeded) {
				result.Err = fmt.Errorf("no result within the query timeout of %v: %w", limit, result.Err)
			}
		}()
	}
	forgetNotifications(conn)
	channels, err := q.channelsOf(ctx, conn)
	if err != nil {
		return Result{Err: err}, false
	}
	for !q.hears(channels) {
		select {
		case <-q.dirty:
		case <-ctx.Done():
			return Result{Err: ctx.Err()}, false
		}
	}
	rows, _ := conn.Query(ctx, q.query, q.arguments...) // CollectRows returns its error
	result.Rows, result.Err = pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	if result.Err == nil {
		for _, field := range rows.FieldDescriptions() {
			result.Columns = append(result.Columns, field.Name)
		}
	}
	return result, false
}

func (q *liveQuery) channelsOf(ctx context.Context, conn *pgx.Conn) (channels []string, err error) {
	rows, _ := conn.Query(ctx, channelsOf, q.query) // ForEachRow returns its error
	var table string
	var channel *string
	_, err = pgx.ForEachRow(rows, []any{&table, &channel}, func() error {
		if channel == nil {
			literal := "'" + strings.ReplaceAll(table, "'", "''") + "'"
			return stateError{"55000", fmt.Sprintf("the table %q is not watched: execute SELECT pinpoint.watch(%s)", table, literal)}
		}
		channels = append(channels, *channel)
		return nil
	})
	return channels, err
}

// hears makes these channels those of the query. It returns whether the client listens on all.
func (q *liveQuery) hears(channels []string) (all bool) {
	q.client.locked(func() {
		listener := q.client.listener
		for channel := range listener.subscribers[q] {
			if !slices.Contains(channels, channel) {
				listener.remove(q, channel)
			}
		}
		listener.add(q, channels...)
		all = len(listener.untold[q]) == 0
	})
	return all
}

// localPort is the part of an error of the connection that is another one at each attempt.
var localPort = regexp.MustCompile(`:[0-9]+->`)

// Live gives the results of a live query. A slow consumer gets the newest one.
type Live struct {
	consumer[Result]
	shared *liveQuery
	latest *Result
	told   string // the error of the query with its SQLSTATE, if that was the last result
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
	l.client.locked(func() {
		known := l.shared.consumers[l]
		delete(l.shared.consumers, l)
		if known && len(l.shared.consumers) == 0 {
			l.shared.end(ErrClosed)
		}
	})
}
