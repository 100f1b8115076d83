#![doc = include_str!("../README.md")]

mod connection;
mod listener;
mod live;
mod queue;

use std::collections::{HashMap, HashSet};
use std::future::{poll_fn, Future};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures_core::Stream;
use tokio::sync::{watch, Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{IsNull, ToSql, Type};
use tokio_postgres::{Config, Row, Socket};

use connection::{Connector, Session};
use listener::Listener;
use live::LiveQuery;
use queue::Queue;

/// How a client receives notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Find out.
    #[default]
    Auto,
    /// LISTEN
    Push,
    /// `pinpoint.wait()`
    Wait,
}

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The connection works, and listens on all channels. server_version: for instance 150018.
    Connected { server_version: i32, standby: bool, mode: Mode },
    /// These channels may have been notified while the client did not listen: read your tables.
    Changed(HashSet<String>),
    /// A notification. pid: the process ID of the session that sent it.
    Notification { channel: String, payload: String, pid: i32 },
    /// The connection was lost, or could not be made.
    Disconnected { reason: String, retry_in: Duration },
}

/// An event of a live query.
#[derive(Clone, Debug)]
pub enum Update {
    /// The result.
    Rows(Arc<Vec<Row>>),
    /// The query, or the connection for it, has failed. It is tried again. The same error is told once.
    Error(Arc<Error>),
    /// The connection was lost, or an attempt to connect has failed. The rows may be old.
    Disconnected { reason: String, retry_in: Duration },
}

/// Why something does not work.
#[derive(Debug)]
pub enum Error {
    /// An error of the server, or of the driver.
    Postgres(tokio_postgres::Error),
    /// An invalid name of a channel.
    Channel(String),
    /// A live query reads a table that is not watched.
    NotWatched(String),
    /// A live query on a server without pg_pinpoint 1.1.
    NoLive,
    /// The server cannot do what the client needs.
    Server(&'static str),
    /// The server does not answer, or is another one.
    Lost(String),
    /// The client was closed.
    Closed,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Postgres(error) => match (error.as_db_error(), std::error::Error::source(error)) {
                (Some(error), _) => write!(f, "{error}"),
                (None, Some(source)) => write!(f, "{error}: {source}"),
                (None, None) => write!(f, "{error}"),
            },
            Error::NotWatched(table) => write!(
                f,
                "the table \"{table}\" is not watched: execute SELECT pinpoint.watch('{}')",
                table.replace('\'', "''")
            ),
            Error::Channel(text) | Error::Lost(text) => f.write_str(text),
            Error::NoLive => f.write_str("live queries need the extension pg_pinpoint 1.1 or later in this database"),
            Error::Server(text) => f.write_str(text),
            Error::Closed => f.write_str("the client is closed"),
        }
    }
}

impl std::error::Error for Error {}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Error::Postgres(error)
    }
}

impl Error {
    /// The SQLSTATE: that of the server; 55000 if a table is not watched, 0A000 for a live query without
    /// pg_pinpoint 1.1. None of other errors.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Postgres(error) => error.code().map(|code| code.code()),
            Error::NotWatched(_) => Some("55000"),
            Error::NoLive => Some("0A000"),
            _ => None,
        }
    }
}

/// Options of a client. The defaults are those of [`Options::default`].
#[derive(Clone, Debug)]
pub struct Options {
    /// How the client receives notifications. Default: [`Mode::Auto`].
    pub mode: Mode,
    /// Between the beginnings of two executions of a live query. Default: 50 ms.
    pub min_interval: Duration,
    /// Bytes of events for one consumer. Default: 64 MB.
    pub buffer: usize,
    /// Between the first two attempts to connect; then twice the time, up to `max_backoff`. Default: 100 ms.
    pub min_backoff: Duration,
    /// The longest time between two attempts to connect. Default: 15 s.
    pub max_backoff: Duration,
    /// After so many failed attempts in succession, subscriptions end with an error. Default: no limit.
    pub max_attempts: u32,
    /// For an attempt to connect, for each host, and for short queries. Default: 10 s.
    pub timeout: Duration,
    /// For a live query. Default: 60 s.
    pub query_timeout: Duration,
    /// Between two checks of a connection without heartbeats. Default: 10 s.
    pub check_interval: Duration,
    /// In which a notification has to arrive through a pooler. Default: 3 s.
    pub probe_timeout: Duration,
    /// Connections that all live queries share. Default: 2.
    pub query_connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::Auto,
            min_interval: Duration::from_millis(50),
            buffer: 64 << 20,
            min_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(15),
            max_attempts: u32::MAX,
            timeout: Duration::from_secs(10),
            query_timeout: Duration::from_secs(60),
            check_interval: Duration::from_secs(10),
            probe_timeout: Duration::from_secs(3),
            query_connections: 2,
        }
    }
}

