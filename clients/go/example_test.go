package pinpoint_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	pinpoint "repository.invalid/pg_pinpoint/clients/go"
)

// Server-sent events, which end with the request of the browser.
func Example_serverSentEvents() {
	client, err := pinpoint.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	http.Handle("/orders", serveEvents(client, "orders"))
}

func serveEvents(client *pinpoint.Client, channel string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		subscription, err := client.Subscribe(channel)
		if err != nil {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		defer subscription.Close()
		w.Header().Set("Content-Type", "text/event-stream")
		for event, err := range subscription.All(r.Context()) {
			if err != nil {
				return // the browser has gone, or the client has ended
			}
			switch event.(type) {
			case pinpoint.Changed, pinpoint.Notification:
				fmt.Fprint(w, "data: changed\n\n")
				if http.NewResponseController(w).Flush() != nil {
					return
				}
			}
		}
	}
}

// Cache keeps values that are read from the tables of a channel. A value is kept only if no event came since before it
// was read. Nothing is kept while the client is not connected. A lost connection is noticed after three heartbeats, and
// values may be old until then.
type Cache struct {
	mu         sync.Mutex
	generation int  // of the tables
	told, lost bool // the client listens on the channel, after the first Changed; not now
	values     map[string]any
}

// Follow drops values when the tables change, until an error.
func (c *Cache) Follow(ctx context.Context, subscription *pinpoint.Subscription) error {
	for event, err := range subscription.All(ctx) {
		c.take(event)
		if err != nil {
			return err
		}
	}
	c.take(pinpoint.Disconnected{})
	return pinpoint.ErrClosed
}

func (c *Cache) take(event pinpoint.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch event.(type) {
	case pinpoint.Connected:
		c.lost = false
	case pinpoint.Changed:
		c.told, c.lost = true, false
	case pinpoint.Notification:
	default: // Disconnected, or nil with an error
		c.lost = true
	}
	c.generation++
	c.values = map[string]any{}
}

// Get returns a value, which read reads if it is not kept.
func (c *Cache) Get(key string, read func() (any, error)) (any, error) {
	c.mu.Lock()
	value, kept := c.values[key]
	before, follows := c.generation, c.told && !c.lost
	c.mu.Unlock()
	if kept {
		return value, nil
	}
	value, err := read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && follows && c.generation == before {
		c.values[key] = value
	}
	return value, err
}

// A job queue with 50 workers, which share one client. Any number of processes can run. It needs a table that is watched:
// CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs').
//
// Behind a pooler in transaction mode, use WithMode(Wait). With wait, the pool of the pooler must be larger than the
// number of clients, as each client holds a connection nearly all the time: larger by the number of jobs that run at the
// same time.
func Example_jobQueue() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	config.MaxConns = 50
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared: a pooler may change the session
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		panic(err)
	}
	client, err := pinpoint.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	fmt.Println(runJobs(ctx, client, pool, func(_ context.Context, payload string) error {
		fmt.Println("done:", payload)
		return nil
	}))
}

const takeJob = `DELETE FROM jobs WHERE id = (SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING payload`

