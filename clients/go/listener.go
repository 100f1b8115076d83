package pinpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const heartbeat = "pinpoint_heartbeat"

// to_regproc returns NULL on a server without pg_pinpoint.
const inquiry = `
	SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(),
	       to_regproc('pinpoint.changed_since') IS NOT NULL,
	       to_regproc('pinpoint.wait') IS NOT NULL,
	       coalesce((SELECT setting::int FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'), 0),
	       (SELECT coalesce(min(setting::int), 0) FROM pg_settings
	         WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')`

const (
	hasPinpoint  = `SELECT to_regproc('pinpoint.changed_since') IS NOT NULL`
	getPosition  = `SELECT pinpoint.position()`
	changedSince = `SELECT changed::text[], position FROM pinpoint.changed_since($1, VARIADIC $2::text[])`
	callWait     = `CALL pinpoint.wait($1::text[], $2::text, $3::text::interval)`
)

// ErrNoListen is the error on a server without pg_pinpoint behind a pooler in transaction mode.
var ErrNoListen = errors.New("LISTEN does not work through this connection, because a pooler gives each transaction" +
	" another session; connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later in this database")

var errNoWait = errors.New("waiting needs the extension pg_pinpoint 1.1 or later in this database")

// server is what a client knows of the server of a connection.
type server struct {
	version   int
	standby   bool
	pid       uint32
	pinpoint  bool
	hasWait   bool
	interval  time.Duration // of heartbeats
	timeLimit time.Duration // of a statement or a transaction; 0 if there is none
}

// subscriber is a subscription or a live query.
type subscriber interface {
	get() *interest
	put(Event)
	putChanged(channels []string)
	end(error)
}

// listener keeps one connection that receives the notifications of a client. The mutex of the client
// protects subscribers, connected and position.
type listener struct {
	client        *Client
	subscribers   map[subscriber]bool
	connected     *Connected
	position      string        // "" is unknown
	changes       chan struct{} // the channels of the subscribers have changed
	waits         bool
	everConnected bool
	listened      map[string]bool
}

func newListener(client *Client) *listener {
	return &listener{client: client, subscribers: map[subscriber]bool{},
		changes: make(chan struct{}, 1), waits: client.options.Mode == Wait}
}

func (l *listener) run() {
	defer l.client.running.Done()
	options := l.client.options
	failures := 0
	for l.client.context.Err() == nil {
		err := l.session(l.client.context)
		if err == nil || l.client.context.Err() != nil {
			continue // with other channels
		}
		failures++
		l.client.mu.Lock()
		if l.connected != nil {
			failures = 1
		}
		l.connected = nil
		var pgError *pgconn.PgError
		if errors.As(err, &pgError) && pgError.Code == "22P02" {
			l.position = "" // of a false heartbeat, or unknown to an older version: ask without
		}
		l.client.mu.Unlock()
		l.client.dropQueryConnections()
		if !l.everConnected && isPermanent(err) || failures > options.MaxAttempts {
			l.client.fail(err)
			return
		}
		delay := math.Min(options.MaxBackoff.Seconds(), options.MinBackoff.Seconds()*math.Pow(2, float64(min(failures-1, 30))))
		delay *= 0.5 + mathrand.Float64()/2
		l.client.mu.Lock()
		l.tellAll(Disconnected{err.Error(), delay})
		l.client.mu.Unlock()
		sleep(l.client.context, time.Duration(delay*float64(time.Second)))
	}
}

