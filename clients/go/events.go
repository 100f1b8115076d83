// Package pinpoint follows changes in PostgreSQL: notifications without missed changes, and live
// queries. See README.md.
package pinpoint

// Event is Connected, Changed, Notification or Disconnected.
type Event interface{ event() }

// Connected tells that the connection works, and listens on all channels.
type Connected struct {
	ServerVersion int // for instance 150018
	Standby       bool
	Mode          Mode
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
// after RetryIn seconds. A live query gives it as the error of a Result.
type Disconnected struct {
	Reason  string
	RetryIn float64
}

func (d Disconnected) Error() string { return d.Reason }

func (Connected) event()    {}
func (Changed) event()      {}
func (Notification) event() {}
func (Disconnected) event() {}

// Result is the result of a live query. Each row has its values in the order of Columns. If Err is
// not nil, there are no rows, and the query is executed again: Err is Disconnected, or an error of
// the query or of its connection, which is told once. A pgconn.PgError in it has the SQLSTATE: that of
// the server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1.
type Result struct {
	Columns []string
	Rows    [][]any
	Err     error
}

// Mode is how a client receives notifications.
type Mode string

const (
	Auto Mode = "auto" // find out
	Push Mode = "push" // LISTEN
	Wait Mode = "wait" // pinpoint.wait()
)