// runJobs has a worker for each connection of the pool, until ctx or the client ends. A job is done again if it returns an
// error, or if its connection is lost.
func runJobs(ctx context.Context, client *pinpoint.Client, pool *pgxpool.Pool, do func(context.Context, string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := client.Subscribe("jobs")
	if err != nil {
		return err
	}
	defer events.Close()
	looks := make(chan bool, 1)
	look := func() {
		select {
		case looks <- true:
		default: // one look is enough for any number of events
		}
	}
	work := func(tx pgx.Tx) error {
		var payload string
		if err := tx.QueryRow(ctx, takeJob).Scan(&payload); err != nil {
			return err
		}
		look() // there may be more, for the other workers
		return do(ctx, payload)
	}
	for range pool.Config().MaxConns {
		go func() {
			for {
				select {
				case <-looks:
				case <-time.After(time.Minute): // another process may have ended in the middle of a job
				case <-ctx.Done():
					return
				}
				if err := pgx.BeginFunc(ctx, pool, work); err == nil {
					look()
				} else if !errors.Is(err, pgx.ErrNoRows) {
					time.AfterFunc(time.Second, look)
				}
			}
		}()
	}
	for _, err = range events.All(ctx) {
		look()
	}
	return err
}

// ---- Tests of the examples --------------------------------------------------------

// connect connects to the server of the tests.
func connect(t *testing.T) (*pgx.ConnConfig, *pgx.Conn) {
	t.Helper()
	dsn := os.Getenv("PINPOINT_DSN")
	if dsn == "" {
		t.Skip("PINPOINT_DSN is not set")
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return config, conn
}

// newClient makes a client, and returns also what executes a statement, and what terminates the sessions of the client.
func newClient(t *testing.T) (client *pinpoint.Client, execute func(string), terminate func()) {
	config, conn := connect(t)
	name := fmt.Sprint(t.Name(), os.Getpid())
	config.RuntimeParams["application_name"] = name
	client, err := pinpoint.NewWithConfig(t.Context(), config, pinpoint.WithBackoff(10*time.Millisecond, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	execute = func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Error(err)
		}
	}
	return client, execute, func() {
		execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '" + name + "'")
	}
}

func TestServerSentEvents(t *testing.T) {
	client, execute, terminate := newClient(t)
	handler, ended := serveEvents(client, "sse"), make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler(w, r)
		close(ended)
	}))
	defer server.Close()
	browser := http.Client{Timeout: time.Minute}
	response, err := browser.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(response.Body)
	for range 3 { // the first Changed, and after each lost connection, what was notified meanwhile
		if line, err := lines.ReadString('\n'); err != nil || line != "data: changed\n" {
			t.Fatal(line, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		terminate()
		execute("NOTIFY sse")
	}
	response.Body.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the request of the browser does not end the events")
	}
}

func TestCache(t *testing.T) {
	client, execute, terminate := newClient(t)
	subscription, err := client.Subscribe("cached")
	if err != nil {
		t.Fatal(err)
	}
	cache, ended := &Cache{}, make(chan error)
	go func() { ended <- cache.Follow(t.Context(), subscription) }()
	reads := 0
	read := func() (any, error) { reads++; return reads, nil }
	until := func(condition func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not within a minute")
			}
		}
	}
	get := func() int { value, _ := cache.Get("key", read); return value.(int) }
	until(func() bool { return get() == get() })
	old := get()
	execute("NOTIFY cached")
	until(func() bool { return get() > old })
	// What is notified while the connection is lost.
	for range 5 {
		until(func() bool { return get() == get() })
		old = get()
		terminate()
		execute("NOTIFY cached")
		until(func() bool { return get() > old })
	}
	until(func() bool { return get() == get() })
	// An event comes while a value is read.
	_, _ = cache.Get("other", func() (any, error) {
		generation := func() int { cache.mu.Lock(); defer cache.mu.Unlock(); return cache.generation }
		before := generation()
		execute("NOTIFY cached")
		until(func() bool { return generation() > before })
		return read()
	})
	old = reads
	if value, _ := cache.Get("other", read); value == old {
		t.Error("a value is kept that was read before an event")
	}
	subscription.Close()
	if err := <-ended; !errors.Is(err, pinpoint.ErrClosed) || get() == get() {
		t.Error(err)
	}
}