// session connects, and receives until the connection is lost. It returns nil if a new connection is
// needed for other channels.
func (l *listener) session(ctx context.Context) error {
	conn, err := l.client.connect(ctx)
	if err != nil {
		return err
	}
	defer closeNow(conn)
	l.listened = map[string]bool{}
	var s server
	if err := l.fetch(ctx, conn, inquiry, nil, &s.version, &s.standby, &s.pid, &s.pinpoint, &s.hasWait, &s.interval, &s.timeLimit); err != nil {
		return err
	}
	s.interval *= time.Millisecond
	s.timeLimit *= time.Millisecond
	pooled := s.pid != conn.PgConn().PID()
	// The client is still connected if only the channels are others.
	waits := l.waits || l.connected != nil && l.connected.Mode == Wait
	if pooled && !waits && l.client.options.Mode == Auto {
		heard, err := l.hearsThroughPooler(ctx, conn, s)
		if err != nil {
			return err
		}
		waits = !heard
	}
	if waits && !s.hasWait {
		return errNoWait
	}
	if !s.pinpoint {
		l.setPosition("")
	}
	connected := Connected{s.version, s.standby, Push}
	if waits {
		connected.Mode = Wait
		return l.wait(ctx, conn, connected, s)
	}
	return l.listen(ctx, conn, connected, s, pooled)
}

// fetch executes a query at READ COMMITTED, which the functions need, and scans its row.
func (l *listener) fetch(ctx context.Context, conn *pgx.Conn, query string, arguments []any, targets ...any) error {
	ctx, cancel := context.WithTimeout(ctx, l.client.options.Timeout)
	defer cancel()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, query, arguments...).Scan(targets...)
	})
}

func (l *listener) exec(ctx context.Context, conn *pgx.Conn, statement string, arguments ...any) error {
	ctx, cancel := context.WithTimeout(ctx, l.client.options.Timeout)
	defer cancel()
	_, err := conn.Exec(ctx, statement, arguments...)
	return err
}

// hearsThroughPooler finds out whether a notification arrives while no transaction is running.
func (l *listener) hearsThroughPooler(ctx context.Context, conn *pgx.Conn, s server) (bool, error) {
	if s.standby {
		return !s.hasWait, nil // a standby cannot notify
	}
	var random [8]byte
	_, _ = rand.Read(random[:])
	channel := "pinpoint_probe_" + hex.EncodeToString(random[:])
	if err := l.exec(ctx, conn, "LISTEN "+channel); err != nil {
		return false, err
	}
	other, err := l.client.connect(ctx)
	if err != nil {
		return false, err
	}
	defer closeNow(other)
	if err := l.exec(ctx, other, "SELECT pg_notify($1, '')", channel); err != nil {
		return false, err
	}
	probe, cancel := context.WithTimeout(ctx, l.client.options.ProbeTimeout)
	defer cancel()
	// Through a pooler, there may be notifications that another client of its listens for.
	notification, notHeard := conn.WaitForNotification(probe)
	for notHeard == nil && notification.Channel != channel {
		notification, notHeard = conn.WaitForNotification(probe)
	}
	if notHeard != nil && probe.Err() == nil {
		return false, notHeard
	}
	if err := l.exec(ctx, conn, "UNLISTEN "+channel); err != nil {
		return false, err
	}
	if notHeard != nil && !s.hasWait {
		return false, ErrNoListen
	}
	return notHeard == nil, nil
}

// ---- Channels -----------------------------------------------------------------

func (l *listener) wanted() map[string]bool {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	select {
	case <-l.changes:
	default:
	}
	wanted := map[string]bool{}
	for s := range l.subscribers {
		maps.Copy(wanted, s.get().channels)
	}
	return wanted
}

// tellChanged tells subscriptions of changed channels, and of all whose notifications they receive from now on.
func (l *listener) tellChanged(heard, changed map[string]bool) {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	for s := range l.subscribers {
		interest := s.get()
		var channels []string
		for channel := range interest.channels {
			if heard[channel] && (changed[channel] || !interest.heard[channel]) {
				channels = append(channels, channel)
				interest.heard[channel] = true
			}
		}
		if len(channels) > 0 {
			s.putChanged(channels)
		}
	}
}

// tellAll is called with the mutex held.
func (l *listener) tellAll(event Event) {
	for s := range l.subscribers {
		s.put(event)
	}
}

func (l *listener) begin(connected Connected) {
	l.everConnected = true
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.connected = &connected
	l.tellAll(connected) // those that come later are told by Subscribe
}

func (l *listener) setPosition(position string) {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.position = position
}

// covers tells whether a call that waits for these channels has all wanted ones. Then it continues,
// and subscribers are told.
func (l *listener) covers(asked map[string]bool) bool {
	for channel := range l.wanted() {
		if !asked[channel] {
			return false
		}
	}
	l.tellChanged(asked, nil)
	return true
}

