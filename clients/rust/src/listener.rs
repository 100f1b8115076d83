//! The connection that receives notifications: by LISTEN and heartbeats, or by pinpoint.wait().

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until, Instant};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::Notification;

use crate::backoff::{backoff, count_failures, random};
use crate::client::Shared;
use crate::connection::{check_server, Parameters, Server, Session};
use crate::error::{NO_LISTEN, NO_WAIT};
use crate::index::Name;
use crate::{Error, Event, Mode};

pub(crate) const HEARTBEAT: &str = "pinpoint_heartbeat";

const CHANGED_SINCE: &str = "SELECT changed::text[], position FROM pinpoint.changed_since($1, VARIADIC $2)";
/// Of those of the channels that watched tables have.
const TABLES_CHANGED: &str = "SELECT changed::text[], position FROM pinpoint.changed_since($1, \
     VARIADIC ARRAY(SELECT channel::text FROM pinpoint.watched WHERE channel = ANY ($2)))";
const WAIT: &str = "CALL pinpoint.wait($1, $2, $3::interval)";

/// Keeps one connection that receives the notifications of a client, which ends with it.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    waits: bool,
    /// The beginning of the last connection that worked.
    since: Instant,
    /// The fields below are of the connection.
    any_heartbeat: bool,
    /// Without heartbeats: when to ask for changes that do not notify, and since which position.
    ask_at: Instant,
    asked: Option<String>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.end(Error::Ended);
    }
}

impl Listener {
    pub fn new(shared: Arc<Shared>) -> Self {
        let (waits, now) = (shared.options.mode == Mode::Wait, Instant::now());
        Listener { shared, waits, since: now, any_heartbeat: false, ask_at: now, asked: None }
    }

    pub async fn run(mut self) {
        let options = self.shared.options.clone();
        let mut failures = 0;
        loop {
            let Err(error) = self.session().await;
            failures = count_failures(failures, self.lose(&error), options.max_backoff);
            let too_many = options.max_attempts.is_some_and(|most| failures > most);
            let never_connected = self.shared.counters.connections.load(Ordering::Relaxed) == 0;
            if too_many || never_connected && error.is_permanent() {
                self.shared.end(error);
                return;
            }
            let delay = backoff(options.min_backoff, options.max_backoff, failures, random());
            tracing::warn!(error = %error, retry_in = ?delay, "not connected");
            self.shared.state(|state| state.fail(error.to_string(), delay));
            sleep(delay).await;
        }
    }

    /// Forget the connection. The result: how long it has worked, if it has.
    fn lose(&self, error: &Error) -> Option<Duration> {
        self.shared.state(|state| {
            if error.code() == Some(SqlState::INVALID_TEXT_REPRESENTATION.code()) {
                state.position = None; // of a false heartbeat, or unknown to an older version: ask without
            }
            self.shared.disconnect(state).then(|| self.since.elapsed())
        })
    }

    /// Connect, and receive until the connection is lost.
    async fn session(&mut self) -> Result<Infallible, Error> {
        let mut session = (self.shared.connector)().await?;
        let server = session.inquire().await?;
        let waits = self.has_to_wait(&mut session, &server).await?;
        if waits && !server.current {
            return Err(NO_WAIT);
        }
        self.any_heartbeat = false;
        self.shared.state(|state| {
            state.index.restart();
            state.heard = Some(Instant::now());
            state.own_sessions = false;
            if !server.pinpoint {
                state.position = None;
            }
        });
        let mode = if waits { Mode::Wait } else { Mode::Push };
        let connected = Event::Connected { server_version: server.version, standby: server.standby, mode };
        if waits {
            self.wait(session, connected, &server).await
        } else {
            self.listen(&mut session, connected, &server).await
        }
    }

    /// Is pinpoint.wait() needed instead of LISTEN?
    async fn has_to_wait(&self, session: &mut Session, server: &Server) -> Result<bool, Error> {
        if self.waits || self.shared.options.mode != Mode::Auto {
            return Ok(self.waits);
        }
        if server.standby {
            // It cannot notify: heartbeats tell whether LISTEN works. Without them, nothing would.
            return Ok(server.current && server.interval.is_zero());
        }
        Ok(!self.hears(session, server).await?)
    }

