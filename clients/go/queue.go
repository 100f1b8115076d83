package pinpoint

import (
	"context"
	"errors"
	"iter"
	"sync"
)

// consumer is what waits for events or results.
type consumer[T any] struct {
	mu    sync.Mutex       // protects the fields below, and what take reads
	take  func() (T, bool) // the next item, if there is one
	err   error            // the end, after the items
	ready chan struct{}

	client *Client
}

func (c *consumer[T]) start(take func() (T, bool), client *Client) {
	c.take, c.client, c.ready = take, client, make(chan struct{}, 1)
}

func (c *consumer[T]) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	wake(c.ready)
}

// Next waits for the next item. The error is that of ctx, ErrClosed, or the final error: why the subscription or live
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
			c.client.counters.events.Add(1)
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

// All iterates over the items until Close, or until an error, which it gives: that of ctx, or the final error.
func (c *consumer[T]) All(ctx context.Context) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			item, err := c.Next(ctx)
			if errors.Is(err, ErrClosed) || !yield(item, err) || err != nil {
				return
			}
		}
	}
}

const overhead = 200 // bytes that an event takes without its texts, about

// eventQueue is the queue of one consumer, bounded by the option buffer. A notification that does not fit becomes a Changed.
type eventQueue struct {
	consumer[Event]
	size    int // bytes
	events  []Event
	drops   bool            // since the consumer has last taken one
	changed map[string]bool // of the Changed that is in the queue; its place is a nil in events
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
	defer wake(q.ready)
	if changed, ok := event.(Changed); ok {
		q.addChanged(changed.Channels...)
		return
	}
	if size := sizeOf(event); q.size+size <= q.client.options.buffer {
		q.size += size
		q.events = append(q.events, event)
		return
	}
	if n, ok := event.(Notification); ok {
		q.addChanged(n.Channel)
	}
	q.client.counters.dropped.Add(1)
	if !q.drops {
		q.drops = true
		q.client.counters.dropping.Add(1)
	}
}

// addChanged adds channels to the Changed that is in the queue, or to a new one.
func (q *eventQueue) addChanged(channels ...string) {
	if q.changed == nil {
		q.changed = map[string]bool{}
		q.events = append(q.events, nil)
	}
	for _, channel := range channels {
		q.changed[channel] = true
	}
}

func (q *eventQueue) takeEvent() (Event, bool) {
	if len(q.events) == 0 {
		return nil, false
	}
	event := q.events[0]
	q.drops = false
	q.events[0], q.events = nil, q.events[1:]
	if event != nil {
		q.size -= sizeOf(event)
		return event, true
	}
	changed := Changed{keys(q.changed)}
	q.changed = nil
	return changed, true
}

// wake sets a signal, a channel with one place.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
