// Package pinpoint follows changes in PostgreSQL: notifications without missed changes, and live
// queries. See README.md.
package pinpoint

import "time"

// Event is Connected, Changed, Notification or Disconnected.
type Event interface{ event() }

// Connected tells that the connection works, and listens on all channels.
type Connected struct {
	ServerVersion int // for instance 150018
	Standby       bool
	Mode          Mode // Push or Wait
}

// Changed names channels that may have been notified while the client did not listen: read your tables.
type Changed struct {
	Channels []string
}

// Notification is a notification on a channel. PID is the process ID of the session that sent it.
type Notification struct {
	Channel string
	Payload string
	PID     uint32
}

// Disconnected tells that the connection was lost, or could not be made. The next attempt is
// after RetryIn. A live query gives it as the error of a Result; it wraps the reason.
type Disconnected struct {
	Reason  error
	RetryIn time.Duration
}

func (d Disconnected) Error() string { return d.Reason.Error() }
func (d Disconnected) Unwrap() error { return d.Reason }

func (Connected) event()    {}
func (Changed) event()      {}
func (Notification) event() {}
func (Disconnected) event() {}

// Result is the result of a live query. Each row has its values in the order of Columns. If Err is
// not nil, there are no rows, and the query is executed again: Err is Disconnected, or an error of
// the query or of its connection, which is told once. A pgconn.PgError in it has the SQLSTATE: that of
// the server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1, 42501 without its schema.
type Result struct {
	Columns []string
	Rows    [][]any
	Err     error
}

// Stats are the counters of a client since New.
type Stats struct {
	Events     uint64        // events and results that were given to consumers
	Dropped    uint64        // events that did not fit into the buffer of a consumer
	Reconnects uint64        // connections after the first one
	Quiet      time.Duration // since the last sign of life of the server, or since New
}
