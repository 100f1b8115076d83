//! The subscribers of each channel, and what is to be done for them, so that a change costs only its own channels.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Waker;

use crate::queue::Sink;
use crate::{Error, Event};

pub(crate) type Name = Arc<str>;

/// A subscription or a live query.
struct Subscriber {
    sink: Sink,
    channels: HashSet<Name>,
}

#[derive(Default)]
pub(crate) struct Index {
    subscribers: HashMap<u64, Subscriber>,
    channels: HashMap<Name, HashSet<u64>>,
    /// Channels on which the connection does not listen yet.
    fresh: HashSet<Name>,
    /// Channels on which it listens, but no subscriber does.
    gone: HashSet<Name>,
    /// Of subscribers: their channels of which they were not told that the client listens on them.
    untold: HashMap<u64, HashSet<Name>>,
    /// Of consumers that have got something: woken when the state is unlocked.
    pub wakers: Vec<Waker>,
}

impl Index {
    pub fn insert(&mut self, id: u64, sink: Sink) {
        self.subscribers.insert(id, Subscriber { sink, channels: HashSet::new() });
    }

    /// End a subscriber. The result: whether there was one.
    pub fn delete(&mut self, id: u64) -> bool {
        let Some(subscriber) = self.subscribers.remove(&id) else { return false };
        for channel in subscriber.channels {
            self.release(id, channel);
        }
        true
    }

    // ---- Channels of a subscriber -----------------------------------------------------

    pub fn add<S: AsRef<str>>(&mut self, id: u64, channels: impl IntoIterator<Item = S>) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        for channel in channels {
            let channel = Name::from(channel.as_ref());
            let ids = self.channels.entry(channel.clone()).or_default();
            if ids.is_empty() && !self.gone.remove(&channel) {
                self.fresh.insert(channel.clone());
            }
            if ids.insert(id) {
                subscriber.channels.insert(channel.clone());
                self.untold.entry(id).or_default().insert(channel);
            }
        }
    }

    pub fn remove<S: AsRef<str>>(&mut self, id: u64, channels: impl IntoIterator<Item = S>) {
        for channel in channels {
            let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
            if let Some(channel) = subscriber.channels.take(channel.as_ref()) {
                self.release(id, channel);
            }
        }
    }

    fn release(&mut self, id: u64, channel: Name) {
        if let Some(untold) = self.untold.get_mut(&id) {
            untold.remove(&channel);
        }
        let Some(ids) = self.channels.get_mut(&channel) else { return };
        ids.remove(&id);
        if ids.is_empty() {
            self.channels.remove(&channel);
            if !self.fresh.remove(&channel) {
                self.gone.insert(channel);
            }
        }
    }

    /// Make these channels those of a subscriber. The result: whether it was told of all.
    pub fn set(&mut self, id: u64, channels: &HashSet<String>) -> bool {
        let Some(subscriber) = self.subscribers.get(&id) else { return false };
        let of = subscriber.channels.iter();
        let others: Vec<Name> = of.filter(|channel| !channels.contains(&***channel)).cloned().collect();
        self.remove(id, others);
        self.add(id, channels);
        self.untold.get(&id).is_none_or(HashSet::is_empty)
    }

    // ---- Of the listener --------------------------------------------------------------

    /// For a new connection, which listens on nothing.
    pub fn restart(&mut self) {
        self.gone.clear();
        self.fresh = self.channels.keys().cloned().collect();
    }

    pub fn names(&self) -> Vec<Name> {
        self.channels.keys().cloned().collect()
    }

    /// The channels on which the connection has to listen from now on, and those on which no longer.
    pub fn take(&mut self) -> (Vec<Name>, Vec<Name>) {
        (std::mem::take(&mut self.fresh).into_iter().collect(), std::mem::take(&mut self.gone).into_iter().collect())
    }

    /// Tell subscribers of changed channels, and of all on which the connection listens from now on. The result:
    /// whether it listens on all.
    pub fn tell<S: AsRef<str>>(&mut self, changed: &[S]) -> bool {
        for (id, channels) in std::mem::take(&mut self.untold) {
            let (later, now): (HashSet<_>, HashSet<_>) =
                channels.into_iter().partition(|channel| self.fresh.contains(channel));
            if !later.is_empty() {
                self.untold.insert(id, later);
            }
            if !now.is_empty() {
                let channels = now.iter().map(|channel| channel.to_string()).collect();
                self.subscribers[&id].sink.put(&mut self.wakers, Event::Changed(channels));
            }
        }
        for channel in changed.iter().map(AsRef::as_ref) {
            for id in self.channels.get(channel).into_iter().flatten() {
                let event = Event::Changed(HashSet::from([channel.to_owned()]));
                self.subscribers[id].sink.put(&mut self.wakers, event);
            }
        }
        self.fresh.is_empty()
    }

    /// Give a notification to those that were told of its channel. The result: how many drop events from now on.
    pub fn give(&mut self, channel: &str, payload: &str, pid: i32) -> usize {
        let ids = self.channels.get(channel).into_iter().flatten();
        let told = ids.filter(|id| self.untold.get(id).is_none_or(|untold| !untold.contains(channel)));
        told.filter(|id| {
            let (channel, payload) = (channel.to_owned(), payload.to_owned());
            let event = Event::Notification { channel, payload, pid };
            self.subscribers[id].sink.put(&mut self.wakers, event)
        })
        .count()
    }

    pub fn put_all(&mut self, event: &Event) {
        for subscriber in self.subscribers.values() {
            subscriber.sink.put(&mut self.wakers, event.clone());
        }
    }

    pub fn end_all(&mut self, error: &Arc<Error>) {
        for subscriber in self.subscribers.values() {
            subscriber.sink.end(&mut self.wakers, error);
        }
    }
}