// untilChanges makes a context that ends, too, when the channels of the subscriptions change, unless
// goesOn returns true then.
func (l *listener) untilChanges(parent context.Context, timeout time.Duration, goesOn func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, timeout)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-l.changes:
				if goesOn == nil || !goesOn() {
					wake(l.changes)
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		<-ended // it would take the next change
	}
}

// ---- LISTEN ---------------------------------------------------------------------

func (l *listener) listen(ctx context.Context, conn *pgx.Conn, connected Connected, s server, pooled bool) error {
	heartbeats := s.pinpoint && s.interval > 0
	if heartbeats {
		if err := l.exec(ctx, conn, "LISTEN "+heartbeat); err != nil {
			return err
		}
	}
	// Of the connection, also if the channels change.
	heard, anyHeartbeat := time.Now(), false
	for first := true; ; first = false {
		wanted := l.wanted()
		if err := l.listenTo(ctx, conn, wanted, s.hasWait); err != nil {
			return err
		}
		changed := map[string]bool{}
		if first {
			changed = wanted
			if s.pinpoint {
				var names []string
				var position string
				if err := l.fetch(ctx, conn, changedSince, []any{null(l.position), keys(wanted)}, &names, &position); err != nil {
					return err
				}
				changed = set(names)
				l.setPosition(position)
			}
			l.begin(connected)
		}
		l.tellChanged(wanted, changed)
		if err := l.read(ctx, conn, s, heartbeats, pooled, &heard, &anyHeartbeat); err != nil {
			return err
		}
	}
}

// listenTo makes the connection listen to these channels.
func (l *listener) listenTo(ctx context.Context, conn *pgx.Conn, wanted map[string]bool, hasListen bool) error {
	var fresh, gone, statements []string
	for channel := range wanted {
		if !l.listened[channel] {
			fresh = append(fresh, channel)
			statements = append(statements, "LISTEN "+pgx.Identifier{channel}.Sanitize())
		}
	}
	for channel := range l.listened {
		if !wanted[channel] {
			gone = append(gone, channel)
			statements = append(statements, "UNLISTEN "+pgx.Identifier{channel}.Sanitize())
		}
	}
	l.listened = wanted
	if !hasListen {
		ctx, cancel := context.WithTimeout(ctx, l.client.options.Timeout)
		defer cancel()
		return conn.PgConn().Exec(ctx, strings.Join(statements, ";")).Close()
	}
	if len(fresh) > 0 {
		if err := l.exec(ctx, conn, "SELECT pinpoint.listen(VARIADIC $1::text[])", fresh); err != nil {
			return err
		}
	}
	if len(gone) > 0 {
		return l.exec(ctx, conn, "SELECT pinpoint.unlisten(VARIADIC $1::text[])", gone)
	}
	return nil
}

// read reads notifications until the channels change, or the connection is lost. heard is the time of
// the last one.
func (l *listener) read(parent context.Context, conn *pgx.Conn, s server, heartbeats, pooled bool, heard *time.Time, anyHeartbeat *bool) error {
	const grace = 100 * time.Millisecond // to read what has arrived
	quiet := l.client.options.CheckInterval
	if heartbeats {
		quiet = 3 * s.interval
	}
	ctx, cancel := l.untilChanges(parent, max(grace, quiet-time.Since(*heard)), nil)
	defer func() { cancel() }()
	for {
		notification, err := conn.WaitForNotification(ctx)
		switch {
		case err == nil:
			*heard = time.Now()
			if notification.Channel == heartbeat {
				*anyHeartbeat = true
				l.setPosition(strings.SplitN(notification.Payload, " ", 2)[0])
				break
			}
			l.tell(Notification{notification.Channel, notification.Payload, notification.PID})
		case parent.Err() != nil:
			return parent.Err()
		case errors.Is(ctx.Err(), context.Canceled) && time.Since(*heard) < quiet+grace:
			return nil // other channels
		case ctx.Err() == nil:
			return err
		case time.Since(*heard) < quiet:
			// Something was heard meanwhile.
			cancel()
			ctx, cancel = l.untilChanges(parent, quiet-time.Since(*heard), nil)
		case heartbeats:
			if pooled && s.hasWait && !*anyHeartbeat && l.client.options.Mode == Auto {
				var pinpoint bool
				if err := l.fetch(parent, conn, hasPinpoint, nil, &pinpoint); err != nil {
					return err // it is the connection
				}
				l.waits = true
			}
			return fmt.Errorf("no heartbeat for %v", quiet)
		default:
			var pinpoint bool
			if err := l.fetch(parent, conn, hasPinpoint, nil, &pinpoint); err != nil {
				return err
			}
			if pinpoint != s.pinpoint {
				return errors.New("the extension pg_pinpoint was created or dropped")
			}
			*heard = time.Now()
			cancel()
			ctx, cancel = l.untilChanges(parent, quiet, nil)
		}
	}
}