/// A parameter of a live query, and its type.
pub type Parameter = (Box<dyn ToSql + Send + Sync>, Type);

/// A query, and its parameters as they are sent; if they cannot be sent, a number of its own.
type LiveKey = (String, Result<Vec<(Type, Option<BytesMut>)>, u64>);

/// A client of one database. It connects when the first subscription is made. It ends
/// with [`Client::close`].
#[derive(Clone)]
pub struct Client(Arc<Shared>);

/// What the tasks of a client share.
struct Shared {
    options: Options,
    connector: Connector,
    slots: Semaphore,
    /// Notified when the channels of the subscriptions have changed.
    changes: Notify,
    /// The number of the connection that hears, 0 if there is none.
    connected: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    subscriptions: HashMap<u64, Subscriber>,
    connection: Option<Event>,
    position: Option<String>,
    live: HashMap<LiveKey, Arc<LiveQuery>>,
    idle: Vec<Session>,
    tasks: Vec<JoinHandle<()>>,
    error: Option<Arc<Error>>,
}

impl State {
    /// Start a task that ends with the client.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(tokio::spawn(task));
    }
}

/// A subscription, as the listener sees it.
struct Subscriber {
    channels: HashSet<String>,
    /// Of which the consumer has been told.
    heard: HashSet<String>,
    told: Arc<Notify>,
    queue: Arc<Queue>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// End all consumers with an error.
    fn fail(&self, error: Error) {
        let mut state = self.state();
        let error = state.error.get_or_insert(Arc::new(error)).clone();
        for subscriber in state.subscriptions.values() {
            subscriber.queue.end(Some(error.clone()));
        }
        for (_, live) in state.live.drain() {
            live.results.send_modify(|latest| latest.error = Some(error.clone()));
        }
    }
}

impl Client {
    /// config and tls: as for tokio_postgres. Several hosts are tried in turn.
    pub fn new<T>(mut config: Config, tls: T, options: Options) -> Client
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(options.timeout);
        }
        Client(Arc::new(Shared {
            connector: connection::connector(config, tls, options.timeout),
            slots: Semaphore::new(options.query_connections),
            options,
            changes: Notify::new(),
            connected: watch::channel(0).0,
            state: Mutex::default(),
        }))
    }

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
        let subscription = self.start(&mut self.0.state())?;
        subscription.add(channels)?;
        Ok(subscription)
    }

    /// A subscription without channels.
    fn start(&self, state: &mut State) -> Result<Subscription, Arc<Error>> {
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let _runtime = tokio::runtime::Handle::current(); // panics here, and not below
        let queue = Arc::new(Queue::new(self.0.options.buffer));
        if let Some(event) = &state.connection {
            queue.put(event.clone());
        }
        state.next_id += 1;
        let (id, told) = (state.next_id, Arc::new(Notify::new()));
        let subscriber = Subscriber { channels: HashSet::new(), heard: HashSet::new(), told, queue: queue.clone() };
        state.subscriptions.insert(id, subscriber);
        if id == 1 {
            state.spawn(Listener::new(self.0.clone()).run());
        }
        Ok(Subscription(Handle { id, queue, client: self.clone() }))
    }

    /// The rows of a query now, and after each change of a table that it reads. The parameters are those of
    /// `$1`, `$2` ...
    ///
    /// # Errors
    ///
    /// The error that has ended the client. An error of the query is an [`Update::Error`].
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn live(&self, query: &str, parameters: Vec<Parameter>) -> Result<Live, Arc<Error>> {
        let mut state = self.0.state();
        let key = (query.to_owned(), encoded(&parameters).ok_or(state.next_id));
        if !state.live.contains_key(&key) {
            let subscription = self.start(&mut state)?;
            let shared = Arc::new(LiveQuery::new(query, parameters, subscription.id));
            state.spawn(live::run(self.0.clone(), shared.clone(), subscription));
            state.live.insert(key.clone(), shared);
        }
        let shared = &state.live[&key];
        let results = shared.results.subscribe();
        shared.dirty.notify_one(); // a result that is at hand may be older than this call
        Ok(Live { key, client: self.clone(), results, told: None })
    }

    /// End all subscriptions, live queries and connections. Their last item is [`Error::Closed`].
    pub async fn close(&self) {
        self.0.fail(Error::Closed);
        let tasks = std::mem::take(&mut self.0.state().tasks);
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        self.0.state().idle.clear();
    }
}

