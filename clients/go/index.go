package pinpoint

import (
	"maps"
	"slices"
)

// subscriber is a subscription or a live query.
type subscriber interface {
	put(Event)
	end(error)
}

// index has the channels of each subscriber, the subscribers of each channel, and what is to be done for them, so that a
// change costs only its own channels. The mutex of the client protects it.
type index struct {
	subscribers map[subscriber]map[string]bool // their channels
	channels    map[string]map[subscriber]bool // their subscribers
	untold      map[subscriber]map[string]bool // the channels of which they were not told that the client listens
	fresh       map[string]bool                // channels on which the connection does not listen yet
	gone        map[string]bool                // channels on which it listens, but no subscriber does
	interrupt   func()                         // called when something is to be done
}

func newIndex() index {
	return index{map[subscriber]map[string]bool{}, map[string]map[subscriber]bool{}, map[subscriber]map[string]bool{},
		map[string]bool{}, map[string]bool{}, func() {}}
}

func (x *index) join(s subscriber) { x.subscribers[s] = map[string]bool{} }

func (x *index) leave(s subscriber) {
	x.remove(s, keys(x.subscribers[s])...)
	delete(x.subscribers, s)
}

// add does nothing for a subscriber that has left.
func (x *index) add(s subscriber, channels ...string) {
	of, joined := x.subscribers[s]
	for _, channel := range channels {
		if !joined || of[channel] {
			continue
		}
		if x.channels[channel] == nil {
			move(x.gone, x.fresh, channel)
		}
		of[channel] = true
		insert(x.channels, channel, s)
		insert(x.untold, s, channel)
	}
	x.changed()
}

func (x *index) remove(s subscriber, channels ...string) {
	for _, channel := range channels {
		if !x.subscribers[s][channel] {
			continue
		}
		delete(x.subscribers[s], channel)
		discard(x.channels, channel, s)
		discard(x.untold, s, channel)
		if x.channels[channel] == nil {
			move(x.fresh, x.gone, channel)
		}
	}
	x.changed()
}

// changed interrupts the listener if there is something to do.
func (x *index) changed() {
	if len(x.fresh)+len(x.gone)+len(x.untold) > 0 {
		x.interrupt()
	}
}

// move removes a channel from one set, or adds it to the other one if it is not there.
func move(from, to map[string]bool, channel string) {
	if from[channel] {
		delete(from, channel)
	} else {
		to[channel] = true
	}
}

// restart is called when the connection has ended: the next one listens on nothing.
func (x *index) restart() {
	clear(x.gone)
	for channel := range x.channels {
		x.fresh[channel] = true
	}
}

// take returns the channels on which the connection has to listen from now on, and those on which no longer.
func (x *index) take() (fresh, gone []string) {
	fresh, gone = keys(x.fresh), keys(x.gone)
	x.fresh, x.gone = map[string]bool{}, map[string]bool{}
	return fresh, gone
}

// tell tells subscribers of changed channels, and of all on which the connection listens from now on.
func (x *index) tell(changed []string) {
	for _, channel := range changed {
		for s := range x.channels[channel] {
			insert(x.untold, s, channel)
		}
	}
	for s, channels := range x.untold {
		var news []string
		for channel := range channels {
			if !x.fresh[channel] {
				news = append(news, channel)
				discard(x.untold, s, channel)
			}
		}
		if news != nil {
			s.put(Changed{news})
		}
	}
	if len(x.untold) == 0 {
		x.untold = map[subscriber]map[string]bool{} // one that was large would stay slow
	}
}

// give gives a notification to those that were told of its channel.
func (x *index) give(notification Notification) {
	for s := range x.channels[notification.Channel] {
		if !x.untold[s][notification.Channel] {
			s.put(notification)
		}
	}
}

func insert[K, V comparable](sets map[K]map[V]bool, key K, value V) {
	if sets[key] == nil {
		sets[key] = map[V]bool{}
	}
	sets[key][value] = true
}

// discard removes a value from a set, and a set that is empty then.
func discard[K, V comparable](sets map[K]map[V]bool, key K, value V) {
	delete(sets[key], value)
	if len(sets[key]) == 0 {
		delete(sets, key)
	}
}

func keys[V any](of map[string]V) []string {
	return slices.AppendSeq(make([]string, 0, len(of)), maps.Keys(of)) // never nil, which would be NULL
}
