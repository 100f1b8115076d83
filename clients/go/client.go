package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options of a client. A zero value is the default.
type Options struct {
	Mode             Mode          // default: Auto
	MinInterval      time.Duration // between the beginnings of two executions of a live query; 50 ms
	Buffer           int           // bytes of events for one consumer; 64 MB
	MinBackoff       time.Duration // between two attempts to connect; 100 ms
	MaxBackoff       time.Duration // 15 s
	MaxAttempts      int           // failed attempts in succession; no limit
	Timeout          time.Duration // for an attempt to connect and for short queries; 10 s
	QueryTimeout     time.Duration // for a live query; 60 s
	CheckInterval    time.Duration // between two checks of a connection without heartbeats; 10 s
	ProbeTimeout     time.Duration // in which a notification arrives through a pooler; 3 s
	QueryConnections int           // that all live queries share; 2
}

// Client is a client of one database. It connects when the first subscription is made.
type Client struct {
	options Options
	config  *pgx.ConnConfig
	context context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{} // of connections for live queries

	mu         sync.Mutex // protects the fields below, and those of Subscription and liveQuery
	listener   *listener
	live       map[string]*liveQuery
	idle       []*pgx.Conn // connections for live queries
	generation int         // of these connections
	err        error
}

// New makes a client. The connection string is one of pgx; the error is that of pgx if it is not valid.
func New(connString string, options Options) (*Client, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, err
	}
	return NewWithConfig(config, options), nil
}

// NewWithConfig makes a client with a configuration of pgx. Statements are never prepared, because
// a pooler may be in between, OnNotification is never called, and client_encoding is always UTF8.
func NewWithConfig(config *pgx.ConnConfig, options Options) *Client {
	setDefault(&options.Mode, Auto)
	setDefault(&options.MinInterval, 50*time.Millisecond)
	setDefault(&options.Buffer, 64<<20)
	setDefault(&options.MinBackoff, 100*time.Millisecond)
	setDefault(&options.MaxBackoff, 15*time.Second)
	setDefault(&options.MaxAttempts, math.MaxInt)
	setDefault(&options.Timeout, 10*time.Second)
	setDefault(&options.QueryTimeout, 60*time.Second)
	setDefault(&options.CheckInterval, 10*time.Second)
	setDefault(&options.ProbeTimeout, 3*time.Second)
	setDefault(&options.QueryConnections, 2)
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.OnNotification = nil // pgx would give notifications to it only
	// Otherwise it is that of the database or role, and pgx takes the bytes of the server as they are.
	config.RuntimeParams["client_encoding"] = "UTF8"
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = options.Timeout
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Client{options: options, config: config, context: ctx, cancel: cancel,
		slots: make(chan struct{}, options.QueryConnections), live: map[string]*liveQuery{}}
}

func setDefault[T comparable](option *T, value T) {
	var zero T
	if *option == zero {
		*option = value
	}
}

// Subscribe listens on channels. Each begins with a Changed. It returns an error if a name is empty, longer
// than 63 bytes, contains NUL or is pinpoint_heartbeat, and the error that has ended the client (ErrClosed
// after Close).
func (c *Client) Subscribe(channels ...string) (*Subscription, error) {
	if err := checkChannels(channels); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.start(); err != nil {
		return nil, err
	}
	s := &Subscription{listener: c.listener, interest: newInterest()}
	s.init(c.options.Buffer)
	c.listener.subscribers[s] = true
	if c.listener.connected != nil {
		s.put(*c.listener.connected)
	}
	s.add(channels)
	return s, nil
}

// start starts the listener. It is called with the mutex held.
func (c *Client) start() error {
	if c.err == nil && c.listener == nil {
		c.listener = newListener(c)
		c.running.Add(1)
		go c.listener.run()
	}
	return c.err
}

