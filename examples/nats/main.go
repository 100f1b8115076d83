// Publishes the notifications of a database to NATS JetStream, each exactly once and in
// commit order. It reads them from a replication slot: pinpoint.replicate has to be on.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A flag about NATS has the name and the variable that the program "nats" has for it.
var (
	database    = text("postgres", "DATABASE_URL", "", "connection string; libpq's variables are read too")
	slot        = text("slot", "PINPOINT_SLOT", "pinpoint_nats", "replication slot, created if missing")
	publication = text("publication", "PINPOINT_PUBLICATION", "pinpoint_nats", "publication, created without tables if missing")
	servers     = text("server", "NATS_URL", nats.DefaultURL, "NATS servers, separated by commas")
	creds       = text("creds", "NATS_CREDS", "", "credentials file")
	nkey        = text("nkey", "NATS_NKEY", "", "file with the seed of an NKEY")
	ca          = text("tlsca", "NATS_CA", "", "file with certificates of authorities")
	cert        = text("tlscert", "NATS_CERT", "", "file with a client certificate")
	key         = text("tlskey", "NATS_KEY", "", "file with its private key")
	stream      = text("stream", "PINPOINT_STREAM", "", "stream, created if missing (default pg_<database>)")
	listen      = text("metrics", "PINPOINT_METRICS", "", "address for Prometheus, such as :9464")
	replicas    = flag.Int("replicas", 1, "replicas of the stream, if it is created")
	window      = flag.Int("window", 4096, "greatest number of notifications that JetStream has not acknowledged")

	published  = counter("published_total", "Notifications stored by JetStream.")
	duplicates = counter("duplicates_total", "Notifications sent that JetStream had stored before.")
	skipped    = counter("skipped_total", "Notifications not sent, as the stream has them.")
	malformed  = counter("malformed_total", "Messages that could not be read, and notifications larger than max_payload of NATS.")
	slots      = counter("slots_created_total", "Replication slots created.")
	lag        = promauto.NewGauge(prometheus.GaugeOpts{Name: "pinpoint_nats_lag_bytes", Help: "WAL that the slot is behind."})
)

func text(name, variable, value, usage string) *string {
	return flag.String(name, cmp.Or(os.Getenv(variable), value), usage+" ($"+variable+")")
}

func counter(name, help string) prometheus.Counter {
	return promauto.NewCounter(prometheus.CounterOpts{Name: "pinpoint_nats_" + name, Help: help})
}

