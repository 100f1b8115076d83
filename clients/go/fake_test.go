package pinpoint

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const deadline = time.Minute // for what takes a moment on a machine that is not busy

// fakeServer starts the fake server of the conformance suite, and returns a connection string.
func fakeServer(t *testing.T, script string) string {
	const program = "../conformance/fake_server.py"
	if _, err := os.Stat(program); err != nil {
		t.Skip("the fake server is only in the repository")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	command := exec.Command("python3", program, script)
	input, _ := command.StdinPipe()
	output, _ := command.StdoutPipe()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { input.Close(); _ = command.Wait() })
	port, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "host=127.0.0.1 user=u dbname=d sslmode=disable port=" + strings.TrimSpace(port)
}

// client makes a client that is closed at the end of the test.
func client(t *testing.T, dsn string, options ...Option) *Client {
	t.Helper()
	c, err := New(t.Context(), dsn, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func subscribe(t *testing.T, c *Client, channels ...string) *Subscription {
	t.Helper()
	s, err := c.Subscribe(channels...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// next waits for the next event of a type.
func next[T Event](t *testing.T, s *Subscription) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for {
		event, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if event, ok := event.(T); ok {
			return event
		}
	}
}

// finalError waits for the final error.
func finalError[T any](t *testing.T, consumer interface {
	Next(context.Context) (T, error)
}) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for {
		if _, err := consumer.Next(ctx); err != nil {
			if ctx.Err() != nil {
				t.Fatal("there is no final error")
			}
			return err
		}
	}
}

func TestOddAnswers(t *testing.T) {
	for _, script := range []string{"no_code", "short_code", "cut", "unknown_messages", "slow"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := client(t, fakeServer(t, script), WithBackoff(time.Millisecond, 10*time.Millisecond), WithTimeout(time.Second))
			s := subscribe(t, c, "a")
			for range 4 {
				if lost := next[Disconnected](t, s); lost.Error() == "" || lost.RetryIn > 10*time.Millisecond {
					t.Error(lost)
				}
			}
			began := time.Now()
			c.Close()
			if err := finalError(t, s); !errors.Is(err, ErrClientClosed) || time.Since(began) > deadline {
				t.Error(err)
			}
		})
	}
}

func TestTooManyAttempts(t *testing.T) {
	c := client(t, fakeServer(t, "no_code"), WithMaxAttempts(2), WithBackoff(time.Millisecond, time.Millisecond))
	s := subscribe(t, c, "a")
	next[Disconnected](t, s)
	next[Disconnected](t, s)
	if err := finalError(t, s); !strings.Contains(err.Error(), "no such upstream") {
		t.Error(err)
	}
	if _, err := c.Subscribe("b"); err == nil {
		t.Error("the client has not ended")
	}
}

func TestEndOfContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	c, err := New(ctx, fakeServer(t, "slow"))
	if err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, c, "a")
	cause := errors.New("the cause")
	cancel(cause)
	if err := finalError(t, s); !errors.Is(err, ErrClientClosed) || !errors.Is(err, cause) {
		t.Error(err)
	}
	c.running.Wait()
}

// ---- Panics -----------------------------------------------------------------------

// panicking makes a client that panics when it connects.
func panicking(t *testing.T, cause any) *Client {
	config, err := pgx.ParseConfig("host=127.0.0.1 user=u sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { panic(cause) }
	c, err := NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestPanicOfListener(t *testing.T) {
	cause := errors.New("planted")
	if err := finalError(t, subscribe(t, panicking(t, cause), "a")); !errors.Is(err, cause) {
		t.Error(err)
	}
}

func TestPanicOfLiveQuery(t *testing.T) {
	c := panicking(t, "planted")
	c.listener.start.Do(func() {})
	c.listener.connected, c.listener.position = newSession(c, Connected{}), "1-1-1"
	live, err := c.Live("SELECT 1")
	if err != nil {
		t.Fatal(err)
	}
	if err := finalError(t, live); !strings.Contains(err.Error(), "planted") {
		t.Error(err)
	}
}

func TestPanicWhileChannelsChange(t *testing.T) {
	c := panicking(t, nil)
	c.listener.start.Do(func() {})
	s := subscribe(t, c, "a")
	c.listener.interrupt = func() { panic("planted") }
	func() {
		defer func() {
			if cause := recover(); cause != "planted" {
				t.Error(cause)
			}
		}()
		_ = s.Add("b")
	}()
	c.Close() // the mutex is free
	if err := finalError(t, s); !errors.Is(err, ErrClientClosed) {
		t.Error(err)
	}
}

// A test that fails in a callback ends the goroutine that way.
func TestGoexitOfListener(t *testing.T) {
	config, err := pgx.ParseConfig("host=127.0.0.1 user=u sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { runtime.Goexit(); return nil, nil }
	c, err := NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := finalError(t, subscribe(t, c, "a")); !strings.Contains(err.Error(), "goroutine") {
		t.Error(err)
	}
}
