package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const heartbeat = "pinpoint_heartbeat"

const (
	changedSince = `SELECT changed::text[], position FROM pinpoint.changed_since(nullif($1, ''), VARIADIC $2::text[])`
	// Of those of the channels that watched tables have.
	tablesChanged = `SELECT changed::text[], position FROM pinpoint.changed_since(nullif($1, ''),
		VARIADIC ARRAY(SELECT channel::text FROM pinpoint.watched WHERE channel = ANY ($2::text[])))`
	callWait = `CALL pinpoint.wait($1::text[], nullif($2, ''), $3::interval)`
)

// listener keeps one connection that receives the notifications of a client. The mutex of the client
// protects all but the last fields, which only run and what it calls use.
type listener struct {
	client *Client
	index
	start     sync.Once
	connected *session // nil: not connected
	server    server   // of the connection
	position  string   // "" is unknown
	failure   error    // why there is no connection, if an attempt has failed or it was lost
	retryAt   time.Time

	waits        bool
	heard        time.Time // the last message of the connection
	anyHeartbeat bool      // of the connection
}

func (l *listener) run() {
	client, options := l.client, &l.client.options
	failures := 0
	defer l.lose(nil)
	for client.context.Err() == nil {
		err := l.connect(client.context)
		if err == nil || client.context.Err() != nil {
			continue // with other channels
		}
		if l.lose(err) >= options.maxBackoff {
			failures = 0
		}
		failures++
		first := client.counters.connections.Load() == 0
		if first && isPermanent(err) || options.maxAttempts != Unlimited && failures > options.maxAttempts {
			client.end(err)
			return
		}
		delay := backoff(options.minBackoff, options.maxBackoff, failures, rand.Float64)
		options.logger.Warn("pinpoint: not connected", "error", err, "retry_in", delay)
		client.locked(func() {
			l.failure, l.retryAt = err, time.Now().Add(delay)
			l.tellAll(l.current())
		})
		sleep(client.context, delay)
	}
}

// current returns what a new consumer is told: Connected, Disconnected, or nil while the first attempt goes on. It is called
// with the mutex held.
func (l *listener) current() Event {
	switch {
	case l.connected != nil:
		return l.connected.Connected
	case l.failure != nil:
		return Disconnected{l.failure, max(0, time.Until(l.retryAt))}
	}
	return nil
}

// lose forgets the connection. It returns how long it has worked.
func (l *listener) lose(err error) (worked time.Duration) {
	l.client.locked(func() {
		if l.connected != nil {
			worked = time.Since(l.connected.since)
			l.connected.close()
			l.connected = nil
		}
		if sqlState(err) == "22P02" {
			l.position = "" // of a false heartbeat, or unknown to an older version: ask without
		}
	})
	return worked
}

// connect connects, and receives until the connection is lost. It returns nil if a new connection is
// needed for other channels.
func (l *listener) connect(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, l.client.config)
	if err != nil {
		return err
	}
	defer closeNow(conn)
	defer l.client.locked(l.restart)
	s, err := l.client.inquire(ctx, conn)
	if err != nil {
		return err
	}
	l.client.locked(func() { l.server = s })
	waits, err := l.hasToWait(ctx, conn)
	if err != nil {
		return err
	}
	if waits {
		return l.wait(ctx, conn)
	}
	return l.listen(ctx, conn)
}

// hasToWait tells whether to use pinpoint.wait() instead of LISTEN.
func (l *listener) hasToWait(ctx context.Context, conn *pgx.Conn) (waits bool, err error) {
	// The client is still connected if only the channels are others.
	waits = l.waits || l.connected != nil && l.connected.Mode == Wait
	if l.server.pooled && !waits && l.client.options.mode == Auto {
		waits, err = l.poolsTransactions(ctx, conn)
	}
	if err == nil && waits && !l.server.current {
		err = ErrNoWait
	}
	return waits, err
}

