//! Live queries: rows now, and again after each change.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::{pin, Pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use futures_core::Stream;
use tokio::sync::{watch, Notify};
use tokio::time::{sleep, Instant};
use tokio_postgres::types::{to_sql_checked, Format, IsNull, ToSql, Type};
use tokio_postgres::Row;

use crate::backoff::{backoff, random};
use crate::client::Shared;
use crate::connection::Session;
use crate::queue::{Latest, Queue, Sink};
use crate::{Client, Error, Event, Update};

const CHANNELS_OF: &str = "SELECT relation::text, channel::text FROM pinpoint.channels_of($1)";

/// The events of a live query. A slow consumer gets the newest one. Dropping it ends it.
pub struct Live {
    client: Client,
    live: Arc<LiveQuery>,
    queue: Arc<Queue<Latest>>,
}

impl Client {
    /// The rows of a query now, and after each change of a table that it reads. The parameters are those of `$1`, `$2`
    /// ..., with their types. Equal queries with equal parameters share one execution.
    ///
    /// # Errors
    ///
    /// [`Error::Parameter`] if a parameter cannot be sent with its type, and the error that has ended the client. An
    /// error of the query is an [`Update::Error`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn live(&self, query: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Live, Arc<Error>> {
        let parameters = parameters.iter().map(|(value, kind)| Parameter::new(*value, kind));
        let key = Arc::new(Key { query: query.to_owned(), parameters: parameters.collect::<Result<_, Error>>()? });
        let shared = self.shared();
        let queue = Arc::new(Queue::new(Latest::default(), shared.counters.clone()));
        let (live, is_new) = shared.state(|state| {
            let id = state.new_id()?;
            let new = || Arc::new(LiveQuery::new(key.clone(), id));
            let live = state.live.entry(key.clone()).or_insert_with(new).clone();
            live.consumers().push(queue.clone());
            let current = match state.current(&shared.connection) {
                Some(Event::Disconnected { reason, retry_in }) => Some(Update::Disconnected { reason, retry_in }),
                _ => live.failure().clone(),
            };
            if current.is_some() {
                queue.change(&mut state.index.wakers, |latest| latest.update = current);
            }
            let is_new = live.id == id;
            if is_new {
                state.index.insert(id, Sink::Live(live.clone()));
            }
            Ok::<_, Arc<Error>>((live, is_new))
        })?;
        live.dirty.notify_one(); // a result that is at hand may be older than this call
        if is_new {
            shared.start_listener();
            shared.spawn(Execution { shared: shared.clone(), live: live.clone() }.run());
        }
        Ok(Live { client: self.clone(), live, queue })
    }
}

impl Live {
    /// The next event; None after the end. An error is the last item.
    pub async fn next(&mut self) -> Option<Result<Update, Arc<Error>>> {
        poll_fn(|context| self.queue.poll_next(context)).await
    }
}

impl Stream for Live {
    type Item = Result<Update, Arc<Error>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.queue.poll_next(context)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.client.shared().state(|state| {
            let mut consumers = self.live.consumers();
            consumers.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
            if consumers.is_empty() {
                state.forget(&self.live);
                self.live.ended.notify_one();
                self.client.shared().changes.notify_one();
            }
        });
    }
}

/// What equal queries have in common.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub query: String,
    pub parameters: Vec<Parameter>,
}

/// A parameter as it is sent.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parameter {
    kind: Type,
    /// None is NULL.
    value: Option<BytesMut>,
    is_text: bool,
}

impl Parameter {
    pub fn new(value: &(dyn ToSql + Sync), kind: &Type) -> Result<Self, Error> {
        let mut bytes = BytesMut::new();
        let is_null = value.to_sql_checked(kind, &mut bytes).map_err(Error::Parameter)?;
        let value_or_null = matches!(is_null, IsNull::No).then_some(bytes);
        let is_text = matches!(value.encode_format(kind), Format::Text);
        Ok(Parameter { kind: kind.clone(), value: value_or_null, is_text })
    }
}

impl ToSql for Parameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(value) = &self.value else { return Ok(IsNull::Yes) };
        out.extend_from_slice(value);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        if self.is_text {
            Format::Text
        } else {
            Format::Binary
        }
    }

    to_sql_checked!();
}

/// One query that is executed for all its consumers.
pub(crate) struct LiveQuery {
    pub key: Arc<Key>,
    pub id: u64,
    consumers: Mutex<Vec<Arc<Queue<Latest>>>>,
    /// The last update, if it was an error. Whoever has its lock has the state.
    failure: Mutex<Option<Update>>,
    /// It has to be executed.
    pub dirty: Notify,
    ended: Notify,
}

impl LiveQuery {
    pub fn new(key: Arc<Key>, id: u64) -> Self {
        let (dirty, ended) = (Notify::new(), Notify::new());
        LiveQuery { key, id, consumers: Mutex::default(), failure: Mutex::default(), dirty, ended }
    }

