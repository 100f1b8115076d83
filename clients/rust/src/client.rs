//! A client, and what its tasks share.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::{watch, Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, Socket};

use crate::connection::{self, Connector, Session};
use crate::index::Index;
use crate::listener::Listener;
use crate::live_query::{Key, LiveQuery};
use crate::queue::Counters;
use crate::{Error, Event, Options};

/// A client of one database. It connects when the first subscription is made, in the Tokio runtime of that call. It
/// ends with [`Client::close`], or when its last clone, subscription, [`Handle`](crate::Handle) and live query are
/// dropped.
#[derive(Clone)]
pub struct Client(Arc<Owner>);

/// Ends the client when it is dropped. The tasks of the client do not have it.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

/// What a client has done until now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Events given to consumers.
    pub events: u64,
    /// Events dropped because a consumer was slow.
    pub dropped: u64,
    /// Connections that worked after the first one.
    pub reconnects: u64,
    /// Since the server was last heard. None: never.
    pub quiet: Option<Duration>,
}

/// What the tasks of a client share.
pub(crate) struct Shared {
    pub options: Options,
    pub connector: Connector,
    /// Of connections for live queries.
    pub slots: Semaphore,
    /// Notified when the channels of the subscribers have changed.
    pub changes: Notify,
    /// [`Event::Connected`] of the connection that hears. It changes while the state is locked.
    pub connection: watch::Sender<Option<Event>>,
    pub counters: Arc<Counters>,
    started: Once,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    next_id: u64,
    pub index: Index,
    pub position: Option<String>,
    /// Why there is no connection, and when the next attempt is.
    pub failure: Option<(String, Instant)>,
    pub heard: Option<Instant>,
    /// LISTEN works, so a session is for this client only.
    pub own_sessions: bool,
    pub live: HashMap<Arc<Key>, Arc<LiveQuery>>,
    pub idle: Vec<Session>,
    tasks: Vec<JoinHandle<()>>,
    pub error: Option<Arc<Error>>,
}

impl State {
    /// Tell all consumers that there is no connection.
    pub fn fail(&mut self, reason: String, retry_in: Duration) {
        self.index.put_all(&Event::Disconnected { reason: reason.clone(), retry_in });
        self.failure = Some((reason, Instant::now() + retry_in));
    }

    /// What a new consumer is told: `Connected`, `Disconnected`, or nothing while the first attempt goes on.
    pub fn current(&self, connection: &watch::Sender<Option<Event>>) -> Option<Event> {
        connection.borrow().clone().or_else(|| {
            let (reason, retry_at) = self.failure.clone()?;
            Some(Event::Disconnected { reason, retry_in: retry_at.saturating_duration_since(Instant::now()) })
        })
    }

    /// The number of a new subscriber. The error: that which has ended the client.
    pub fn new_id(&mut self) -> Result<u64, Arc<Error>> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let _runtime = tokio::runtime::Handle::current(); // panics here, and not later
        self.next_id += 1;
        Ok(self.next_id)
    }

    /// Nobody wants a live query any longer, or it cannot go on.
    pub fn forget(&mut self, live: &Arc<LiveQuery>) {
        if self.index.delete(live.id) {
            self.live.remove(&live.key);
        }
    }
}

impl Shared {
    pub fn new(options: Options, connector: Connector) -> Self {
        Shared {
            connector,
            slots: Semaphore::new(options.query_connections),
            options,
            changes: Notify::new(),
            connection: watch::channel(None).0,
            counters: Arc::default(),
            started: Once::new(),
            state: Mutex::default(),
        }
    }

    /// Start a task that ends with the client. The caller does not have the state.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(task); // if the runtime has ended, it is dropped here, and locks the state
        self.state(|state| {
            if state.error.is_some() {
                task.abort(); // the client has ended meanwhile
            }
            state.tasks.retain(|task| !task.is_finished());
            state.tasks.push(task);
        });
    }

    /// Start to listen, with the first subscriber.
    pub fn start_listener(self: &Arc<Self>) {
        self.started.call_once(|| self.spawn(Listener::new(self.clone()).run()));
    }

    /// Use the state, which is locked meanwhile. Consumers are woken afterwards: their executor may poll or drop them
    /// at once, and they use the state, too. Tasks of the client can be woken meanwhile: Tokio neither polls nor drops
    /// them then.
    pub fn state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap_or_else(|error| error.into_inner());
        let result = work(&mut state);
        let wakers = std::mem::take(&mut state.index.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// The client has no connection. The result: whether it had one.
    pub fn disconnect(&self, state: &mut State) -> bool {
        state.idle.clear();
        self.connection.send_replace(None).is_some()
    }

    /// End the client: its consumers with an error, its tasks and their connections. The result: the tasks, to wait for.
    pub fn end(&self, error: Error) -> Vec<JoinHandle<()>> {
        let error = Arc::new(error);
        let ended = self.state(|state| {
            if state.error.is_some() {
                return None;
            }
            state.index.end_all(&error);
            state.live.clear();
            state.error = Some(error.clone());
            self.disconnect(state);
            Some(std::mem::take(&mut state.tasks))
        });
        let Some(tasks) = ended else { return Vec::new() };
        tasks.iter().for_each(JoinHandle::abort);
        match *error {
            Error::Closed => {}
            Error::Ended if !std::thread::panicking() => tracing::info!("the client has ended with its runtime"),
            _ => tracing::error!(error = %error, "the client has ended"),
        }
        tasks
    }
}

impl Client {
    /// config and tls: as for tokio_postgres. Several hosts are tried in turn.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if an option is out of its range.
    pub fn new<T>(mut config: Config, tls: T, options: Options) -> Result<Client, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        options.check()?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(options.timeout);
        }
        let connector = connection::connector(config, tls, options.timeout);
        Ok(Client(Arc::new(Owner(Arc::new(Shared::new(options, connector))))))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0 .0
    }

    /// What the client has done until now.
    pub fn stats(&self) -> Stats {
        let counters = &self.shared().counters;
        Stats {
            events: counters.events.load(Ordering::Relaxed),
            dropped: counters.dropped.load(Ordering::Relaxed),
            reconnects: counters.connections.load(Ordering::Relaxed).saturating_sub(1),
            quiet: self.shared().state(|state| state.heard).map(|heard| heard.elapsed()),
        }
    }

    /// End all subscriptions, live queries and connections. Their last item is [`Error::Closed`].
    pub async fn close(&self) {
        for task in self.shared().end(Error::Closed) {
            let _ = task.await;
        }
    }
}