    /// Does a notification arrive while no transaction is running? The driver does not tell the
    /// process ID of the session, so this is not known otherwise.
    async fn hears(&self, session: &mut Session, server: &Server) -> Result<bool, Error> {
        let channel = format!("pinpoint_probe_{:016x}", getrandom::u64().unwrap_or(0));
        session.execute(&format!("LISTEN {channel}")).await?;
        (self.shared.connector)().await?.query("SELECT pg_notify($1, '')", &[(&channel, Type::TEXT)]).await?;
        // Through a pooler, there may be notifications that another client of its listens for.
        let arrives = async {
            while session.notification().await?.channel() != channel {}
            Ok::<_, Error>(true)
        };
        let heard = tokio::time::timeout(self.shared.options.probe_timeout, arrives).await.unwrap_or(Ok(false))?;
        session.execute(&format!("UNLISTEN {channel}")).await?;
        if !heard && !server.current {
            return Err(NO_LISTEN);
        }
        Ok(heard)
    }

    fn begin(&mut self, connected: Event) {
        tracing::info!(connection = ?connected, "connected");
        self.since = Instant::now();
        self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        self.shared.state(|state| {
            state.index.put_all(&connected); // those that come later are told when they begin
            self.shared.connection.send_replace(Some(connected));
            state.failure = None;
        });
    }

    // ---- LISTEN -------------------------------------------------------------------

    async fn listen(&mut self, session: &mut Session, connected: Event, server: &Server) -> Result<Infallible, Error> {
        if !server.interval.is_zero() {
            session.execute(&format!("LISTEN {HEARTBEAT}")).await?;
        }
        // On a standby, only a heartbeat shows that LISTEN works.
        if !server.standby || self.shared.options.mode == Mode::Push {
            self.own(session).await?;
        }
        let mut connected = Some(connected);
        loop {
            let (fresh, gone) = self.shared.state(|state| state.index.take());
            listen_to(session, "listen", &fresh, server.current).await?;
            listen_to(session, "unlisten", &gone, server.current).await?;
            let mut changed = Vec::new();
            if let Some(connected) = connected.take() {
                changed = self.missed(session, &fresh, server).await?;
                self.begin(connected);
            }
            self.shared.state(|state| state.index.tell(&changed));
            self.read(session, server).await?;
        }
    }

    /// The session is for this client only.
    async fn own(&self, session: &Session) -> Result<(), Error> {
        self.shared.state(|state| state.own_sessions = true);
        session.stay().await
    }

    /// Those of the channels that may have changed since the position of the last connection.
    async fn missed(&mut self, session: &Session, channels: &[Name], server: &Server) -> Result<Vec<String>, Error> {
        if !server.pinpoint {
            return Ok(channels.iter().map(|channel| (**channel).to_owned()).collect());
        }
        let position = self.shared.state(|state| state.position.clone());
        let changed = self.changed_since(session, CHANGED_SINCE, position, &names(channels)).await?;
        self.shared.state(|state| state.position.clone_from(&self.asked));
        Ok(changed)
    }

    async fn changed_since(
        &mut self,
        session: &Session,
        query: &str,
        position: Option<String>,
        channels: &[&str],
    ) -> Result<Vec<String>, Error> {
        self.ask_at = Instant::now() + 6 * self.shared.options.check_interval;
        let parameters: Parameters = &[(&position, Type::TEXT), (&channels, Type::TEXT_ARRAY)];
        let row = session.fetch(query, parameters).await?;
        self.asked = row.get(1);
        Ok(row.get(0))
    }

    /// Read notifications until the channels change, or the connection is lost.
    async fn read(&mut self, session: &mut Session, server: &Server) -> Result<(), Error> {
        let shared = self.shared.clone();
        let asks = server.current && server.interval.is_zero();
        let quiet = if server.interval.is_zero() { shared.options.check_interval } else { server.interval * 3 };
        loop {
            let silent_at = shared.state(|state| state.heard).map_or_else(Instant::now, |heard| heard + quiet);
            tokio::select! {
                biased;
                () = shared.changes.notified() => return Ok(()),
                () = sleep_until(self.ask_at), if asks => self.ask(session).await?,
                notification = session.notification() => {
                    let first = self.receive(&notification?);
                    if first && server.standby {
                        self.own(session).await?;
                    }
                }
                () = sleep_until(silent_at) => self.check_silent(session, server, quiet).await?,
            }
        }
    }

    /// Give a notification to its subscribers. The result: whether it is the first heartbeat.
    fn receive(&mut self, notification: &Notification) -> bool {
        let (channel, payload) = (notification.channel(), notification.payload());
        let is_heartbeat = channel == HEARTBEAT;
        let dropping = self.shared.state(|state| {
            state.heard = Some(Instant::now());
            if is_heartbeat {
                state.position = payload.split(' ').next().map(str::to_owned);
            }
            state.index.give(channel, payload, notification.process_id()) // nobody has the channel of heartbeats
        });
        if dropping > 0 {
            tracing::warn!(channel, consumers = dropping, "events are dropped, because consumers are slow");
        }
        is_heartbeat && !std::mem::replace(&mut self.any_heartbeat, true)
    }

