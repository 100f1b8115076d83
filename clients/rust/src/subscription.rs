//! Subscriptions to channels.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::index::Index;
use crate::listener::HEARTBEAT;
use crate::queue::{Events, Queue, Sink};
use crate::{Client, Error, Event};

/// The events of some channels. Dropping it ends it.
pub struct Subscription(Handle);

/// Changes the channels of a subscription, also while another task waits for its events.
#[derive(Clone)]
pub struct Handle {
    id: u64,
    client: Client,
    queue: Arc<Queue<Events>>,
}

impl Client {
    /// Listen on channels. Each begins with [`Event::Changed`].
    ///
    /// # Errors
    ///
    /// [`Error::Channel`] if a name is empty, longer than 63 bytes, contains NUL or is `pinpoint_heartbeat`, and the
    /// error that has ended the client.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn subscribe<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) -> Result<Subscription, Arc<Error>> {
        let channels = checked(channels)?;
        let shared = self.shared();
        let events = Events::new(shared.options.buffer, shared.counters.clone());
        let queue = Arc::new(Queue::new(events, shared.counters.clone()));
        let id = shared.state(|state| {
            let id = state.new_id()?;
            state.index.insert(id, Sink::Subscription(queue.clone()));
            if let Some(event) = state.current(&shared.connection) {
                queue.change(&mut state.index.wakers, |events| events.put(event));
            }
            state.index.add(id, channels);
            Ok::<_, Arc<Error>>(id)
        })?;
        shared.changes.notify_one();
        shared.start_listener();
        Ok(Subscription(Handle { id, client: self.clone(), queue }))
    }
}

impl Subscription {
    /// The next event; None after the end. An error is the last item.
    pub async fn next(&mut self) -> Option<Result<Event, Arc<Error>>> {
        poll_fn(|context| self.0.queue.poll_next(context)).await
    }

    /// What another task needs to change the channels, or to end the subscription.
    pub fn handle(&self) -> Handle {
        self.0.clone()
    }

    /// As [`Handle::add`].
    pub fn add<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) -> Result<(), Error> {
        self.0.add(channels)
    }

    /// As [`Handle::remove`].
    pub fn remove<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) {
        self.0.remove(channels);
    }
}

impl Stream for Subscription {
    type Item = Result<Event, Arc<Error>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.queue.poll_next(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Handle {
    /// Listen on more channels. Each begins with [`Event::Changed`]. After the end, this does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Channel`] if a name is not valid.
    pub fn add<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) -> Result<(), Error> {
        let channels = checked(channels)?;
        self.change(|index| index.add(self.id, channels));
        Ok(())
    }

    /// Listen on fewer channels. Events that are already in the queue still follow.
    pub fn remove<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) {
        let channels: Vec<String> = channels.into_iter().map(|channel| channel.as_ref().to_owned()).collect();
        self.change(|index| index.remove(self.id, channels));
    }

    /// End the subscription; after the events in the queue, [`Subscription::next`] returns None.
    pub fn close(&self) {
        self.change(|index| {
            index.delete(self.id);
            self.queue.end(&mut index.wakers, None);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Index)) {
        self.client.shared().state(|state| change(&mut state.index));
        self.client.shared().changes.notify_one();
    }
}

fn checked<S: AsRef<str>>(channels: impl IntoIterator<Item = S>) -> Result<Vec<String>, Error> {
    let check = |channel: &str| {
        Err(Error::Channel(match channel {
            "" => "the name of a channel cannot be empty".to_owned(),
            HEARTBEAT => format!("the channel \"{channel}\" is for the client itself"),
            _ if channel.len() > 63 => format!("the name of a channel can have 63 bytes: \"{channel}\" is longer"),
            _ if channel.contains('\0') => "the name of a channel cannot contain the character NUL".to_owned(),
            _ => return Ok(channel.to_owned()),
        }))
    };
    channels.into_iter().map(|channel| check(channel.as_ref())).collect()
}