func (l *listener) tell(notification Notification) {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	for s := range l.subscribers {
		if s.get().heard[notification.Channel] {
			s.put(notification)
		}
	}
}

// ---- pinpoint.wait() ----------------------------------------------------------------

func (l *listener) wait(ctx context.Context, conn *pgx.Conn, connected Connected, s server) error {
	timeout := l.client.options.CheckInterval
	if s.timeLimit > 0 {
		timeout = min(timeout, s.timeLimit/2)
	}
	for first := true; ; {
		wanted := l.wanted()
		if l.connected != nil {
			l.tellChanged(wanted, nil)
		}
		// The first call shows whether it works. It ends at once, so each connection brings an answer,
		// however often the channels change.
		longest, goesOn := time.Duration(0), func() bool { return true }
		if !first {
			longest, goesOn = timeout, func() bool { return l.covers(wanted) }
		}
		channels := keys(wanted)
		if len(channels) == 0 {
			channels = []string{heartbeat}
		}
		var changed []string
		var position string
		call, cancel := l.untilChanges(ctx, timeout+l.client.options.Timeout, goesOn)
		err := conn.QueryRow(call, callWait, channels, null(l.position), fmt.Sprintf("%f s", longest.Seconds())).Scan(&changed, &position)
		canceled := errors.Is(call.Err(), context.Canceled)
		cancel()
		forgetNotifications(conn)
		var pgError *pgconn.PgError
		switch {
		case err == nil && first && l.connected != nil && serverOf(position) != serverOf(l.position):
			// This is a connection for other channels: the live queries have theirs.
			return errors.New("the connection leads to another server")
		case err == nil:
			first = false
			l.setPosition(position)
			if l.connected == nil {
				l.begin(connected)
			}
			l.tellChanged(wanted, set(changed))
			if len(changed) > 0 {
				sleep(ctx, l.client.options.MinInterval)
			}
		case canceled && ctx.Err() == nil:
			return nil // pgx closes a connection whose query is canceled: wait for the other channels on a new one
		case errors.As(err, &pgError) && pgError.Code == "57014":
			// a timeout that the server has
		default:
			return err
		}
	}
}

// forgetNotifications forgets those that other clients of a pooler listen for, which pgx collects.
func forgetNotifications(conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for err := error(nil); err == nil; {
		_, err = conn.WaitForNotification(ctx) // only what is there
	}
}

func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
}

func null(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func set(list []string) map[string]bool {
	set := map[string]bool{}
	for _, key := range list {
		set[key] = true
	}
	return set
}

// isPermanent tells errors that another attempt does not mend: authorization, no such database, no
// such feature.
func isPermanent(err error) bool {
	var attempts interface{ Unwrap() []error }
	if errors.As(err, &attempts) { // with several addresses, the last one counts
		all := attempts.Unwrap()
		err = all[len(all)-1]
	}
	var pgError *pgconn.PgError
	if errors.As(err, &pgError) {
		return strings.Contains(" 28 3D 42 0A ", " "+pgError.Code[:2]+" ")
	}
	return errors.Is(err, ErrNoListen) || errors.Is(err, errNoWait) || strings.Contains(err.Error(), "x509")
}
