package pinpoint

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Unlimited is "no limit", for WithMaxAttempts and WithQueryTimeout.
const Unlimited = -1

// Mode is how a client receives notifications.
type Mode string

const (
	Auto Mode = "auto" // find out
	Push Mode = "push" // LISTEN
	Wait Mode = "wait" // pinpoint.wait()
)

// Option is an option of New.
type Option func(*options)

type options struct {
	mode                                Mode
	buffer                              int
	minInterval, minBackoff, maxBackoff time.Duration
	timeout, queryTimeout               time.Duration
	checkInterval, probeTimeout         time.Duration
	maxAttempts, queryConnections       int
	logger                              *slog.Logger
}

// WithMode sets how notifications are received. The default is Auto.
func WithMode(mode Mode) Option { return func(o *options) { o.mode = mode } }

// WithMinInterval sets the time between the beginnings of two executions of a live query, and after a Changed with
// Wait. The default is 50 ms.
func WithMinInterval(interval time.Duration) Option {
	return func(o *options) { o.minInterval = interval }
}

// WithBuffer sets how many bytes of events, about, wait for one consumer. The default is 64 MB.
func WithBuffer(bytes int) Option { return func(o *options) { o.buffer = bytes } }

// WithBackoff sets the times between two attempts to connect, or to execute a live query that fails: the first one, and
// the longest. The defaults are 100 ms and 15 s.
func WithBackoff(minimum, maximum time.Duration) Option {
	return func(o *options) { o.minBackoff, o.maxBackoff = minimum, maximum }
}

// WithMaxAttempts sets how many attempts to connect may fail in succession. The default is Unlimited.
func WithMaxAttempts(attempts int) Option { return func(o *options) { o.maxAttempts = attempts } }

// WithTimeout limits an attempt to connect, and short queries. The default is 10 s.
func WithTimeout(timeout time.Duration) Option { return func(o *options) { o.timeout = timeout } }

// WithQueryTimeout limits one execution of a live query. The default is 60 s.
func WithQueryTimeout(timeout time.Duration) Option {
	return func(o *options) { o.queryTimeout = timeout }
}

// WithCheckInterval sets the time between two checks of a connection without heartbeats. It is also the longest
// pinpoint.wait. The default is 10 s.
func WithCheckInterval(interval time.Duration) Option {
	return func(o *options) { o.checkInterval = interval }
}

// WithProbeTimeout sets the time in which a notification arrives through a pooler. The default is 3 s.
func WithProbeTimeout(timeout time.Duration) Option {
	return func(o *options) { o.probeTimeout = timeout }
}

// WithQueryConnections sets how many connections all live queries share. The default is 2.
func WithQueryConnections(connections int) Option {
	return func(o *options) { o.queryConnections = connections }
}

// WithLogger sets where the client tells of connections, losses, retries and dropped events. The default is nowhere.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// newOptions returns the defaults with the changes of an application, or which of them is out of range.
func newOptions(changes []Option) (options, error) {
	o := options{mode: Auto, buffer: 64 << 20, minInterval: 50 * time.Millisecond, minBackoff: 100 * time.Millisecond,
		maxBackoff: 15 * time.Second, timeout: 10 * time.Second, queryTimeout: time.Minute, checkInterval: 10 * time.Second,
		probeTimeout: 3 * time.Second, maxAttempts: Unlimited, queryConnections: 2, logger: slog.New(slog.DiscardHandler)}
	for _, change := range changes {
		change(&o)
	}
	return o, o.check()
}

const (
	shortest = time.Millisecond
	longest  = 24 * time.Hour
)

func (o *options) check() error {
	if o.mode != Auto && o.mode != Push && o.mode != Wait {
		return fmt.Errorf("the option Mode is %q: it has to be %q, %q or %q", o.mode, Auto, Push, Wait)
	}
	if o.logger == nil {
		return fmt.Errorf("the option Logger is nil")
	}
	return errors.Join(
		inRange("Buffer", o.buffer, 1, 1<<40),
		inRange("MinInterval", o.minInterval, 0, longest),
		inRange("Backoff: the minimum", o.minBackoff, shortest, longest),
		inRange("Backoff: the maximum", o.maxBackoff, o.minBackoff, longest),
		inRange("MaxAttempts", o.maxAttempts, 0, 1<<30, Unlimited),
		inRange("Timeout", o.timeout, shortest, longest),
		inRange("QueryTimeout", o.queryTimeout, shortest, longest, Unlimited),
		inRange("CheckInterval", o.checkInterval, shortest, longest),
		inRange("ProbeTimeout", o.probeTimeout, shortest, longest),
		inRange("QueryConnections", o.queryConnections, 1, 1000),
	)
}

func inRange[T int | time.Duration](name string, value, minimum, maximum T, others ...T) error {
	if value >= minimum && value <= maximum || slices.Contains(others, value) {
		return nil
	}
	return fmt.Errorf("the option %s is %v: it has to be between %v and %v", name, value, minimum, maximum)
}