// Live gives the rows of a query now, and after each change of a table that it reads. The arguments are
// those of $1, $2 ... It returns the error that has ended the client (ErrClosed after Close). An error of
// the query is in a Result.
func (c *Client) Live(query string, arguments ...any) (*Live, error) {
	arguments = slices.Clone(arguments)
	key := fmt.Sprintf("%q %#v", query, arguments)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.start(); err != nil {
		return nil, err
	}
	shared := c.live[key]
	for shared != nil && !reflect.DeepEqual(shared.arguments, arguments) { // different values can print the same
		key += " "
		shared = c.live[key]
	}
	if shared == nil {
		shared = newLiveQuery(c, key, query, arguments)
		c.live[key] = shared
		c.listener.subscribers[shared] = true
		c.running.Add(1)
		go shared.run()
	}
	live := &Live{shared: shared}
	live.ready, live.take = make(chan struct{}, 1), live.takeLatest
	shared.consumers[live] = true
	wake(shared.dirty) // a result that is at hand may be older than this call
	return live, nil
}

// Close ends all subscriptions, live queries and connections. Their iterators return ErrClosed.
func (c *Client) Close() {
	c.fail(ErrClosed)
	c.cancel()
	c.running.Wait()
	c.dropQueryConnections()
}

// fail ends all consumers with an error.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	if c.listener != nil {
		for s := range c.listener.subscribers {
			s.end(c.err)
		}
	}
}

// dropQueryConnections is called when the server of the listening connection may be another one
// from now on.
func (c *Client) dropQueryConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	for _, conn := range c.idle {
		closeNow(conn)
	}
	c.idle = nil
	for _, shared := range c.live {
		shared.interrupt() // what is executing may never end
	}
}

func (c *Client) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, c.config)
}

// closeNow closes a connection without waiting for the server.
func closeNow(conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.PgConn().Close(ctx)
}

// interest is what a subscription or a live query listens on. The mutex of the client protects it.
type interest struct {
	channels map[string]bool
	heard    map[string]bool // of which the consumer has been told
}

func newInterest() interest {
	return interest{channels: map[string]bool{}, heard: map[string]bool{}}
}

func (i *interest) get() *interest { return i }

// Subscription gives the events of some channels.
type Subscription struct {
	eventQueue
	interest
	listener *listener
}

// Add listens on more channels. Each begins with a Changed. It returns an error if a name is not valid.
func (s *Subscription) Add(channels ...string) error {
	if err := checkChannels(channels); err != nil {
		return err
	}
	s.listener.client.mu.Lock()
	defer s.listener.client.mu.Unlock()
	s.add(channels)
	return nil
}

func (s *Subscription) add(channels []string) {
	for _, channel := range channels {
		s.channels[channel] = true
	}
	wake(s.listener.changes)
}

// Remove listens on fewer channels. Events that are already in the queue still follow.
func (s *Subscription) Remove(channels ...string) {
	s.listener.client.mu.Lock()
	defer s.listener.client.mu.Unlock()
	for _, channel := range channels {
		delete(s.channels, channel)
		delete(s.heard, channel)
	}
	wake(s.listener.changes)
}

// Close ends the subscription: after the events in the queue, Next returns ErrClosed.
func (s *Subscription) Close() {
	s.listener.client.mu.Lock()
	defer s.listener.client.mu.Unlock()
	delete(s.listener.subscribers, s)
	wake(s.listener.changes)
	s.end(ErrClosed)
}

func keys(set map[string]bool) []string {
	return slices.AppendSeq(make([]string, 0, len(set)), maps.Keys(set))
}

func checkChannels(channels []string) error {
	for _, channel := range channels {
		switch {
		case channel == "":
			return errors.New("the name of a channel cannot be empty")
		case len(channel) > 63:
			return fmt.Errorf("the name of a channel can have 63 bytes: %q is longer", channel)
		case strings.Contains(channel, "\x00"):
			return errors.New("the name of a channel cannot contain the character NUL")
		case channel == heartbeat:
			return fmt.Errorf("the channel %q is for the client itself", heartbeat)
		}
	}
	return nil
}