    /// Without heartbeats, there are changes that do not notify, for instance ALTER TABLE: ask for those of watched tables.
    /// A channel that is only notified may count as changed each time.
    async fn ask(&mut self, session: &Session) -> Result<(), Error> {
        let channels = self.shared.state(|state| state.index.names());
        let changed = self.changed_since(session, TABLES_CHANGED, self.asked.clone(), &names(&channels)).await?;
        self.shared.state(|state| state.index.tell(&changed));
        Ok(())
    }

    /// Is a connection without a message for so long lost?
    async fn check_silent(&mut self, session: &Session, server: &Server, quiet: Duration) -> Result<(), Error> {
        if !server.interval.is_zero() {
            if server.current && !self.any_heartbeat && self.shared.options.mode == Mode::Auto {
                session.inquire().await?; // it is not the connection
                self.waits = true;
            }
            return Err(Error::Lost(format!("no heartbeat for {quiet:?}")));
        }
        if session.inquire().await?.pinpoint != server.pinpoint {
            return Err(Error::Lost("the extension pg_pinpoint was created or dropped".to_owned()));
        }
        self.shared.state(|state| state.heard = Some(Instant::now()));
        Ok(())
    }

    // ---- pinpoint.wait() ------------------------------------------------------------

    async fn wait(&mut self, mut session: Session, connected: Event, server: &Server) -> Result<Infallible, Error> {
        let (shared, options) = (self.shared.clone(), self.shared.options.clone());
        let limit = if server.time_limit.is_zero() { options.check_interval } else { server.time_limit / 2 };
        let timeout = options.check_interval.min(limit);
        let mut connected = Some(connected);
        let mut first = true;
        loop {
            session.notifications.close(); // of other clients of a pooler
            let (wanted, position) = shared.state(|state| {
                state.index.restart(); // each call has all channels
                let (wanted, _) = state.index.take();
                if connected.is_none() {
                    state.index.tell::<&str>(&[]);
                }
                (wanted, state.position.clone())
            });
            let mut channels = names(&wanted);
            if channels.is_empty() {
                channels.push(HEARTBEAT);
            }
            // The first call shows whether it works. It ends at once, so each connection brings an
            // answer, however often the channels change.
            let seconds = format!("{} s", if first { 0.0 } else { timeout.as_secs_f64() });
            let parameters: Parameters =
                &[(&channels, Type::TEXT_ARRAY), (&position, Type::TEXT), (&seconds, Type::TEXT)];
            let result = {
                let mut call = pin!(session.query_within(timeout + options.timeout, WAIT, parameters));
                loop {
                    tokio::select! {
                        result = &mut call => break Some(result),
                        () = shared.changes.notified(), if !first => {
                            // Tell those whose channels the call has.
                            if !shared.state(|state| state.index.tell::<&str>(&[])) {
                                break None;
                            }
                        }
                    }
                }
            };
            let rows = match result {
                // By a limit of the server.
                Some(Err(error)) if !first && error.code() == Some(SqlState::QUERY_CANCELED.code()) => continue,
                Some(rows) => rows?,
                None => {
                    // The server ends the call: wait for the other channels on a new connection.
                    drop(session);
                    session = (shared.connector)().await?;
                    first = true;
                    continue;
                }
            };
            let (changed, told): (Vec<String>, String) = (rows[0].get(0), rows[0].get(1));
            if first && connected.is_none() {
                check_server(position, &told)?; // the live queries have theirs
            }
            first = false;
            shared.state(|state| {
                state.position = Some(told);
                state.heard = Some(Instant::now());
            });
            if let Some(connected) = connected.take() {
                self.begin(connected);
            }
            shared.state(|state| state.index.tell(&changed));
            if !changed.is_empty() {
                sleep(options.min_interval).await;
            }
        }
    }
}

/// Make the connection listen to these channels, too, or no longer. verb: "listen" or "unlisten"
async fn listen_to(session: &Session, verb: &str, channels: &[Name], has_listen: bool) -> Result<(), Error> {
    // A server may need some seconds for 10,000 at once.
    for some in channels.chunks(1000) {
        if has_listen {
            let query = format!("SELECT pinpoint.{verb}(VARIADIC $1)");
            session.query(&query, &[(&names(some), Type::TEXT_ARRAY)]).await?;
        } else {
            let statement = |channel: &Name| format!("{verb} \"{}\";", channel.replace('"', "\"\""));
            session.execute(&some.iter().map(statement).collect::<String>()).await?;
        }
    }
    Ok(())
}

fn names<'a>(channels: impl IntoIterator<Item = &'a Name>) -> Vec<&'a str> {
    channels.into_iter().map(|channel| &**channel).collect()
}