    pub fn consumers(&self) -> MutexGuard<'_, Vec<Arc<Queue<Latest>>>> {
        self.consumers.lock().unwrap_or_else(|error| error.into_inner())
    }

    fn failure(&self) -> MutexGuard<'_, Option<Update>> {
        self.failure.lock().unwrap_or_else(|error| error.into_inner())
    }

    pub fn put(&self, wakers: &mut Vec<Waker>, event: Event) {
        if let Event::Disconnected { reason, retry_in } = event {
            self.tell(wakers, &Update::Disconnected { reason, retry_in });
        }
        self.dirty.notify_one();
    }

    pub fn end(&self, wakers: &mut Vec<Waker>, error: &Arc<Error>) {
        for queue in &*self.consumers() {
            queue.end(wakers, Some(error.clone()));
        }
    }

    fn tell(&self, wakers: &mut Vec<Waker>, update: &Update) {
        *self.failure() = matches!(update, Update::Error(_)).then(|| update.clone());
        for queue in &*self.consumers() {
            queue.change(wakers, |latest| latest.update = Some(update.clone()));
        }
    }
}

/// Executes a query for its consumers, which get an error if the task ends by itself.
pub(crate) struct Execution {
    pub shared: Arc<Shared>,
    pub live: Arc<LiveQuery>,
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.shared.state(|state| {
            state.forget(&self.live);
            self.live.end(&mut state.index.wakers, &Arc::new(Error::Ended));
        });
    }
}

impl Execution {
    /// Execute the query at each change, until nobody wants its results.
    pub async fn run(self) {
        tokio::select! {
            () = self.live.ended.notified() => {}
            () = self.execute_repeatedly() => {}
        }
    }

    async fn execute_repeatedly(&self) {
        let (shared, live) = (&self.shared, &self.live);
        let mut connection = shared.connection.subscribe();
        let mut failures = 0;
        loop {
            live.dirty.notified().await; // what changes from now on is in another execution
            if connection.wait_for(Option::is_some).await.is_err() {
                return;
            }
            let started = Instant::now();
            let mut lost = connection.clone();
            let result = tokio::select! {
                // The listening connection is lost: what is executing may never end.
                biased;
                _ = lost.changed() => {
                    live.dirty.notify_one();
                    continue;
                }
                result = self.execute(&connection) => result,
            };
            let (update, pause) = match result {
                Ok(None) => continue,
                Ok(Some(rows)) => {
                    failures = 0;
                    (Update::Rows(Arc::new(rows)), shared.options.min_interval.saturating_sub(started.elapsed()))
                }
                Err(error) => {
                    failures += 1;
                    live.dirty.notify_one();
                    let delay = backoff(shared.options.min_backoff, shared.options.max_backoff, failures, random());
                    if failures == 1 {
                        // Its message may have values of parameters.
                        let query = &*live.key.query;
                        tracing::warn!(query, sqlstate = error.code(), retry_in = ?delay, "a live query has failed");
                    }
                    (Update::Error(Arc::new(error)), delay)
                }
            };
            shared.state(|state| {
                if !is_lost(&connection) {
                    live.tell(&mut state.index.wakers, &update); // old rows do not follow the "disconnected"
                }
            });
            sleep(pause).await;
        }
    }

    /// The result: None if the client does not listen on all channels yet. When it does, the query is dirty.
    async fn execute(&self, connection: &watch::Receiver<Option<Event>>) -> Result<Option<Vec<Row>>, Error> {
        let shared = &self.shared;
        let _slot = shared.slots.acquire().await.map_err(|_| Error::Closed)?;
        let idle = shared.state(|state| {
            state.idle.retain(|session| !session.client.is_closed());
            state.idle.pop()
        });
        let is_used = idle.is_some();
        let mut session = match idle {
            Some(session) => session,
            None => Session::for_live(shared).await?,
        };
        let mut result = self.query(&session).await;
        let has_ended = is_used && matches!(&result, Err(error) if session.has_ended(error));
        if has_ended && !shared.state(|_| is_lost(connection)) {
            // While it was idle, or by the query itself, which the next one will show.
            session = Session::for_live(shared).await?;
            result = self.query(&session).await;
        }
        if !matches!(result, Err(Error::Lost(_))) {
            shared.state(|state| {
                if !is_lost(connection) {
                    state.idle.push(session);
                }
            });
        }
        result
    }

    async fn query(&self, session: &Session) -> Result<Option<Vec<Row>>, Error> {
        let (shared, live) = (&self.shared, &self.live);
        let mut channels = HashSet::new();
        for row in session.query(CHANNELS_OF, &[(&live.key.query, Type::TEXT)]).await? {
            let channel: Option<String> = row.get(1);
            channels.insert(channel.ok_or_else(|| Error::NotWatched(row.get(0)))?);
        }
        let told = shared.state(|state| state.index.set(live.id, &channels));
        shared.changes.notify_one();
        if !told {
            return Ok(None);
        }
        pin!(live.dirty.notified()).enable(); // what has changed until now is in this execution
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
            live.key.parameters.iter().map(|one| (one as &(dyn ToSql + Sync), one.kind.clone())).collect();
        let timeout = shared.options.query_timeout.unwrap_or(Duration::MAX);
        session.query_within(timeout, &live.key.query, &parameters).await.map(Some)
    }
}

/// Is the connection that hears another one, or none? The caller has the state.
fn is_lost(connection: &watch::Receiver<Option<Event>>) -> bool {
    connection.has_changed().unwrap_or(true)
}
