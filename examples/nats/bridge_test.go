package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
)

const streamName = "pg_postgres"

// Channels that are no NATS tokens, and what they become.
var channels = []struct{ name, subject string }{
	{"jobs", "pg.postgres.jobs"},
	{"a b", "pg.postgres.a%20b"},
	{"a.b.>", "pg.postgres.a%2Eb%2E%3E"},
	{"*", "pg.postgres.%2A"},
	{"100%", "pg.postgres.100%25"},
	{"Änd\nern\\", "pg.postgres.%C3%84nd%0Aern%5C"},
	{"$SYS_1-2", "pg.postgres.%24SYS_1-2"},
}

func subjectOf(channel string) string {
	for _, c := range channels {
		if c.name == channel {
			return c.subject
		}
	}
	return "pg.postgres." + channel
}

func TestChannelsBecomeTokens(t *testing.T) {
	for _, c := range channels {
		if got := "pg.postgres." + token(c.name); got != c.subject {
			t.Errorf("%q is %s", c.name, got)
		}
	}
	if got := token("\xff"); got != "%FF" {
		t.Errorf("what is not UTF-8 is %s", got)
	}
}

func TestMessagesAreRead(t *testing.T) {
	for _, test := range []struct {
		name     string
		messages []string
		expected []string
		fails    bool
	}{
		{"one", []string{"1 4711 2 3 56 0\njobs\ncache\n0\t42\n1\tusers/7\n0\t43\n"}, []string{"jobs 42", "cache users/7", "jobs 43"}, false},
		{"escapes", []string{"1 1 1 1 9 0\na\\nb\\\\n\n0\t\\\\n\\n\tä\n"}, []string{"a\nb\\n \\n\n\tä"}, false},
		{"no payload", []string{"1 1 1 1 9 0\na\n0\t\n"}, []string{"a "}, false},
		{"pieces", []string{"1 1 2 2 99 0\na\n", "1 1 2 2 99 9\nb\n0\tx\n", "1 1 2 2 99 19\n1\ty\n"}, []string{"a x", "b y"}, false},
		{"two in a transaction", []string{"1 1 1 1 9 0\na\n0\tx\n", "1 1 1 1 9 0\nb\n0\ty\n"}, []string{"a x", "b y"}, false},
		{"another form", []string{"2 1 1 1 9 0\na\n0\tx\n"}, nil, true},
		{"nothing", []string{""}, nil, true},
		{"no numbers", []string{"hello\n"}, nil, true},
		{"channel that is not there", []string{"1 1 1 1 9 0\na\n1\tx\n"}, nil, true},
		{"channel before the first", []string{"1 1 1 1 9 0\na\n-1\tx\n"}, nil, true},
		{"channel without a name", []string{"1 1 1 1 9 0\n\n0\tx\n"}, nil, true},
		{"channel with a long name", []string{"1 1 1 1 9 0\n" + strings.Repeat("a", 256) + "\n0\tx\n"}, nil, true},
		{"long payload", []string{"1 1 1 1 9 0\na\n0\t" + strings.Repeat("x", 1<<17) + "\n"}, []string{"a " + strings.Repeat("x", 1<<17)}, false},
		{"negative number of channels", []string{"1 1 -1 1 9 0\na\n0\tx\n"}, nil, true},
	} {
		var in transaction
		var got []string
		var err error
		for _, message := range test.messages {
			err = errors.Join(err, in.read([]byte(message), func(channel, payload string) error {
				got = append(got, channel+" "+payload)
				return nil
			}))
		}
		if !slices.Equal(got, test.expected) || errors.Is(err, errMalformed) != test.fails {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
	}
}

// setting is a number from the environment.
func setting(t testing.TB, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := strconv.Atoi(text)
	check(t, err)
	return value
}

// writers commit transactions that notify, through any failure of the server. A row of the
// table "committed" tells which notifications a transaction has.
type writers struct {
	allowed, committed atomic.Int64 // notifications
	group              sync.WaitGroup
}

const writerCount = 4

func startWriters(t *testing.T, p *postgres, total int, seed uint64) *writers {
	p.exec(t, "CREATE TABLE committed (writer int, first int, n int, PRIMARY KEY (writer, first))")
	names := make([]string, len(channels))
	for i, c := range channels {
		names[i] = c.name
	}
	w := &writers{}
	for writer := range writerCount {
		random := rand.New(rand.NewPCG(seed, uint64(writer)))
		w.group.Go(func() {
			var conn *pgx.Conn
			ctx, next := context.Background(), 0
			for share := total / writerCount; next < share; {
				n, padding := 1+random.IntN(40), random.IntN(20)
				if random.IntN(300) == 0 {
					n, padding = 2000, 300 // several messages
				}
				n = min(n, share-next)
				for w.committed.Load() > w.allowed.Load() {
					time.Sleep(time.Millisecond)
				}
				err := errors.New("not connected")
				for first := true; err != nil; first = false {
					if conn == nil || conn.IsClosed() {
						if conn, err = pgx.Connect(ctx, p.url()); err != nil {
							time.Sleep(10 * time.Millisecond)
							continue
						}
					}
					var committed bool // before the connection was lost
					if !first {
						if err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM committed WHERE writer = $1 AND first = $2)",
							writer, next).Scan(&committed); err != nil || committed {
							continue
						}
					}
					_, err = conn.Exec(ctx, `WITH row AS (INSERT INTO committed VALUES ($1, $2, $3))
						SELECT count(pg_notify(($4::text[])[1 + i % cardinality($4)], $1::int || '/' || i || repeat('x', $5)))
						FROM generate_series($2::int, $2::int + $3::int - 1) i`, writer, next, n, names, padding)
				}
				next += n
				w.committed.Add(int64(n))
			}
			conn.Close(ctx)
		})
	}
	return w
}