// poolsTransactions finds out whether no notification arrives while no transaction is running.
func (l *listener) poolsTransactions(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if l.server.standby {
		return l.server.current, nil // a standby cannot notify
	}
	channel := fmt.Sprintf("pinpoint_probe_%x", rand.Uint64())
	if err := l.client.exec(ctx, conn, "LISTEN "+channel); err != nil {
		return false, err
	}
	other, err := pgx.ConnectConfig(ctx, l.client.config)
	if err != nil {
		return false, err
	}
	defer closeNow(other)
	if err := l.client.exec(ctx, other, "SELECT pg_notify($1, '')", channel); err != nil {
		return false, err
	}
	probe, cancel := context.WithTimeout(ctx, l.client.options.probeTimeout)
	defer cancel()
	// Through a pooler, there may be notifications that another client of its listens for.
	notification, notHeard := conn.WaitForNotification(probe)
	for notHeard == nil && notification.Channel != channel {
		notification, notHeard = conn.WaitForNotification(probe)
	}
	if notHeard != nil && probe.Err() == nil {
		return false, notHeard
	}
	if err := l.client.exec(ctx, conn, "UNLISTEN "+channel); err != nil {
		return false, err
	}
	if notHeard != nil && !l.server.current {
		return false, ErrNoListen
	}
	return notHeard != nil, nil
}

// ---- Channels -----------------------------------------------------------------

// tellAll is called with the mutex held.
func (l *listener) tellAll(event Event) {
	for s := range l.subscribers {
		s.put(event)
	}
}

// begin is called with the mutex not held when the connection works. Subscribers are told of both at once, so that a live
// query is executed once.
func (l *listener) begin(mode Mode, changed []string) {
	connected := Connected{l.server.version, l.server.standby, mode}
	l.client.counters.connections.Add(1)
	l.client.options.logger.Info("pinpoint: connected", "mode", mode, "standby", connected.Standby,
		"server_version", connected.ServerVersion)
	l.heard, l.anyHeartbeat = time.Now(), false
	l.client.locked(func() {
		l.connected, l.failure = newSession(l.client, connected), nil
		l.tellAll(connected) // those that come later are told by Subscribe
		l.tell(changed)
	})
}

func (l *listener) setPosition(position string) {
	l.client.locked(func() { l.position = position })
}

// ---- LISTEN ---------------------------------------------------------------------

func (l *listener) listen(ctx context.Context, conn *pgx.Conn) error {
	quiet := l.client.options.checkInterval
	if l.server.heartbeats() {
		quiet = 3 * l.server.interval
		if err := l.client.exec(ctx, conn, "LISTEN "+heartbeat); err != nil {
			return err
		}
	}
	const grace = 100 * time.Millisecond // to read what has arrived while a statement took long
	betweenQuestions := 6 * l.client.options.checkInterval
	asked, askAt := "", time.Now().Add(betweenQuestions) // the position of the last question, and the time of the next one
	for first := true; ; first = false {
		var fresh, gone []string
		l.client.locked(func() { fresh, gone = l.take() })
		err := l.listenTo(ctx, conn, fresh, gone)
		changed := fresh // without positions; later, they are told of these in any case
		if err == nil && first && l.server.pinpoint {
			err = l.client.fetch(ctx, conn, changedSince, []any{l.position, fresh}, &changed, &asked)
		}
		if err != nil {
			return err
		}
		if first {
			l.setPosition(asked)
			l.begin(Push, changed)
		} else {
			l.client.locked(func() { l.tell(changed) })
		}
		if time.Until(askAt) <= 0 {
			if asked, err = l.ask(ctx, conn, asked); err != nil {
				return err
			}
			askAt = time.Now().Add(betweenQuestions)
		}
		if err := l.read(ctx, conn, min(time.Until(askAt), max(grace, quiet-time.Since(l.heard)))); err != nil {
			return err
		}
		if time.Since(l.heard) >= quiet+grace {
			if err := l.checkSilent(ctx, conn, quiet); err != nil {
				return err
			}
			l.heard = time.Now()
		}
	}
}

// listenTo makes the connection listen to these channels, too, and to others no longer.
func (l *listener) listenTo(ctx context.Context, conn *pgx.Conn, fresh, gone []string) error {
	var statements []string
	for _, channel := range fresh {
		statements = append(statements, "LISTEN "+pgx.Identifier{channel}.Sanitize())
	}
	for _, channel := range gone {
		statements = append(statements, "UNLISTEN "+pgx.Identifier{channel}.Sanitize())
	}
	if len(statements) == 0 {
		return nil
	}
	return l.client.exec(ctx, conn, strings.Join(statements, ";"))
}

