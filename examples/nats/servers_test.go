package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Everything that a test waits for has to happen within this time.
const deadline = 120 * time.Second

// bridgeProgram is the program under test, built once.
var bridgeProgram string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "pinpoint-nats")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		bridgeProgram = filepath.Join(dir, "bridge")
		build := exec.Command("go", "build", "-o", bridgeProgram, ".")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitUntil waits for a condition.
func waitUntil(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", deadline, what)
		}
	}
}

// The ports that freePort has returned.
var given sync.Map

// freePort is a port that nobody has at this moment, and that was not returned before. It is below
// the range of which connections get their ports: one of them could otherwise have the port of a
// server while that is down.
func freePort(t testing.TB) (port int) {
	waitUntil(t, "a port is free", func() bool {
		port = 20000 + rand.IntN(12000)
		if _, before := given.LoadOrStore(port, true); before {
			return false
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			listener.Close()
		}
		return err == nil
	})
	return port
}

// folder is a new folder that the servers' user can write to.
func folder(t testing.TB) string {
	dir, err := os.MkdirTemp("", "pinpoint-nats")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(t, os.Chmod(dir, 0o755))
	if credential := serverUser(t); credential != nil {
		check(t, os.Chown(dir, int(credential.Uid), int(credential.Gid)))
	}
	return dir
}

// serverUser is the user that PostgreSQL runs as when root runs the tests; else nil.
func serverUser(t testing.TB) *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	postgres, err := osuser.Lookup("postgres")
	check(t, err)
	uid, _ := strconv.Atoi(postgres.Uid)
	gid, _ := strconv.Atoi(postgres.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// postgres is a PostgreSQL server with pg_pinpoint.
type postgres struct {
	dir  string
	port int
}

// program runs a program of PG_CONFIG's server.
func program(t testing.TB, name string, arguments ...string) error {
	config := os.Getenv("PG_CONFIG")
	if config == "" {
		config = "pg_config"
	}
	bindir, err := exec.Command(config, "--bindir").Output()
	check(t, err)
	command := exec.Command(filepath.Join(strings.TrimSpace(string(bindir)), name), arguments...)
	command.Dir = "/"
	command.Env = append(os.Environ(), fmt.Sprintf("PGCTLTIMEOUT=%d", int(deadline.Seconds())))
	command.SysProcAttr = &syscall.SysProcAttr{Credential: serverUser(t)}
	log, err := os.CreateTemp("", "pinpoint-nats")
	check(t, err)
	defer os.Remove(log.Name())
	command.Stdout, command.Stderr = log, log // not a pipe: a server would keep it open
	if err := command.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return nil
}

func startPostgres(t testing.TB, settings ...string) *postgres {
	p := &postgres{dir: filepath.Join(folder(t), "data"), port: freePort(t)}
	check(t, program(t, "initdb", "-D", p.dir, "-U", "postgres", "-A", "trust", "-N", "--locale=C", "--encoding=UTF8"))
	p.configure(t, append([]string{"listen_addresses = '127.0.0.1'", "unix_socket_directories = ''", "fsync = off",
		"shared_preload_libraries = 'pg_pinpoint'", "wal_level = logical", "pinpoint.replicate = on"}, settings...)...)
	p.run(t)
	p.exec(t, "CREATE EXTENSION pg_pinpoint")
	return p
}

func (p *postgres) configure(t testing.TB, settings ...string) {
	file, err := os.OpenFile(filepath.Join(p.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	defer file.Close()
	_, err = fmt.Fprintf(file, "\n%s\nport = %d\n", strings.Join(settings, "\n"), p.port)
	check(t, err)
}

// run starts the server, and stops it at the end of the test.
func (p *postgres) run(t testing.TB) {
	t.Cleanup(func() {
		_ = program(t, "pg_ctl", "-D", p.dir, "-m", "immediate", "-w", "stop")
		if t.Failed() {
			log, _ := os.ReadFile(p.dir + ".log")
			t.Logf("PostgreSQL: %s", log[max(0, len(log)-3000):])
		}
	})
	p.start(t)
}

func (p *postgres) start(t testing.TB) {
	check(t, program(t, "pg_ctl", "-D", p.dir, "-l", p.dir+".log", "-w", "start"))
}

func (p *postgres) stop(t testing.TB, mode string) {
	check(t, program(t, "pg_ctl", "-D", p.dir, "-m", mode, "-w", "stop"))
}

func (p *postgres) url() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.port)
}

func (p *postgres) connect(t testing.TB) *pgx.Conn {
	conn, err := pgx.Connect(context.Background(), p.url())
	check(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (p *postgres) exec(t testing.TB, sql string, arguments ...any) {
	t.Helper()
	conn := p.connect(t)
	defer conn.Close(context.Background())
	_, err := conn.Exec(context.Background(), sql, arguments...)
	check(t, err)
}

func (p *postgres) value(t testing.TB, sql string, arguments ...any) (value string) {
	t.Helper()
	conn := p.connect(t)
	defer conn.Close(context.Background())
	check(t, conn.QueryRow(context.Background(), sql, arguments...).Scan(&value))
	return value
}

// process is a program that may be killed and started again.
type process struct {
	name      string
	arguments []string
	environ   []string
	command   *exec.Cmd
	log       logBuffer
}

type logBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func startProcess(t testing.TB, environ []string, name string, arguments ...string) *process {
	p := &process{name: name, arguments: arguments, environ: environ}
	p.start(t)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log := p.log.String()
			t.Logf("%s: %s", filepath.Base(name), log[max(0, len(log)-3000):])
		}
	})
	return p
}