func main() {
	flag.Parse()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *listen != "" {
		go func() {
			slog.Error("metrics", "error", http.ListenAndServe(*listen, promhttp.Handler()))
			os.Exit(1)
		}()
	}
	const least, most = 100 * time.Millisecond, 30 * time.Second
	for retry := least; ctx.Err() == nil; retry = min(2*retry, most) {
		started := time.Now()
		err := run(ctx)
		if time.Since(started) > most {
			retry = least
		}
		wait := retry/2 + rand.N(retry)
		slog.Warn("disconnected", "reason", err, "retry_in", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// session has a connection to each side. When either fails, the session ends, and the next
// one goes on from the end of the stream.
type session struct {
	sql      *pgx.Conn
	conn     *pgconn.PgConn // for replication
	server   pglogrepl.IdentifySystemResult
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   string
	subject  string // without the channel
	fail     context.CancelCauseFunc
	last, at position     // of the last notification that the stream had, and of the present one
	id       string       // Nats-Msg-Id of the present one, without its number
	in       *transaction // of the present one; nil between transactions

	stored    atomic.Uint64 // JetStream has stored all messages up to this sequence number
	mu        sync.Mutex    // for what follows
	held      *nats.Msg     // the last message, if it is not sent yet
	sent      uint64        // sequence number that the last message gets
	asked     uint64        // that of the last one that JetStream was asked to acknowledge
	points    []point       // not confirmed yet, in order
	confirmed pglogrepl.LSN
}

// position is where a notification is in the WAL.
type position struct {
	commit pglogrepl.LSN // of the commit record
	number int           // in the transaction, from 0
}

// point: the slot can be confirmed up to lsn when the message seq is stored.
type point struct {
	seq uint64
	lsn pglogrepl.LSN
}

// ackTimeout is how long JetStream may take to store a message.
const ackTimeout = 10 * time.Second

// headroom: bytes of a message for NATS that its headers take, at most.
const headroom = 512

// run publishes until parent is cancelled or a side fails, and returns the reason.
func run(parent context.Context) error {
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	s := &session{fail: fail}
	config, err := pgx.ParseConfig(*database)
	if err != nil {
		return err
	}
	if s.sql, err = pgx.ConnectConfig(ctx, config); err != nil {
		return err
	}
	defer s.sql.Close(context.Background())
	config.RuntimeParams["replication"] = "database"
	if s.conn, err = pgconn.ConnectConfig(ctx, &config.Config); err != nil {
		return err
	}
	defer s.conn.Close(context.Background())
	if err = s.openSlot(ctx); err != nil {
		return err
	}
	defer func() { s.nc.Close() }()
	if err = s.openStream(ctx); err != nil {
		return err
	}
	err = pglogrepl.StartReplication(ctx, s.conn, *slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", "messages 'on'", "publication_names '" + pgx.Identifier{*publication}.Sanitize() + "'"}})
	if err != nil {
		return err
	}
	slog.Info("connected", "slot", *slot, "stream", s.stream, "sequence", s.sent, "commit", s.last.commit)

	// This ends the read that is under way, and leaves the connection open for a confirmation.
	defer context.AfterFunc(ctx, func() { _ = s.conn.Conn().SetReadDeadline(time.Now()) })()
	done := make(chan struct{})
	go func() { fail(s.confirm(ctx)); close(done) }()
	for err == nil {
		err = s.receive(ctx)
	}
	fail(err)
	<-done
	if parent.Err() != nil {
		ending, cancel := context.WithTimeout(context.Background(), ackTimeout)
		defer cancel()
		_ = s.await(ending, 0)
	}
	return errors.Join(context.Cause(ctx), s.sendConfirmation())
}

// openSlot creates the publication and the slot if they are missing. The publication comes
// first, as pgoutput looks for it as of the transactions that it decodes.
func (s *session) openSlot(ctx context.Context) (err error) {
	if s.server, err = pglogrepl.IdentifySystem(ctx, s.conn); err != nil {
		return err
	}
	var exists bool
	err = s.sql.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", *publication).Scan(&exists)
	if err == nil && !exists {
		_, err = s.sql.Exec(ctx, "CREATE PUBLICATION "+pgx.Identifier{*publication}.Sanitize())
	}
	if err != nil {
		return err
	}
	failover := map[bool]string{true: ", failover => true"}[s.conn.ParameterStatus("server_version") >= "17"]
	created, err := s.sql.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput'"+failover+
		") WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", *slot)
	if created.RowsAffected() > 0 {
		slots.Inc()
		slog.Warn("slot created: what was notified earlier is not published", "slot", *slot)
	}
	return err
}

// openStream connects to NATS, creates the stream if it is missing, and reads its end.
func (s *session) openStream(ctx context.Context) (err error) {
	// nats.go could connect again by itself, but what was lost on its way has to be read again.
	options := []nats.Option{nats.Name("pg_pinpoint bridge"), nats.NoReconnect(),
		nats.ClosedHandler(func(*nats.Conn) { s.fail(nats.ErrDisconnected) })}
	for set, option := range map[*string]nats.Option{ca: nats.RootCAs(*ca),
		cert: nats.ClientCert(*cert, *key), creds: nats.UserCredentials(*creds)} {
		if *set != "" {
			options = append(options, option)
		}
	}
	if *nkey != "" {
		seed, err := nats.NkeyOptionFromSeed(*nkey)
		if err != nil {
			return err
		}
		options = append(options, seed)
	}
	if s.nc, err = nats.Connect(*servers, options...); err != nil {
		return err
	}
	s.js, err = jetstream.New(s.nc, jetstream.WithPublishAsyncTimeout(ackTimeout), jetstream.WithPublishAsyncAckHandler(s.acknowledged),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { s.fail(err) }))
	if err != nil {
		return err
	}
	s.subject = "pg." + token(s.server.DBName) + "."
	s.stream = cmp.Or(*stream, "pg_"+token(s.server.DBName))
	st, err := s.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		st, err = s.js.CreateStream(ctx, jetstream.StreamConfig{Name: s.stream, Subjects: []string{s.subject + "*"}, Replicas: *replicas})
	}
	if err != nil {
		return err
	}
	s.sent = st.CachedInfo().State.LastSeq
	s.asked = s.sent
	s.stored.Store(s.sent)
	if s.sent == 0 {
		return nil
	}
	leader, err := s.nc.JetStream() // this interface asks the leader, even if the stream has allow_direct
	if err != nil {
		return err
	}
	message, err := leader.GetMsg(s.stream, s.sent)
	if err == nil {
		s.last, err = s.positionOf(ctx, message.Header.Get(jetstream.MsgIDHeader))
	} else if !errors.Is(err, nats.ErrMsgNotFound) {
		return err
	}
	if err != nil {
		slog.Error("what the stream has is unknown: notifications may be published twice", "error", err)
	}
	return nil
}

// positionOf reads a Nats-Msg-Id: system identifier, timeline, commit, number.
func (s *session) positionOf(ctx context.Context, id string) (p position, err error) {
	var timeline, parent int32
	var high, low uint32
	n, _ := fmt.Sscanf(id, s.server.SystemID+"-%d-%X/%X-%d", &timeline, &high, &low, &p.number)
	p.commit = pglogrepl.LSN(high)<<32 | pglogrepl.LSN(low)
	if n == 4 && timeline == s.server.Timeline {
		return p, nil
	}
	history, err := pglogrepl.TimelineHistory(ctx, s.conn, s.server.Timeline)
	for _, line := range strings.Split(string(history.Content), "\n") {
		fields, _ := fmt.Sscanf(line, "%d\t%X/%X", &parent, &high, &low)
		if n == 4 && fields == 3 && parent == timeline {
			// A standby was promoted here. Of later commits on its own timeline the stream has none.
			if end := pglogrepl.LSN(high)<<32 | pglogrepl.LSN(low); p.commit >= end {
				p = position{end, -1}
			}
			return p, nil
		}
	}
	return position{}, errors.Join(err, fmt.Errorf("Nats-Msg-Id %q is not of this cluster", id))
}

// receive handles one message of PostgreSQL.
func (s *session) receive(ctx context.Context) error {
	raw, err := s.conn.ReceiveMessage(context.Background())
	if err != nil {
		return err
	}
	if notice, ok := raw.(*pgproto3.NoticeResponse); ok {
		slog.Warn("notice of PostgreSQL", "message", notice.Message)
		return nil
	}
	copied, ok := raw.(*pgproto3.CopyData)
	if !ok {
		return fmt.Errorf("replication ended: %+v", raw)
	}
	if copied.Data[0] == pglogrepl.PrimaryKeepaliveMessageByteID {
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(copied.Data[1:])
		if err == nil && s.in == nil {
			s.addPoint(keepalive.ServerWALEnd)
		}
		if err == nil && keepalive.ReplyRequested {
			err = s.sendConfirmation()
		}
		return err
	}
	data, err := pglogrepl.ParseXLogData(copied.Data[1:])
	if err != nil {
		return err
	}
	message, err := pglogrepl.Parse(data.WALData)
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		s.in, s.at = &transaction{}, position{m.FinalLSN, -1}
		s.id = fmt.Sprintf("%s-%d-%s-", s.server.SystemID, s.server.Timeline, m.FinalLSN)
	case *pglogrepl.LogicalDecodingMessage:
		if !m.Transactional || m.Prefix != "pg_pinpoint" {
			return nil
		}
		err = s.in.read(m.Content, func(channel, payload string) error { return s.publish(ctx, channel, payload) })
		if errors.Is(err, errMalformed) {
			malformed.Inc()
			slog.Error("left out", "reason", err, "commit", s.at.commit)
			return nil
		}
	case *pglogrepl.CommitMessage:
		s.in = nil
		s.addPoint(m.TransactionEndLSN)
	}
	return err
}

