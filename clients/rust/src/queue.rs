//! What waits for one consumer, which may be slow.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::{Error, Event, Update};

/// What a client counts.
#[derive(Default)]
pub(crate) struct Counters {
    pub events: AtomicU64,
    pub dropped: AtomicU64,
    pub connections: AtomicU64,
}

/// The items of a consumer that it has not taken.
pub(crate) trait Buffer {
    type Item;

    fn take(&mut self) -> Option<Self::Item>;
}

/// A buffer, its end, and who waits for it.
pub(crate) struct Queue<B> {
    content: Mutex<Content<B>>,
    counters: Arc<Counters>,
}

struct Content<B> {
    buffer: B,
    end: Option<Option<Arc<Error>>>,
    waker: Option<Waker>,
}

impl<B: Buffer> Queue<B> {
    pub fn new(buffer: B, counters: Arc<Counters>) -> Self {
        Queue { content: Mutex::new(Content { buffer, end: None, waker: None }), counters }
    }

    /// Also after a panic: the content is valid at each moment.
    fn content(&self) -> MutexGuard<'_, Content<B>> {
        self.content.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Change the buffer. wakers: with that of the consumer, which is woken when nothing is locked.
    pub fn change<R>(&self, wakers: &mut Vec<Waker>, change: impl FnOnce(&mut B) -> R) -> R {
        let mut content = self.content();
        wakers.extend(content.waker.take());
        change(&mut content.buffer)
    }

    /// After the items that are in the buffer: the end, or an error.
    pub fn end(&self, wakers: &mut Vec<Waker>, error: Option<Arc<Error>>) {
        let mut content = self.content();
        wakers.extend(content.waker.take());
        content.end.get_or_insert(error);
    }

    /// The next item; None after the end. An error is the last item.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<B::Item, Arc<Error>>>> {
        let mut content = self.content();
        if let Some(item) = content.buffer.take() {
            self.counters.events.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Some(Ok(item)));
        }
        if let Some(end) = &mut content.end {
            return Poll::Ready(end.take().map(Err));
        }
        let before = content.waker.replace(context.waker().clone());
        drop(content);
        drop(before); // perhaps the last reference to a task, which may have a consumer
        Poll::Pending
    }
}

// ---- Of a subscription ------------------------------------------------------------

/// Bytes that an event takes without its texts, about.
const OVERHEAD: usize = 200;

/// Events of bounded size. A notification that does not fit becomes a "changed".
pub(crate) struct Events {
    limit: usize,
    size: usize,
    /// Since the consumer has last taken one.
    drops: bool,
    /// None is the place of the "changed".
    events: VecDeque<Option<Event>>,
    changed: HashSet<String>,
    counters: Arc<Counters>,
}

impl Events {
    /// limit: bytes
    pub fn new(limit: usize, counters: Arc<Counters>) -> Self {
        Events { limit, size: 0, drops: false, events: VecDeque::new(), changed: HashSet::new(), counters }
    }

    /// The result: whether events are dropped from now on.
    pub fn put(&mut self, event: Event) -> bool {
        let size = size_of(&event);
        match event {
            Event::Changed(channels) => {
                self.put_changed(channels);
                return false;
            }
            event if self.size + size <= self.limit => {
                self.size += size;
                self.events.push_back(Some(event));
                return false;
            }
            Event::Notification { channel, .. } => self.put_changed([channel]),
            _ => {}
        }
        self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        !std::mem::replace(&mut self.drops, true)
    }

    /// Add channels to the "changed" that is in the queue, or to a new one.
    fn put_changed(&mut self, channels: impl IntoIterator<Item = String>) {
        if self.changed.is_empty() {
            self.events.push_back(None);
        }
        self.changed.extend(channels);
    }
}

impl Buffer for Events {
    type Item = Event;

    fn take(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.drops = false;
        match event {
            Some(event) => {
                self.size -= size_of(&event);
                Some(event)
            }
            None => Some(Event::Changed(std::mem::take(&mut self.changed))),
        }
    }
}

fn size_of(event: &Event) -> usize {
    match event {
        Event::Notification { channel, payload, .. } => OVERHEAD + channel.len() + payload.len(),
        _ => OVERHEAD,
    }
}

// ---- Of a live query --------------------------------------------------------------

/// The newest event. An error that repeats the last event is not given.
#[derive(Default)]
pub(crate) struct Latest {
    pub update: Option<Update>,
    given: Option<Arc<Error>>,
}

impl Buffer for Latest {
    type Item = Update;

    fn take(&mut self) -> Option<Update> {
        let update = self.update.take()?;
        let error = match &update {
            Update::Error(error) => Some(error.clone()),
            _ => None,
        };
        if matches!((&self.given, &error), (Some(given), Some(error)) if error.repeats(given)) {
            return None;
        }
        self.given = error;
        Some(update)
    }
}

/// What the client gives events to.
#[derive(Clone)]
pub(crate) enum Sink {
    Subscription(Arc<Queue<Events>>),
    Live(Arc<crate::live_query::LiveQuery>),
}

impl Sink {
    /// The result: whether events are dropped from now on.
    pub fn put(&self, wakers: &mut Vec<Waker>, event: Event) -> bool {
        match self {
            Sink::Subscription(queue) => queue.change(wakers, |events| events.put(event)),
            Sink::Live(live) => {
                live.put(wakers, event);
                false
            }
        }
    }

    pub fn end(&self, wakers: &mut Vec<Waker>, error: &Arc<Error>) {
        match self {
            Sink::Subscription(queue) => queue.end(wakers, Some(error.clone())),
            Sink::Live(live) => live.end(wakers, error),
        }
    }
}