func (p *process) start(t testing.TB) {
	p.command = exec.Command(p.name, p.arguments...)
	p.command.Env = append(os.Environ(), p.environ...)
	p.command.Stdout, p.command.Stderr = &p.log, &p.log
	check(t, p.command.Start())
}

// kill is SIGKILL.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// natsServer is a NATS server with JetStream.
type natsServer struct {
	*process
	url string
	js  jetstream.JetStream
}

func startNATS(t testing.TB, configuration string, options ...nats.Option) *natsServer {
	dir, port := folder(t), freePort(t)
	file := filepath.Join(dir, "nats.conf")
	check(t, os.WriteFile(file, fmt.Appendf(nil, "listen: 127.0.0.1:%d\njetstream { store_dir: %q }\n%s", port, dir, configuration), 0o644))
	n := &natsServer{url: fmt.Sprintf("nats://127.0.0.1:%d", port)}
	n.process = startProcess(t, nil, "nats-server", "-c", file)
	var conn *nats.Conn
	waitUntil(t, "the NATS server answers", func() (ok bool) {
		var err error
		conn, err = nats.Connect(n.url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))...)
		return err == nil
	})
	t.Cleanup(conn.Close)
	var err error
	n.js, err = jetstream.New(conn, jetstream.WithDefaultTimeout(deadline))
	check(t, err)
	return n
}

// startCluster starts three NATS servers that replicate streams. The key is the server's name.
func startCluster(t testing.TB) map[string]*natsServer {
	names := []string{"one", "two", "three"}
	var routes []string
	for range names {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", freePort(t)))
	}
	cluster := map[string]*natsServer{}
	for i, name := range names {
		cluster[name] = startNATS(t, fmt.Sprintf("server_name: %s\ncluster { name: test, listen: %q, routes: [%s] }\n",
			name, strings.TrimPrefix(routes[i], "nats://"), strings.Join(routes, ", ")))
	}
	return cluster
}

// last is the sequence number of the last message of a stream, 0 if it cannot be had.
func (n *natsServer) last(stream string) uint64 {
	if info := n.info(stream); info != nil {
		return info.State.LastSeq
	}
	return 0
}

// leader is the name of the server of a cluster that leads a stream, "" if there is none.
func (n *natsServer) leader(stream string) string {
	if info := n.info(stream); info != nil {
		return info.Cluster.Leader
	}
	return ""
}

func (n *natsServer) info(stream string) *jetstream.StreamInfo {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := n.js.Stream(ctx, stream)
	if err != nil {
		return nil
	}
	return s.CachedInfo()
}

// message is one of a stream, as subject and payload.
type message struct{ subject, payload string }

// messages returns the whole stream, and fails if a sequence number is missing.
func (n *natsServer) messages(t testing.TB, stream string) (result []message) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	consumer, err := n.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	check(t, err)
	messages, err := consumer.Messages()
	check(t, err)
	defer messages.Stop()
	s, err := n.js.Stream(ctx, stream)
	check(t, err)
	for last := s.CachedInfo().State.LastSeq; uint64(len(result)) < last; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		check(t, err)
		metadata, err := m.Metadata()
		check(t, err)
		if metadata.Sequence.Stream != uint64(len(result))+1 {
			t.Fatalf("message %d of the stream is missing", len(result)+1)
		}
		result = append(result, message{m.Subject(), string(m.Data())})
	}
	return result
}

// bridge is the program under test.
type bridge struct {
	*process
	metrics string
}

func startBridge(t testing.TB, url string, n *natsServer, flags ...string) *bridge {
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	flags = append([]string{"-metrics", address}, flags...)
	return &bridge{startProcess(t, []string{"DATABASE_URL=" + url, "NATS_URL=" + n.url}, bridgeProgram, flags...), address}
}

// isConnected: it reads from its slot.
func (b *bridge) isConnected() bool {
	return strings.Contains(b.log.String(), "msg=connected")
}

// metric is the value of one of the bridge's metrics, -1 if it cannot be had.
func (b *bridge) metric(name string) float64 {
	response, err := http.Get("http://" + b.metrics + "/metrics")
	if err != nil {
		return -1
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	found := regexp.MustCompile(`(?m)^pinpoint_nats_` + name + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return -1
	}
	value, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		return -1
	}
	return value
}