// publish sends a notification, or holds it until the next one or an acknowledgement comes.
// So JetStream is asked to acknowledge the last of many, but only some of the others:
// each acknowledgement takes time in the server and here.
func (s *session) publish(ctx context.Context, channel, payload string) error {
	s.at.number++
	if s.at.commit < s.last.commit || s.at.commit == s.last.commit && s.at.number <= s.last.number {
		skipped.Inc()
		return nil
	}
	if len(payload)+headroom > int(s.nc.MaxPayload()) {
		malformed.Inc()
		slog.Error("left out", "reason", "larger than max_payload of NATS", "bytes", len(payload), "channel", channel, "commit", s.at.commit)
		return nil
	}
	if err := s.await(ctx, uint64(max(*window, 1))-1); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.send(s.sent-s.asked > uint64(*window/4))
	// JetStream stores a message only as the next of the stream. So if one is lost on its way,
	// those after it are not stored; and of two bridges only one can go on.
	s.held = &nats.Msg{Subject: s.subject + token(channel), Data: []byte(payload), Header: nats.Header{
		jetstream.MsgIDHeader:           {s.id + strconv.Itoa(s.at.number)},
		jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(s.sent, 10)}}}
	s.sent++
	if err == nil && s.stored.Load() == s.asked {
		err = s.send(true)
	}
	return err
}

