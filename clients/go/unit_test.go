package pinpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestBackoff(t *testing.T) {
	for _, test := range []struct {
		failures int
		random   float64
		expected time.Duration
	}{{1, 0, 50}, {1, 1, 100}, {2, 1, 200}, {5, 0.5, 1200}, {8, 1, 10000}, {2000, 0, 5000}} {
		delay := backoff(100*time.Millisecond, 10*time.Second, test.failures, func() float64 { return test.random })
		if delay != test.expected*time.Millisecond {
			t.Errorf("%v: %v", test, delay)
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for name, option := range map[string]Option{
		"Mode": WithMode("wiat"), "MinInterval": WithMinInterval(-1), "Buffer": WithBuffer(-1),
		"Backoff": WithBackoff(time.Second, time.Millisecond), "MaxAttempts": WithMaxAttempts(-2),
		"Timeout": WithTimeout(0), "QueryTimeout": WithQueryTimeout(-2), "CheckInterval": WithCheckInterval(1 << 62),
		"ProbeTimeout": WithProbeTimeout(Unlimited), "QueryConnections": WithQueryConnections(-1), "Logger": WithLogger(nil),
	} {
		if _, err := New(context.Background(), "", option); err == nil || !strings.Contains(err.Error(), "option "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	client, err := New(context.Background(), "", WithMaxAttempts(Unlimited), WithQueryTimeout(Unlimited), WithMinInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
}

func TestPermanentErrors(t *testing.T) {
	for code, expected := range map[string]bool{"28000": true, "28P01": true, "3D000": true, "42501": true, "0A000": true,
		"": false, "2": false, "28": false, "4é": false, "280000": false, "57P03": false, "42883": false} {
		err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code})
		if isPermanent(err) != expected {
			t.Errorf("%q: %v", code, !expected)
		}
	}
	if !isPermanent(ErrNoListen) || !isPermanent(ErrNoWait) || isPermanent(errors.New("unexpected EOF")) {
		t.Error("errors of the package")
	}
}

func TestErrorsHaveSQLState(t *testing.T) {
	for state, err := range map[string]error{"0A000": ErrNoLive, "42501": ErrNoUsage, "55000": stateError{"55000", "text"}} {
		if sqlState(fmt.Errorf("wrapped: %w", err)) != state {
			t.Errorf("%v: %q", err, sqlState(err))
		}
	}
}

func TestEqualArguments(t *testing.T) {
	type named string
	now := time.Now()
	same := func(a, b any) bool {
		key := keyOf("q", []any{a})
		return key != "" && key == keyOf("q", []any{b})
	}
	for _, value := range []any{nil, "a", 1, 1.5, true, []byte("a"), now, []string{"a"}, [][]int32{{1}, {2}}, []time.Time{now}} {
		if !same(value, value) {
			t.Errorf("%#v is not equal to itself", value)
		}
	}
	if !same(now, now.Round(0)) {
		t.Error("the monotonic clock makes a time another one")
	}
	for _, pair := range [][2]any{{"1", 1}, {1, 1.0}, {1, int64(1)}, {nil, ""}, {[]string{"a b"}, []string{"a", "b"}}, {true, false}} {
		if same(pair[0], pair[1]) {
			t.Errorf("%#v is equal to %#v", pair[0], pair[1])
		}
	}
	east, west := time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)), time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", -3600))
	if same(east, west) || same([]time.Time{east}, []time.Time{west}) {
		t.Error("a time is equal to one in another zone")
	}
	for _, value := range []any{named("a"), []named{"a"}, []any{1}, &now, map[string]int{}, func() {}} {
		if same(value, value) {
			t.Errorf("%T is shared", value)
		}
	}
}

func newQueue(limit int) (*eventQueue, *counters) {
	client := &Client{options: options{buffer: limit}}
	queue := &eventQueue{}
	queue.start(queue.takeEvent, client)
	return queue, &client.counters
}

func TestQueueOverflow(t *testing.T) {
	queue, count := newQueue(2 * (overhead + 2))
	for number, expected := range []int64{0, 0, 1, 0} {
		queue.put(Notification{"a", "x", 1})
		if begins := count.dropping.Swap(0); begins != expected {
			t.Errorf("put %d: %d", number, begins)
		}
	}
	queue.put(Connected{})
	queue.end(errors.New("the end"))
	var kinds []string
	for event, err := range queue.All(context.Background()) {
		kinds = append(kinds, fmt.Sprintf("%T %v", event, err))
	}
	expected := []string{"pinpoint.Notification <nil>", "pinpoint.Notification <nil>", "pinpoint.Changed <nil>", "<nil> the end"}
	if !slices.Equal(kinds, expected) || count.dropped.Load() != 3 || count.events.Load() != 3 || queue.size != 0 {
		t.Error(kinds, count.dropped.Load(), count.events.Load(), queue.size)
	}
}

func TestIterationEndsAtClose(t *testing.T) {
	queue, _ := newQueue(1000)
	queue.put(Connected{})
	queue.end(ErrClosed)
	for event, err := range queue.All(context.Background()) {
		if _, ok := event.(Connected); !ok || err != nil {
			t.Error(event, err)
		}
	}
	if _, err := queue.Next(context.Background()); err != ErrClosed {
		t.Error(err)
	}
}

func TestErrorIsGivenOnce(t *testing.T) {
	live := &Live{}
	live.start(live.takeLatest, &Client{})
	given := func(err error) bool {
		live.put(Result{Err: err})
		_, ok := live.takeLatest()
		return ok
	}
	first, other := &pgconn.PgError{Code: "22012", Message: "m"}, &pgconn.PgError{Code: "22P02", Message: "m"}
	lost := Disconnected{Reason: errors.New("lost")}
	if !given(first) || given(first) || !given(other) || !given(lost) || !given(lost) || !given(other) || !given(nil) || !given(other) {
		t.Error("an error is repeated, or missing")
	}
}

// ---- The index ------------------------------------------------------------------

func newSubscriber(x *index) *Subscription {
	s := &Subscription{}
	x.join(s)
	s.start(s.takeEvent, &Client{options: options{buffer: 1 << 30}})
	return s
}

func (s *Subscription) all() (events []Event) {
	for {
		event, ok := s.takeEvent()
		if !ok {
			return events
		}
		events = append(events, event)
	}
}

func TestIndex(t *testing.T) {
	x := newIndex()
	one, two := newSubscriber(&x), newSubscriber(&x)
	check := func(what string, freshExpected, goneExpected []string) {
		t.Helper()
		fresh, gone := x.take()
		slices.Sort(fresh)
		if !slices.Equal(fresh, freshExpected) || !slices.Equal(gone, goneExpected) {
			t.Errorf("%s: %v, %v", what, fresh, gone)
		}
	}
	x.add(one, "a", "b")
	x.add(two, "b")
	check("added", []string{"a", "b"}, nil)
	x.add(one, "c") // while the connection begins to listen on the others
	x.tell(nil)
	if events := one.all(); len(events) != 1 || len(events[0].(Changed).Channels) != 2 {
		t.Error(events)
	}
	if events := two.all(); len(events) != 1 {
		t.Error(events)
	}
	x.give(Notification{Channel: "b"})
	x.give(Notification{Channel: "c"}) // not yet told
	if len(one.all()) != 1 || len(two.all()) != 1 {
		t.Error("a notification of b")
	}
	x.remove(one, "b", "c", "nothing")
	check("removed, and added in vain", nil, nil)
	x.remove(two, "b")
	x.add(two, "b")
	check("removed and added again", nil, nil)
	x.remove(two, "b")
	check("removed", nil, []string{"b"})
	x.add(two, "b") // while the connection ceases to listen
	check("added again", []string{"b"}, nil)
	x.remove(one, "a")
	x.restart()
	check("a new connection", []string{"b"}, nil)
	x.leave(two)
	x.add(two, "b") // closed
	x.leave(one)
	if len(x.channels)+len(x.untold)+len(x.subscribers) != 0 {
		t.Error("something is left", x)
	}
}

// processorTime returns the least processor time of a call, of some.
func processorTime(call func()) time.Duration {
	least := time.Hour
	for range 7 {
		var before, after syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		call()
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		least = min(least, time.Duration(used))
	}
	return least
}

func TestSubscriptionCostsItsOwnChannels(t *testing.T) {
	cost := func(others int) (change, dispatch time.Duration) {
		x := newIndex()
		subscribers := []*Subscription{}
		for number := range others {
			subscribers = append(subscribers, newSubscriber(&x))
			x.add(subscribers[number], fmt.Sprint("c", number))
		}
		x.take()
		x.tell(nil)
		change = processorTime(func() {
			for range 2000 {
				one := newSubscriber(&x)
				x.add(one, "mine")
				x.take()
				x.tell(nil)
				x.leave(one)
				x.take()
			}
		})
		dispatch = processorTime(func() {
			for range 20000 {
				x.give(Notification{Channel: "c7"})
				subscribers[7].all()
			}
		})
		return change / 2000, dispatch / 20000
	}
	change, dispatch := cost(10)
	manyChange, manyDispatch := cost(40000)
	t.Logf("beside 10: %v to add and remove, %v to dispatch; beside 40,000: %v, %v", change, dispatch, manyChange, manyDispatch)
	const floor = time.Microsecond // the clock is coarse
	if manyChange > 10*max(change, floor) || manyDispatch > 10*max(dispatch, floor) {
		t.Error("a subscription costs the channels of others")
	}
}

// It need not wait for the next attempt.
func TestConsumerDuringOutage(t *testing.T) {
	client, err := New(t.Context(), "postgres://x@127.0.0.1:1/x", WithBackoff(time.Hour, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 2 {
		events, _ := client.Subscribe("a")
		event, err := events.Next(ctx)
		if lost, ok := event.(Disconnected); !ok || lost.RetryIn < time.Minute || lost.RetryIn > time.Hour {
			t.Error(event, err)
		}
	}
	live, _ := client.Live("SELECT 1")
	if result, err := live.Next(ctx); err != nil || !errors.Is(result.Err, syscall.ECONNREFUSED) {
		t.Error(result, err)
	}
}

func TestChannelNames(t *testing.T) {
	for _, name := range []string{"", "a\x00b", heartbeat, strings.Repeat("x", 64)} {
		if checkChannels([]string{"a", name}) == nil {
			t.Errorf("%q is not refused", name)
		}
	}
	if err := checkChannels([]string{strings.Repeat("x", 63)}); err != nil {
		t.Error(err)
	}
}