// ask tells subscribers which watched tables have changed since a position. It returns the next position. Without heartbeats,
// there are changes that do not notify: for instance ALTER TABLE. Subscribers are not told of other channels, as a channel
// that is only notified may count as changed each time.
func (l *listener) ask(ctx context.Context, conn *pgx.Conn, position string) (string, error) {
	if l.server.heartbeats() || !l.server.current {
		return position, nil
	}
	var channels, changed []string
	l.client.locked(func() { channels = keys(l.channels) })
	err := l.client.fetch(ctx, conn, tablesChanged, []any{position, channels}, &changed, &position)
	l.client.locked(func() { l.tell(changed) })
	return position, err
}

// read reads notifications until the time is over, the channels change, or the connection is lost.
func (l *listener) read(parent context.Context, conn *pgx.Conn, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	l.client.locked(func() {
		l.interrupt = cancel
		l.changed() // meanwhile
	})
	for {
		notification, err := conn.WaitForNotification(ctx)
		switch {
		case err == nil:
			l.receive(notification)
		case ctx.Err() != nil && !conn.IsClosed():
			return parent.Err()
		default:
			return err
		}
	}
}

// receive gives a notification to its subscribers.
func (l *listener) receive(notification *pgconn.Notification) {
	l.heard = time.Now()
	l.client.counters.heard()
	if notification.Channel == heartbeat {
		l.anyHeartbeat = true
		position, _, _ := strings.Cut(notification.Payload, " ")
		l.setPosition(position)
		return
	}
	l.client.locked(func() { l.give(Notification{notification.Channel, notification.Payload, notification.PID}) })
	if consumers := l.client.counters.dropping.Swap(0); consumers > 0 {
		l.client.options.logger.Warn("pinpoint: events are dropped, because consumers are slow",
			"channel", notification.Channel, "consumers", consumers)
	}
}

// checkSilent tells why a connection without a message for so long is lost, if it is.
func (l *listener) checkSilent(ctx context.Context, conn *pgx.Conn, quiet time.Duration) error {
	s := l.server
	if s.heartbeats() && !(s.pooled && s.current && !l.anyHeartbeat && l.client.options.mode == Auto) {
		return fmt.Errorf("no heartbeat for %v", quiet)
	}
	now, err := l.client.inquire(ctx, conn)
	switch {
	case err != nil:
		return err // it is the connection
	case s.heartbeats():
		l.waits = true
		return fmt.Errorf("no heartbeat for %v", quiet)
	case now.pinpoint != s.pinpoint:
		return errors.New("the extension pg_pinpoint was created or dropped")
	}
	return nil
}

// ---- pinpoint.wait() ----------------------------------------------------------------

func (l *listener) wait(ctx context.Context, conn *pgx.Conn) error {
	timeout := l.client.options.checkInterval
	if l.server.timeLimit > 0 {
		timeout = min(timeout, l.server.timeLimit/2)
	}
	// The first call shows whether it works. It ends at once, and is not canceled, so each connection brings an answer,
	// however often the channels change.
	for first, longest := true, time.Duration(0); ; {
		call, cancel := context.WithTimeout(ctx, timeout+l.client.options.timeout)
		var changed []string
		var position string
		err := conn.QueryRow(call, callWait, l.takeAll(first, cancel), l.position, longest).Scan(&changed, &position)
		forgetNotifications(conn)
		canceled := errors.Is(call.Err(), context.Canceled)
		cancel()
		switch {
		case err == nil && first && l.connected != nil && serverOf(position) != serverOf(l.position):
			// This is a connection for other channels: the live queries have theirs.
			return errOtherServer
		case err == nil:
			first, longest = false, timeout
			l.client.counters.heard()
			l.setPosition(position)
			if l.connected == nil {
				l.begin(Wait, changed)
			} else {
				l.client.locked(func() { l.tell(changed) })
			}
			if len(changed) > 0 {
				sleep(ctx, l.client.options.minInterval)
			}
		case canceled && ctx.Err() == nil:
			return nil // pgx closes a connection whose query is canceled: wait for the other channels on a new one
		case sqlState(err) == "57014":
			// a timeout that the server has
		default:
			return err
		}
	}
}

// takeAll returns the channels of a call, which goes on when they change, unless there are others. Subscribers are told
// of those of the call.
func (l *listener) takeAll(first bool, cancel context.CancelFunc) (channels []string) {
	l.client.locked(func() {
		l.take()
		if channels = keys(l.channels); len(channels) == 0 {
			channels = []string{heartbeat} // a call needs one
		}
		l.interrupt = func() {
			switch {
			case first:
			case len(l.fresh) > 0:
				cancel()
			default:
				l.tell(nil)
			}
		}
		l.interrupt()
	})
	return channels
}

func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
}
