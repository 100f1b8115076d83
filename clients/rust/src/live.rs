//! Live queries: rows now, and again after each change.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::{watch, Notify};
use tokio::time::{sleep, Instant};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::Row;

use crate::connection::{within, Session};
use crate::listener::{server_of, POSITION};
use crate::{Error, Event, Parameter, Shared, Subscription, Update};

const CHANNELS_OF: &str = "SELECT relation::text, channel::text FROM pinpoint.channels_of($1)";

/// One query that is executed for all its consumers.
pub(crate) struct LiveQuery {
    query: String,
    parameters: Vec<Parameter>,
    subscription: u64,
    pub dirty: Notify,
    pub ended: Notify,
    pub results: watch::Sender<Latest>,
}

#[derive(Default)]
pub(crate) struct Latest {
    pub update: Option<Update>,
    pub error: Option<Arc<Error>>,
}

impl LiveQuery {
    pub fn new(query: &str, parameters: Vec<Parameter>, subscription: u64) -> Self {
        LiveQuery {
            query: query.to_owned(),
            parameters,
            subscription,
            dirty: Notify::new(),
            ended: Notify::new(),
            results: watch::channel(Latest::default()).0,
        }
    }

    fn tell(&self, update: Update) {
        self.results.send_modify(|latest| latest.update = Some(update));
    }
}

/// Execute the query at each change, until nobody wants its results.
pub(crate) async fn run(shared: Arc<Shared>, live: Arc<LiveQuery>, mut subscription: Subscription) {
    let changes = async {
        while let Some(Ok(event)) = subscription.next().await {
            if let Event::Disconnected { reason, retry_in } = event {
                live.tell(Update::Disconnected { reason, retry_in });
            }
            live.dirty.notify_one();
        }
    };
    tokio::select! {
        () = live.ended.notified() => {}
        () = execute_repeatedly(&shared, &live) => {}
        () = changes => {}
    }
}

async fn execute_repeatedly(shared: &Shared, live: &LiveQuery) {
    let options = &shared.options;
    let mut connected = shared.connected.subscribe();
    let mut failures = 0u32;
    loop {
        live.dirty.notified().await; // what changes from now on is in another execution
        let Ok(number) = connected.wait_for(|number| *number != 0).await.map(|number| *number) else { return };
        let started = Instant::now();
        let result = tokio::select! {
            // The listening connection is lost: what is executing may never end, and its rows must not
            // follow the "disconnected".
            biased;
            _ = connected.wait_for(|now| *now != number) => None,
            result = execute(shared, live, number) => Some(result),
        };
        match result {
            Some(Ok(rows)) => {
                failures = 0;
                live.tell(Update::Rows(Arc::new(rows)));
                sleep(options.min_interval.saturating_sub(started.elapsed())).await;
            }
            failed => {
                live.dirty.notify_one();
                failures += 1;
                if let Some(Err(error)) = failed {
                    live.tell(Update::Error(Arc::new(error)));
                }
                sleep(options.min_backoff.saturating_mul(1 << failures.min(20)).min(options.max_backoff)).await;
            }
        }
    }
}

/// number: of the connection that hears.
async fn execute(shared: &Shared, live: &LiveQuery, number: u64) -> Result<Vec<Row>, Error> {
    let _slot = shared.slots.acquire().await.map_err(|_| Error::Closed)?;
    let idle = shared.state().idle.pop();
    let session = match idle {
        Some(session) => session,
        None => connect(shared).await?,
    };
    let result = within(shared.options.query_timeout, query(shared, live, &session)).await;
    let is_lost = matches!(result, Err(Error::Lost(_))) || session.client.is_closed();
    if !is_lost {
        let mut state = shared.state(); // as when the listener is lost: it clears "idle"
        if *shared.connected.borrow() == number {
            state.idle.push(session);
        }
    }
    result
}

async fn query(shared: &Shared, live: &LiveQuery, session: &Session) -> Result<Vec<Row>, Error> {
    listen_to_tables(shared, live, session).await?;
    let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        live.parameters.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
    Ok(session.client.query_typed(&live.query, &parameters).await?)
}

/// Connect to the server on which the client listens.
async fn connect(shared: &Shared) -> Result<Session, Error> {
    let heard = shared.state().position.clone();
    let heard = heard.ok_or(Error::NoLive)?;
    let mut session = (shared.connector)().await?;
    session.notifications.close(); // of other clients of a pooler
    let position: String = session.fetch(POSITION, &[]).await?.get(0);
    if server_of(&position) != server_of(&heard) {
        let text = "the connection leads to another server than the one on which the client listens";
        return Err(Error::Lost(text.to_owned()));
    }
    Ok(session)
}

/// Listen on the channels of the tables that the query reads, before it is executed.
async fn listen_to_tables(shared: &Shared, live: &LiveQuery, session: &Session) -> Result<(), Error> {
    let mut channels = HashSet::new();
    for row in session.query(CHANNELS_OF, &[(&live.query, Type::TEXT)]).await? {
        let channel: Option<String> = row.get(1);
        channels.insert(channel.ok_or_else(|| Error::NotWatched(row.get(0)))?);
    }
    loop {
        let told = {
            let mut state = shared.state();
            let Some(subscriber) = state.subscriptions.get_mut(&live.subscription) else { return Err(Error::Closed) };
            if subscriber.channels != channels {
                subscriber.channels.clone_from(&channels);
                subscriber.heard.retain(|channel| channels.contains(channel));
                shared.changes.notify_one();
            }
            if channels.is_subset(&subscriber.heard) {
                return Ok(());
            }
            subscriber.told.clone()
        };
        told.notified().await;
    }
}
