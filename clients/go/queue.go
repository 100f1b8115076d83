package pinpoint

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is the error of a subscription, live query or client that was closed.
var ErrClosed = errors.New("closed")

const overhead = 200 // bytes that an event takes without its texts, about

// eventQueue is the bounded queue of one consumer. A notification that does not fit becomes a
// Changed.
type eventQueue struct {
	mu      sync.Mutex
	limit   int // bytes
	size    int
	events  []Event
	changed map[string]bool // of the Changed that is in the queue; its place is a nil in events
	err     error           // the end, after the events
	ready   chan struct{}
}

func newQueue(limit int) *eventQueue {
	return &eventQueue{limit: limit, changed: map[string]bool{}, ready: make(chan struct{}, 1)}
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
	size := sizeOf(event)
	if q.size+size > q.limit {
		if n, ok := event.(Notification); ok {
			q.addChanged(n.Channel)
		}
		return
	}
	q.size += size
	q.events = append(q.events, event)
	wake(q.ready)
}

// putChanged adds channels to the Changed that is in the queue, or to a new one.
func (q *eventQueue) putChanged(channels ...string) {
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

func (q *eventQueue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	wake(q.ready)
}

// next waits for an event.
func (q *eventQueue) next(ctx context.Context) (Event, error) {
	for {
		if event, err := q.take(); event != nil || err != nil {
			return event, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (q *eventQueue) take() (Event, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		if q.err != nil {
			wake(q.ready)
		}
		return nil, q.err
	}
	event := q.events[0]
	q.events = q.events[1:]
	if event != nil {
		q.size -= sizeOf(event)
		return event, nil
	}
	channels := make([]string, 0, len(q.changed))
	for channel := range q.changed {
		channels = append(channels, channel)
	}
	q.changed = map[string]bool{}
	return Changed{channels}, nil
}

// wake sets a signal, a channel with one place.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