// pgBouncer starts a PgBouncer in transaction mode before the server, and returns a connection string. Its pool has place
// for a client and 50 workers.
func pgBouncer(t *testing.T) string {
	config, _ := connect(t)
	program := "/usr/sbin/pgbouncer"
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("pgbouncer"); err != nil {
			t.Skip("there is no PgBouncer")
		}
	}
	folder, err := os.MkdirTemp("", "") // that of t has a path that is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	ini, password := filepath.Join(folder, "pgbouncer.ini"), ""
	if config.Password != "" {
		password = "password='" + config.Password + "'"
	}
	text := fmt.Sprintf("[databases]\n* = host=%s port=%d user=%s %s\n[pgbouncer]\nunix_socket_dir = %s\nauth_type = any\n"+
		"pool_mode = transaction\ndefault_pool_size = 55\n", config.Host, config.Port, config.User, password, folder)
	if err := errors.Join(os.WriteFile(ini, []byte(text), 0o644), os.Chmod(folder, 0o777)); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "-q", ini)
	if os.Getuid() == 0 { // which it refuses; the owner of a private TMPDIR can reach the folder
		command.SysProcAttr = &syscall.SysProcAttr{Credential: otherUser(t)}
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() { _ = command.Process.Kill(); <-ended })
	for {
		if _, err := os.Stat(filepath.Join(folder, ".s.PGSQL.6432")); err == nil {
			return fmt.Sprintf("host=%s port=6432 user=u dbname=%s", folder, config.Database)
		}
		select {
		case err := <-ended:
			close(ended)
			t.Fatal("PgBouncer does not start: ", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// otherUser returns the owner of TMPDIR, or nobody if that is root.
func otherUser(t *testing.T) *syscall.Credential {
	info, err := os.Stat(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid != 0 {
		return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func TestJobQueue(t *testing.T) {
	t.Run("direct", func(t *testing.T) { testJobQueue(t, os.Getenv("PINPOINT_DSN"), pinpoint.Auto) })
	t.Run("PgBouncer", func(t *testing.T) { testJobQueue(t, pgBouncer(t), pinpoint.Wait) })
}

func testJobQueue(t *testing.T, dsn string, mode pinpoint.Mode) {
	const workers = 50
	_, conn := connect(t)
	execute := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	execute("DROP TABLE IF EXISTS jobs")
	execute("CREATE TABLE jobs (id bigserial, payload text)")
	execute("SELECT pinpoint.watch('jobs')")
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns, config.ConnConfig.DefaultQueryExecMode = workers, pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, err := pinpoint.New(ctx, dsn, pinpoint.WithMode(mode), pinpoint.WithBackoff(10*time.Millisecond, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var mu sync.Mutex
	done, runs, running, allRun := map[string]bool{}, 0, 0, make(chan bool)
	gate := allRun // for which jobs wait
	do := func(ctx context.Context, payload string) error {
		mu.Lock()
		if running++; running == workers && runs < workers {
			close(allRun)
		}
		runs++
		opened := gate
		mu.Unlock()
		select {
		case <-opened:
			time.Sleep(50 * time.Millisecond)
		case <-ctx.Done():
			return ctx.Err()
		}
		mu.Lock()
		defer mu.Unlock()
		running--
		done[payload] = true
		return nil
	}
	ended := make(chan error)
	go func() { ended <- runJobs(ctx, client, pool, do) }()
	until := func(condition func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !condition(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not within a minute")
			}
		}
	}
	for first := 0; first < 600; first += 200 {
		if first == 200 {
			until(func() bool { mu.Lock(); defer mu.Unlock(); return running == 0 })
			mu.Lock()
			gate = make(chan bool)
			mu.Unlock()
		}
		execute(fmt.Sprintf("INSERT INTO jobs (payload) SELECT n::text FROM generate_series(%d, %d) n", first, first+199))
		if first == 200 {
			until(func() bool { mu.Lock(); defer mu.Unlock(); return running == workers })
			execute("SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = current_database()" +
				" AND backend_type = 'client backend' AND pid <> pg_backend_pid()")
			close(gate)
		}
		until(func() bool {
			var left int
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM jobs").Scan(&left); err != nil {
				t.Fatal(err)
			}
			return left == 0
		})
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, pinpoint.ErrClientClosed) {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(done) != 600 {
		t.Errorf("%d jobs were done", len(done))
	}
	if runs < 600+workers {
		t.Error("the jobs of terminated sessions did not run again")
	}
}