// reference is what a slot has, read by SQL: all notifications in commit order.
func reference(t *testing.T, p *postgres, slot string) (result []message) {
	conn := p.connect(t)
	for {
		rows, err := conn.Query(context.Background(), `SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, 20000,
			'proto_version', '1', 'publication_names', 'pinpoint_nats', 'messages', 'on')`, slot)
		check(t, err)
		n := 0
		var names []string
		for rows.Next() {
			n++
			data := rows.RawValues()[0]
			if data[0] != 'M' {
				continue
			}
			_, content, _ := strings.Cut(string(data[10:]), "\x00")
			content = content[4:]
			if int(binary.BigEndian.Uint32(data[len(data)-len(content)-4:])) != len(content) {
				t.Fatal("not a message of pgoutput")
			}
			lines := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
			head := strings.Fields(lines[0])
			if head[5] == "0" {
				names = nil
			}
			all, _ := strconv.Atoi(head[2])
			for _, line := range lines[1:] {
				if len(names) < all {
					line = strings.ReplaceAll(strings.ReplaceAll(line, `\n`, "\n"), `\\`, `\`)
					names = append(names, subjectOf(line))
					continue
				}
				number, payload, _ := strings.Cut(line, "\t")
				i, _ := strconv.Atoi(number)
				result = append(result, message{names[i], payload})
			}
		}
		check(t, rows.Err())
		if n == 0 {
			return result
		}
	}
}

// compare fails unless the stream has exactly what was committed, in commit order.
func compare(t *testing.T, got, expected []message) {
	for i := range min(len(got), len(expected)) {
		if got[i] != expected[i] {
			t.Fatalf("message %d of the stream is %.80q and not %.80q", i+1, got[i], expected[i])
		}
	}
	if len(got) != len(expected) {
		t.Fatalf("%d messages in the stream and not %d", len(got), len(expected))
	}
}

// duplicateWindow is the shortest that JetStream allows.
const duplicateWindow = 100 * time.Millisecond

// makeStream creates the stream before the bridge does, with a window of deduplication that
// has ended before the bridge is there again: nothing may depend on it.
func makeStream(t *testing.T, n *natsServer, replicas int) {
	waitUntil(t, "the stream is created", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := n.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: streamName, Subjects: []string{"pg.postgres.*"}, Duplicates: duplicateWindow, Replicas: replicas})
		return err == nil
	})
}

func TestExactlyOnceWhenServersAreKilled(t *testing.T) {
	total := setting(t, "BRIDGE_TEST_NOTIFICATIONS", 50_000) / writerCount * writerCount
	seed := uint64(setting(t, "BRIDGE_TEST_SEED", int(time.Now().UnixNano())))
	t.Logf("BRIDGE_TEST_NOTIFICATIONS=%d BRIDGE_TEST_SEED=%d", total, seed)
	random := rand.New(rand.NewPCG(seed, 99))

	p, n := startPostgres(t), startNATS(t, "")
	makeStream(t, n, 1)
	p.exec(t, "CREATE PUBLICATION pinpoint_nats")
	p.exec(t, "SELECT pg_create_logical_replication_slot('reference', 'pgoutput'), pg_create_logical_replication_slot('pinpoint_nats', 'pgoutput')")
	b := startBridge(t, p.url(), n)

	kills := []string{"NATS", "PostgreSQL"}
	for len(kills) < 12 {
		kills = append(kills, "bridge")
	}
	random.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
	w := startWriters(t, p, total, seed)
	started, slice := time.Now(), total/(len(kills)+1)
	for i, kill := range kills {
		w.allowed.Store(int64((i + 2) * slice))
		at := uint64(i*slice + random.IntN(slice))
		waitUntil(t, fmt.Sprintf("message %d is in the stream", at), func() bool { return n.last(streamName) >= at })
		switch kill {
		case "bridge":
			b.kill()
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
			b.start(t)
		case "NATS":
			n.kill()
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			n.start(t)
		case "PostgreSQL":
			p.stop(t, "immediate")
			p.start(t)
		}
		t.Logf("%4.1f s: %s killed at message %d", time.Since(started).Seconds(), kill, at)
	}
	w.finish(t, p, n, total)
	t.Logf("%d notifications, each once and in commit order; %.1f s", total, time.Since(started).Seconds())
}

// finish lets the writers commit the rest. Then the stream has to have all that was
// committed, once by the table, once by another slot.
func (w *writers) finish(t *testing.T, p *postgres, n *natsServer, total int) {
	w.allowed.Store(int64(total))
	w.group.Wait()
	waitUntil(t, "all messages are in the stream", func() bool { return n.last(streamName) >= uint64(total) })
	if rows := p.value(t, "SELECT sum(n)::text FROM committed"); rows != strconv.Itoa(total) {
		t.Fatalf("%s notifications committed", rows)
	}
	got := n.messages(t, streamName)
	compare(t, got, reference(t, p, "reference"))
	seen := map[string]bool{}
	for _, m := range got {
		seen[strings.TrimRight(m.payload, "x")] = true
	}
	for writer := range writerCount {
		for i := range total / writerCount {
			if !seen[fmt.Sprintf("%d/%d", writer, i)] {
				t.Fatalf("notification %d of writer %d is missing", i, writer)
			}
		}
	}
	if len(seen) != total {
		t.Fatalf("%d different notifications", len(seen))
	}
}

// A stream with three replicas. The server that leads it is killed, while others take over.
func TestExactlyOnceInACluster(t *testing.T) {
	total := setting(t, "BRIDGE_TEST_NOTIFICATIONS", 20_000) / writerCount * writerCount
	p, cluster := startPostgres(t), startCluster(t)
	p.exec(t, "CREATE PUBLICATION pinpoint_nats")
	p.exec(t, "SELECT pg_create_logical_replication_slot('reference', 'pgoutput'), pg_create_logical_replication_slot('pinpoint_nats', 'pgoutput')")
	var urls []string
	for _, n := range cluster {
		urls = append(urls, n.url)
	}
	n := cluster["one"]
	makeStream(t, n, len(cluster))
	startBridge(t, p.url(), &natsServer{url: strings.Join(urls, ",")})
	w := startWriters(t, p, total, 1)
	const kills = 2
	for i := range kills {
		w.allowed.Store(int64((i + 1) * total / (kills + 1)))
		at := uint64((2*i + 1) * total / (2*kills + 2))
		waitUntil(t, fmt.Sprintf("message %d is in the stream", at), func() bool { return n.last(streamName) >= at })
		var killed string
		waitUntil(t, "a server leads the stream", func() bool {
			killed = n.leader(streamName)
			return killed != ""
		})
		cluster[killed].kill()
		waitUntil(t, "another server leads the stream", func() bool {
			leader := n.leader(streamName)
			return leader != "" && leader != killed
		})
		t.Logf("server %s killed after message %d", killed, at)
		cluster[killed].start(t)
	}
	w.finish(t, p, n, total)
}

// Two bridges with slots of their own. One is held up, and has not noticed that the other
// has published what it is about to publish, longer ago than JetStream looks for duplicates.
func TestTwoBridgesPublishOnce(t *testing.T) {
	p, n := startPostgres(t), startNATS(t, "")
	makeStream(t, n, 1)
	p.exec(t, "CREATE PUBLICATION pinpoint_nats")
	p.exec(t, `SELECT pg_create_logical_replication_slot('reference', 'pgoutput'),
		pg_create_logical_replication_slot('one', 'pgoutput'), pg_create_logical_replication_slot('two', 'pgoutput')`)
	notify := func() {
		for range 20 {
			p.exec(t, "SELECT count(pg_notify('jobs', i::text)) FROM generate_series(1, 100) i")
		}
	}
	one := startBridge(t, p.url(), n, "-slot", "one")
	waitUntil(t, "the first bridge is connected", one.isConnected)
	notify()
	waitUntil(t, "the first bridge publishes", func() bool { return n.last(streamName) == 2000 })
	check(t, one.command.Process.Signal(syscall.SIGSTOP))
	notify()
	startBridge(t, p.url(), n, "-slot", "two", "-window", "3")
	waitUntil(t, "the second bridge publishes", func() bool { return n.last(streamName) == 4000 })
	time.Sleep(2 * duplicateWindow)
	check(t, one.command.Process.Signal(syscall.SIGCONT))
	notify()
	end := p.value(t, "SELECT pg_current_wal_lsn()::text")
	waitUntil(t, "both slots are confirmed", func() bool {
		return p.value(t, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name IN ('one', 'two') AND confirmed_flush_lsn >= $1::text::pg_lsn", end) == "2"
	})
	compare(t, n.messages(t, streamName), reference(t, p, "reference"))
}

func TestStopsWithNothingLeft(t *testing.T) {
	p, n := startPostgres(t), startNATS(t, "")
	b := startBridge(t, p.url(), n)
	waitUntil(t, "the bridge is connected", b.isConnected)
	p.exec(t, "SELECT count(pg_notify('jobs', i::text)) FROM generate_series(1, 100) i")
	p.exec(t, "NOTIFY jobs, 'the bridge knows that the transaction before is complete'")
	waitUntil(t, "messages are in the stream", func() bool { return n.last(streamName) == 101 })
	check(t, b.command.Process.Signal(syscall.SIGTERM))
	check(t, b.command.Wait())

	// A second run has nothing to skip, but perhaps the last one: its commit may have come after
	// SIGTERM. And a message that nobody understands stops nothing.
	b.start(t)
	p.exec(t, "SELECT pg_logical_emit_message(true, 'pg_pinpoint', 'not ours')")
	p.exec(t, "SET pinpoint.max_payload_size = '16MB'; SELECT pg_notify('jobs', repeat('x', length)) FROM unnest(ARRAY[100000, 2000000]) length")
	p.exec(t, "NOTIFY jobs, 'last'")
	waitUntil(t, "the last message is in the stream", func() bool { return n.last(streamName) == 103 })
	for name, expected := range map[string]float64{
		"published_total": 2, "duplicates_total": 0, "malformed_total": 2, "slots_created_total": 0} {
		waitUntil(t, fmt.Sprintf("%s is %g", name, expected), func() bool { return b.metric(name) == expected })
	}
	if skipped := b.metric("skipped_total"); skipped > 1 {
		t.Errorf("%g were skipped", skipped)
	}
	waitUntil(t, "the lag is known and small", func() bool { lag := b.metric("lag_bytes"); return lag >= 0 && lag < 1000 })

	// Nor does it hold up the server's shutdown.
	p.stop(t, "fast")
}

// How fast the bridge works off a backlog, beside pg_recvlogical, which throws away what it
// reads. Only measured when asked for: BRIDGE_TEST_BACKLOG is the number of notifications.
// A transaction with many is one message for pg_recvlogical, and JetStream stores each.
func TestThroughput(t *testing.T) {
	total := setting(t, "BRIDGE_TEST_BACKLOG", 0)
	if total == 0 {
		t.Skip("BRIDGE_TEST_BACKLOG is not set")
	}
	p, n := startPostgres(t), startNATS(t, "")
	p.exec(t, "CREATE PUBLICATION pinpoint_nats")
	for _, size := range []int{1, 20} {
		p.exec(t, "SELECT pg_create_logical_replication_slot('start', 'pgoutput')")
		p.exec(t, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
			PERFORM pg_notify('channel' || i %% 100, 'payload ' || i); IF i %% %d = 0 THEN COMMIT; END IF; END LOOP; END $$`, total, size))
		end := p.value(t, "SELECT pg_logical_emit_message(true, 'end', '')::text")
		var ratios []float64
		for run := range 3 {
			p.exec(t, `SELECT pg_copy_logical_replication_slot('start', 'pinpoint_nats'), pg_copy_logical_replication_slot('start', 'recvlogical')`)
			recvlogical := func() float64 {
				started := time.Now()
				check(t, program(t, "pg_recvlogical", "-d", p.url(), "--slot", "recvlogical", "--start", "--no-loop", "--endpos", end, "-f", "/dev/null",
					"-o", "proto_version=1", "-o", "messages=on", "-o", "publication_names=pinpoint_nats"))
				return float64(total) / time.Since(started).Seconds()
			}
			bridged := func() float64 {
				started := time.Now()
				b := startBridge(t, p.url(), n)
				waitUntil(t, "all messages are in the stream", func() bool { return n.last(streamName) == uint64(total) })
				rate := float64(total) / time.Since(started).Seconds()
				check(t, b.command.Process.Signal(syscall.SIGTERM))
				check(t, b.command.Wait())
				t.Logf("bridge: %.1f s of processor time", (b.command.ProcessState.UserTime() + b.command.ProcessState.SystemTime()).Seconds())
				check(t, n.js.DeleteStream(context.Background(), streamName))
				return rate
			}
			var read, published float64
			if run%2 == 0 {
				read, published = recvlogical(), bridged()
			} else {
				published, read = bridged(), recvlogical()
			}
			ratios = append(ratios, published/read)
			t.Logf("%d per transaction: pg_recvlogical %.0f, bridge %.0f notifications per second, ratio %.2f", size, read, published, published/read)
			p.exec(t, "SELECT pg_drop_replication_slot('pinpoint_nats'), pg_drop_replication_slot('recvlogical')")
		}
		p.exec(t, "SELECT pg_drop_replication_slot('start')")
		slices.Sort(ratios)
		if median := ratios[1]; size == 1 && median < 0.5 {
			t.Errorf("%d per transaction: the bridge has %.2f of the throughput of pg_recvlogical", size, median)
		}
	}
}

// On 17 and later the slot is on the standby too. What was published of commits that the
// failover has lost does not hide what is committed afterwards.
func TestGoesOnAfterAFailover(t *testing.T) {
	p, n := startPostgres(t), startNATS(t, "")
	if version, _ := strconv.Atoi(p.value(t, "SHOW server_version_num")); version < 170000 {
		t.Skip("failover slots are there from 17 on")
	}
	p.exec(t, "SELECT pg_create_physical_replication_slot('standby', true)")
	standby := &postgres{dir: folder(t) + "/data", port: freePort(t)}
	connection := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres", p.port)
	check(t, program(t, "pg_basebackup", "-d", connection, "-D", standby.dir, "-X", "stream", "-c", "fast", "-S", "standby"))
	check(t, os.WriteFile(standby.dir+"/standby.signal", nil, 0o644))
	standby.configure(t, "primary_conninfo = '"+connection+"'", "primary_slot_name = 'standby'", "hot_standby_feedback = on",
		"sync_replication_slots = on", "wal_receiver_status_interval = '100ms'")
	standby.run(t)
	b := startBridge(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write",
		p.port, standby.port), n)
	waitUntil(t, "the bridge is connected", b.isConnected)

	// The slot of the standby is ready when it has what the bridge has confirmed.
	p.exec(t, "NOTIFY jobs, 'before'")
	waitUntil(t, "the slot is on the standby", func() bool {
		p.exec(t, "SELECT pg_log_standby_snapshot()")
		return standby.value(t, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'pinpoint_nats' AND synced AND NOT temporary") == "1"
	})

	// The standby does not get the next commits, and is promoted without them.
	standby.exec(t, "ALTER SYSTEM SET primary_conninfo = ''")
	standby.exec(t, "SELECT pg_reload_conf()")
	waitUntil(t, "the standby receives nothing", func() bool {
		return standby.value(t, "SELECT count(*)::text FROM pg_stat_wal_receiver") == "0"
	})
	p.exec(t, "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000))") // so that these are far behind in the WAL
	for i := range 5 {
		p.exec(t, "SELECT pg_notify('jobs', $1)", fmt.Sprintf("lost %d", i))
	}
	waitUntil(t, "all are in the stream", func() bool { return n.last(streamName) == 6 })
	p.stop(t, "immediate")
	standby.exec(t, "SELECT pg_promote()")
	standby.exec(t, "NOTIFY jobs, 'after'")
	waitUntil(t, "the new primary's is in the stream", func() bool { return n.last(streamName) >= 7 })

	// Nor does the bridge publish anything twice when it is started anew.
	b.kill()
	b.start(t)
	standby.exec(t, "NOTIFY jobs, 'last'")
	waitUntil(t, "the last is in the stream", func() bool { return n.last(streamName) >= 8 })
	var expected []message
	for _, payload := range []string{"before", "lost 0", "lost 1", "lost 2", "lost 3", "lost 4", "after", "last"} {
		expected = append(expected, message{"pg.postgres.jobs", payload})
	}
	compare(t, n.messages(t, streamName), expected)
}
