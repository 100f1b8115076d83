package pinpoint

// Subscription gives the events of some channels.
type Subscription struct{ eventQueue }

// Subscribe listens on channels. Each begins with a Changed. It returns an error if a name is empty, longer
// than 63 bytes, contains NUL or is pinpoint_heartbeat, and the error that has ended the client (ErrClientClosed
// after Close).
func (c *Client) Subscribe(channels ...string) (*Subscription, error) {
	if err := checkChannels(channels); err != nil {
		return nil, err
	}
	s := &Subscription{}
	s.start(s.takeEvent, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.attach(s); err != nil {
		return nil, err
	}
	if event := c.listener.current(); event != nil {
		s.put(event)
	}
	c.listener.add(s, channels...)
	return s, nil
}

// Add listens on more channels. Each begins with a Changed. It returns an error if a name is not valid. After the end
// of the subscription, it does nothing.
func (s *Subscription) Add(channels ...string) error {
	if err := checkChannels(channels); err != nil {
		return err
	}
	s.client.locked(func() { s.client.listener.add(s, channels...) })
	return nil
}

// Remove listens on fewer channels. Events that are already in the queue still follow.
func (s *Subscription) Remove(channels ...string) {
	s.client.locked(func() { s.client.listener.remove(s, channels...) })
}

// Close ends the subscription: after the events in the queue, Next returns ErrClosed.
func (s *Subscription) Close() {
	s.client.locked(func() {
		s.client.listener.leave(s)
		s.end(ErrClosed)
	})
}
