package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Client is a client of one database. It connects when the first subscription is made. All its methods can be called
// by several goroutines.
type Client struct {
	options  options
	config   *pgx.ConnConfig
	context  context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	counters counters

	mu       sync.Mutex // protects the fields below, and those of subscribers
	listener *listener
	live     map[string]*liveQuery // those that can be shared
	err      error
}

type counters struct {
	began                        time.Time
	events, dropped, connections atomic.Uint64
	dropping                     atomic.Int64 // consumers that have begun to drop events; the listener logs them
	heardAfterNs                 atomic.Int64
}

// heard notes a sign of life of the server.
func (c *counters) heard() { c.heardAfterNs.Store(int64(time.Since(c.began))) }

// New makes a client, which lives until Close or the end of ctx: a client that is only forgotten keeps its connections.
// The connection string is one of pgx. The error is that of pgx if it is not valid, or names an option that is out of
// range.
func New(ctx context.Context, connString string, changes ...Option) (*Client, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, err
	}
	return NewWithConfig(ctx, config, changes...)
}

// NewWithConfig is New with a configuration of pgx. Statements are never prepared, because
// a pooler may be in between, OnNotification is never called, and client_encoding is always UTF8.
func NewWithConfig(ctx context.Context, config *pgx.ConnConfig, changes ...Option) (*Client, error) {
	options, err := newOptions(changes)
	if err != nil {
		return nil, err
	}
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.OnNotification = nil // pgx would give notifications to it only
	// Otherwise it is that of the database or role, and pgx takes the bytes of the server as they are.
	config.RuntimeParams["client_encoding"] = "UTF8"
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "pg-pinpoint"
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = options.timeout
	}
	c := &Client{options: options, config: config, live: map[string]*liveQuery{}, counters: counters{began: time.Now()}}
	c.context, c.cancel = context.WithCancel(ctx)
	c.listener = &listener{client: c, index: newIndex(), waits: options.mode == Wait}
	context.AfterFunc(c.context, func() { c.end(fmt.Errorf("%w: %w", ErrClientClosed, context.Cause(ctx))) })
	return c, nil
}

// Close ends all subscriptions, live queries and connections, and waits until they have ended. Iterators that are still
// open return ErrClientClosed.
func (c *Client) Close() {
	c.end(ErrClientClosed)
	c.running.Wait()
}

// Stats returns the counters of the client.
func (c *Client) Stats() Stats {
	n := &c.counters
	return Stats{Events: n.events.Load(), Dropped: n.dropped.Load(), Reconnects: max(n.connections.Load(), 1) - 1,
		Quiet: time.Since(n.began) - time.Duration(n.heardAfterNs.Load())}
}

// locked calls a function with the mutex held. A panic releases it.
func (c *Client) locked(function func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	function()
}

// attach makes a subscriber known to the listener, and starts that. It returns the error that has ended the client. It
// is called with the mutex held.
func (c *Client) attach(s subscriber) error {
	if c.err != nil {
		return c.err
	}
	c.listener.start.Do(func() { c.spawn(c.listener.run) })
	c.listener.join(s)
	return nil
}

// spawn runs a loop in a goroutine. If anything but its return ends it, the client ends with an error.
func (c *Client) spawn(loop func()) {
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		returned := false
		defer func() {
			if returned {
				return
			}
			cause := recover() // nil after runtime.Goexit
			err, ok := cause.(error)
			if !ok {
				err = fmt.Errorf("%v", cause)
			}
			c.end(fmt.Errorf("a goroutine of the client has panicked: %w\n%s", err, debug.Stack()))
		}()
		loop()
		returned = true
	}()
}

// end ends the client, and all consumers with an error.
func (c *Client) end(err error) {
	first := false
	c.locked(func() {
		if first = c.err == nil; first {
			c.err = err
			c.cancel()
			for s := range c.listener.subscribers {
				s.end(err)
			}
		}
	})
	if first && !errors.Is(err, ErrClientClosed) {
		c.options.logger.Error("pinpoint: the client has ended", "error", err)
	}
}

func checkChannels(channels []string) error {
	for _, channel := range channels {
		if channel == "" || len(channel) > 63 || channel == heartbeat || strings.Contains(channel, "\x00") {
			return fmt.Errorf("%q cannot be the name of a channel: a name has 1 to 63 bytes, has no NUL, and is not %q",
				channel, heartbeat)
		}
	}
	return nil
}
