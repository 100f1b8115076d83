//! The events of one consumer, which may be slow.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::{Error, Event};

/// Bytes that an event takes without its texts, about.
const OVERHEAD: usize = 200;

/// A queue of bounded size. A notification that does not fit becomes a "changed".
pub(crate) struct Queue {
    limit: usize,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    size: usize,
    /// None is the place of the "changed".
    events: VecDeque<Option<Event>>,
    changed: HashSet<String>,
    end: Option<Option<Arc<Error>>>,
    waker: Option<Waker>,
}

impl Content {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The next item; None if there is none yet.
    #[allow(clippy::option_option)]
    fn take(&mut self) -> Option<Option<Result<Event, Arc<Error>>>> {
        match self.events.pop_front() {
            Some(Some(event)) => {
                self.size -= size_of(&event);
                Some(Some(Ok(event)))
            }
            Some(None) => Some(Some(Ok(Event::Changed(std::mem::take(&mut self.changed))))),
            None => self.end.as_mut().map(|error| error.take().map(Err)),
        }
    }
}

fn size_of(event: &Event) -> usize {
    match event {
        Event::Notification { channel, payload, .. } => OVERHEAD + channel.len() + payload.len(),
        _ => OVERHEAD,
    }
}

impl Queue {
    /// limit: bytes
    pub fn new(limit: usize) -> Self {
        Queue { limit, content: Mutex::default() }
    }

    pub fn put(&self, event: Event) {
        let mut content = self.content.lock().unwrap();
        let size = size_of(&event);
        if content.size + size <= self.limit {
            content.size += size;
            content.events.push_back(Some(event));
            content.wake();
        } else if let Event::Notification { channel, .. } = event {
            drop(content);
            self.put_changed([channel]);
        }
    }

    /// Add channels to the "changed" that is in the queue, or to a new one.
    pub fn put_changed(&self, channels: impl IntoIterator<Item = String>) {
        let mut content = self.content.lock().unwrap();
        if content.changed.is_empty() {
            content.events.push_back(None);
        }
        content.changed.extend(channels);
        content.wake();
    }

    /// After the events that are in the queue: the end, or an error.
    pub fn end(&self, error: Option<Arc<Error>>) {
        let mut content = self.content.lock().unwrap();
        content.end.get_or_insert(error);
        content.wake();
    }

    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<Event, Arc<Error>>>> {
        let mut content = self.content.lock().unwrap();
        match content.take() {
            Some(item) => Poll::Ready(item),
            None => {
                content.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