// send sends the message that is held, if there is one, and may ask for its acknowledgement.
func (s *session) send(ask bool) (err error) {
	message := s.held
	s.held = nil
	if message != nil && ask {
		s.asked = s.sent
		_, err = s.js.PublishMsgAsync(message)
	} else if message != nil {
		err = s.nc.PublishMsg(message)
	}
	return err
}

// acknowledged: as a message is stored only as the next one, all before it are stored too.
func (s *session) acknowledged(_ jetstream.JetStream, message *nats.Msg, ack *jetstream.PubAck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := message.Header.Get(jetstream.ExpectedLastSeqHeader); before != strconv.FormatUint(ack.Sequence-1, 10) {
		s.fail(fmt.Errorf("the message to come after %s is in the stream as %d", before, ack.Sequence))
		return
	}
	counter := published
	if ack.Duplicate {
		counter = duplicates
	}
	counter.Add(float64(ack.Sequence - s.stored.Swap(ack.Sequence)))
	if ack.Sequence == s.asked {
		if err := s.send(true); err != nil {
			s.fail(err)
		}
	}
}

// await waits until JetStream has stored all messages but n. It needs no waking: JetStream has
// enough to do meanwhile.
func (s *session) await(ctx context.Context, n uint64) error {
	for s.sent-s.stored.Load() > n && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// addPoint: PostgreSQL need not keep what is before lsn, when all that was sent is stored.
func (s *session) addPoint(lsn pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.points = append(s.points, point{s.sent, lsn})
}

// confirm confirms the slot every second.
func (s *session) confirm(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
		var bytes float64
		if err := s.sql.QueryRow(ctx, `SELECT pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
			ELSE pg_current_wal_flush_lsn() END, confirmed_flush_lsn)::float8 FROM pg_replication_slots
			WHERE slot_name = $1`, *slot).Scan(&bytes); err != nil {
			return err
		}
		lag.Set(bytes)
		if err := s.sendConfirmation(); err != nil {
			return err
		}
	}
}

func (s *session) sendConfirmation() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.points) > 0 && s.points[0].seq <= s.stored.Load() {
		s.confirmed = max(s.confirmed, s.points[0].lsn)
		s.points = s.points[1:]
	}
	return pglogrepl.SendStandbyStatusUpdate(context.Background(), s.conn,
		pglogrepl.StandbyStatusUpdate{WALWritePosition: s.confirmed})
}