/// The events of some channels. Its methods to change the channels are those of [`Handle`].
pub struct Subscription(Handle);

/// Changes the channels of a subscription, also while another task waits for its events.
#[derive(Clone)]
pub struct Handle {
    id: u64,
    queue: Arc<Queue>,
    client: Client,
}

impl Subscription {
    /// The next event; None after the end. An error is the last item.
    pub async fn next(&mut self) -> Option<Result<Event, Arc<Error>>> {
        poll_fn(|context| self.queue.poll_next(context)).await
    }

    /// What another task needs to change the channels, or to end the subscription.
    pub fn handle(&self) -> Handle {
        self.0.clone()
    }
}

impl Deref for Subscription {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.0
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.close();
    }
}

impl Stream for Subscription {
    type Item = Result<Event, Arc<Error>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.queue.poll_next(context)
    }
}

impl Handle {
    /// Listen on more channels. Each begins with [`Event::Changed`]. [`Error::Channel`] if a name is not valid.
    pub fn add<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) -> Result<(), Error> {
        let channels: Vec<String> = channels.into_iter().map(|channel| channel.as_ref().to_owned()).collect();
        channels.iter().try_for_each(|channel| check_channel(channel))?;
        self.update(|subscriber| subscriber.channels.extend(channels));
        Ok(())
    }

    /// Listen on fewer channels. Events that are already in the queue still follow.
    pub fn remove<S: AsRef<str>>(&self, channels: impl IntoIterator<Item = S>) {
        self.update(|subscriber| {
            for channel in channels {
                subscriber.channels.remove(channel.as_ref());
                subscriber.heard.remove(channel.as_ref());
            }
        });
    }

    /// End the subscription; [`Subscription::next`] then returns None.
    pub fn close(&self) {
        self.client.0.state().subscriptions.remove(&self.id);
        self.client.0.changes.notify_one();
        self.queue.end(None);
    }

    fn update(&self, change: impl FnOnce(&mut Subscriber)) {
        if let Some(subscriber) = self.client.0.state().subscriptions.get_mut(&self.id) {
            change(subscriber);
        }
        self.client.0.changes.notify_one();
    }
}

/// The events of a live query. A slow consumer gets the newest one.
pub struct Live {
    key: LiveKey,
    client: Client,
    results: watch::Receiver<live::Latest>,
    /// The message, if the last event was an error.
    told: Option<String>,
}

impl Live {
    /// The next event. An error is final.
    pub async fn next(&mut self) -> Result<Update, Arc<Error>> {
        loop {
            let error = self.results.borrow().error.clone();
            if let Some(error) = error {
                return Err(error);
            }
            if self.results.changed().await.is_err() {
                return Err(Arc::new(Error::Closed));
            }
            let latest = self.results.borrow_and_update();
            if let (None, Some(update)) = (&latest.error, &latest.update) {
                let message = match update {
                    Update::Error(error) => Some(error.to_string()),
                    _ => None,
                };
                if message.is_none() || message != self.told {
                    self.told = message;
                    return Ok(update.clone());
                }
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut state = self.client.0.state();
        if let Some(shared) = state.live.get(&self.key) {
            self.results = watch::channel(live::Latest::default()).1; // so that it is not counted
            if shared.results.receiver_count() == 0 {
                shared.ended.notify_one();
                state.live.remove(&self.key);
            }
        }
    }
}

/// None if one of them cannot be sent.
fn encoded(parameters: &[Parameter]) -> Option<Vec<(Type, Option<BytesMut>)>> {
    let encode = |(value, kind): &Parameter| {
        let mut bytes = BytesMut::new();
        let is_null = value.to_sql_checked(kind, &mut bytes).ok()?;
        Some((kind.clone(), matches!(is_null, IsNull::No).then_some(bytes)))
    };
    parameters.iter().map(encode).collect()
}

fn check_channel(channel: &str) -> Result<(), Error> {
    let error = match channel {
        "" => "the name of a channel cannot be empty".to_owned(),
        listener::HEARTBEAT => format!("the channel \"{channel}\" is for the client itself"),
        _ if channel.len() > 63 => format!("the name of a channel can have 63 bytes: \"{channel}\" is longer"),
        _ if channel.contains('\0') => "the name of a channel cannot contain the character NUL".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::Channel(error))
}
