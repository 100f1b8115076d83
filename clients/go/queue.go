package pinpoint

import (
	"context"
	"errors"
	"iter"
	"sync"
)

// ErrClosed is the error of a subscription, live query or client that was closed.
var ErrClosed = errors.New("closed")

// consumer is what waits for events or results.
type consumer[T any] struct {
	mu    sync.Mutex       // protects the fields below, and what take reads
	take  func() (T, bool) // the next item, if there is one
	err   error            // the end, after the items
	ready chan struct{}
}

func (c *consumer[T]) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	wake(c.ready)
}

// Next waits for the next item. The error is that of ctx, ErrClosed, or why the subscription or live
// query cannot go on.
func (c *consumer[T]) Next(ctx context.Context) (T, error) {
	for {
		c.mu.Lock()
		item, ok := c.take()
		err := c.err
		c.mu.Unlock()
		if ok || err != nil {
			wake(c.ready) // there may be more, for another goroutine that waits
		}
		if ok {
			return item, nil
		}
		if err != nil {
			return item, err
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return item, ctx.Err()
		}
	}
}

// All iterates over the items, until an error.
func (c *consumer[T]) All(ctx context.Context) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			item, err := c.Next(ctx)
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

const overhead = 200 // bytes that an event takes without its texts, about

// eventQueue is the bounded queue of one consumer. A notification that does not fit becomes a
// Changed.
type eventQueue struct {
	consumer[Event]
	limit   int // bytes
	size    int
	events  []Event
	changed map[string]bool // of the Changed that is in the queue; its place is a nil in events
}

func (q *eventQueue) init(limit int) {
	q.limit, q.changed, q.ready, q.take = limit, map[string]bool{}, make(chan struct{}, 1), q.takeEvent
}

func sizeOf(event Event) int {
	if n, ok := event.(Notification); ok {
		return overhead + len(n.Channel) + len(n.Payload)
	}
	return overhead
}

func (q *eventQueue) put(event Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if size := sizeOf(event); q.size+size <= q.limit {
		q.size += size
		q.events = append(q.events, event)
		wake(q.ready)
	} else if n, ok := event.(Notification); ok {
		q.addChanged(n.Channel)
	}
}

// putChanged adds channels to the Changed that is in the queue, or to a new one.
func (q *eventQueue) putChanged(channels []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addChanged(channels...)
}

func (q *eventQueue) addChanged(channels ...string) {
	if len(q.changed) == 0 {
		q.events = append(q.events, nil)
	}
	for _, channel := range channels {
		q.changed[channel] = true
	}
	wake(q.ready)
}

func (q *eventQueue) takeEvent() (Event, bool) {
	if len(q.events) == 0 {
		return nil, false
	}
	event := q.events[0]
	q.events[0], q.events = nil, q.events[1:]
	if event != nil {
		q.size -= sizeOf(event)
		return event, true
	}
	changed := keys(q.changed)
	q.changed = map[string]bool{}
	return Changed{changed}, true
}

// wake sets a signal, a channel with one place.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
