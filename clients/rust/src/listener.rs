//! The connection that receives notifications: by LISTEN and heartbeats, or by pinpoint.wait().

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until, Instant};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::connection::{within, Session};
use crate::{Error, Event, Mode, Shared, State};

pub(crate) const HEARTBEAT: &str = "pinpoint_heartbeat";

// to_regproc returns NULL on a server without pg_pinpoint.
const INQUIRY: &str = "
    SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
           to_regproc('pinpoint.changed_since') IS NOT NULL,
           to_regproc('pinpoint.wait') IS NOT NULL,
           coalesce((SELECT setting::int FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'), 0),
           (SELECT coalesce(min(setting::int), 0) FROM pg_settings
            WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')";
const HAS_PINPOINT: &str = "SELECT to_regproc('pinpoint.changed_since') IS NOT NULL";
pub(crate) const POSITION: &str = "SELECT pinpoint.position()";
const CHANGED_SINCE: &str = "SELECT changed::text[], position FROM pinpoint.changed_since($1, VARIADIC $2)";
const WAIT: &str = "CALL pinpoint.wait($1, $2, $3::interval)";

const NO_LISTEN: &str =
    "LISTEN does not work through this connection, because a pooler gives each transaction another \
    session; connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later in this database";
const NO_WAIT: &str = "waiting needs the extension pg_pinpoint 1.1 or later in this database";

/// What a client knows of the server of a connection.
struct Server {
    pinpoint: bool,
    has_wait: bool,
    /// Of heartbeats; zero if there are none.
    interval: Duration,
    /// Of a statement or a transaction; zero if there is none.
    time_limit: Duration,
}

/// Keeps one connection that receives the notifications of a client.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    waits: bool,
    ever_connected: bool,
    connections: u64,
    listened: HashSet<String>,
}

impl Listener {
    pub fn new(shared: Arc<Shared>) -> Self {
        let waits = shared.options.mode == Mode::Wait;
        Listener { shared, waits, ever_connected: false, connections: 0, listened: HashSet::new() }
    }

    pub async fn run(mut self) {
        let options = self.shared.options.clone();
        let mut failures = 0u32;
        loop {
            let Err(error) = self.session().await else { continue };
            if error.code() == Some(SqlState::INVALID_TEXT_REPRESENTATION.code()) {
                // Of a false heartbeat, or unknown to an older version: ask without.
                self.shared.state().position = None;
            }
            let was_connected = self.shared.state().connection.take().is_some();
            self.shared.connected.send_replace(0);
            self.shared.state().idle.clear();
            failures = if was_connected { 1 } else { failures + 1 };
            if (!self.ever_connected && is_permanent(&error)) || failures > options.max_attempts {
                self.shared.fail(error);
                return;
            }
            let delay = options.min_backoff.saturating_mul(1 << (failures - 1).min(20)).min(options.max_backoff);
            let delay = delay.mul_f64(0.5 + f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX) / 2.0);
            tell_all(&self.shared.state(), &Event::Disconnected { reason: error.to_string(), retry_in: delay });
            sleep(delay).await;
        }
    }

    /// Connect, and receive until the connection is lost. Ok if a new connection is needed for other
    /// channels.
    async fn session(&mut self) -> Result<(), Error> {
        let mut session = (self.shared.connector)().await?;
        self.listened.clear();
        let row = session.fetch(INQUIRY, &[]).await?;
        let (server_version, standby): (i32, bool) = (row.get(0), row.get(1));
        let milliseconds = |column| Duration::from_millis(row.get::<_, i32>(column) as u64);
        let mut server = Server {
            pinpoint: row.get(2),
            has_wait: row.get(3),
            interval: milliseconds(4),
            time_limit: milliseconds(5),
        };
        if !server.pinpoint {
            server.interval = Duration::ZERO;
            self.shared.state().position = None;
        }
        // The client is still connected if only the channels are others.
        let mut waits =
            self.waits || matches!(self.shared.state().connection, Some(Event::Connected { mode: Mode::Wait, .. }));
        if !waits && self.shared.options.mode == Mode::Auto {
            // A standby cannot notify: heartbeats tell whether LISTEN works. Without them, nothing would.
            waits = if standby {
                server.has_wait && server.interval.is_zero()
            } else {
                !self.hears(&mut session, &server).await?
            };
        }
        if waits && !server.has_wait {
            return Err(Error::Server(NO_WAIT));
        }
        let mode = if waits { Mode::Wait } else { Mode::Push };
        let connected = Event::Connected { server_version, standby, mode };
        if waits {
            session.notifications.close(); // of other clients of a pooler
            self.wait(&session, connected, &server).await
        } else {
            self.listen(&mut session, connected, &server).await
        }
    }

    /// Does a notification arrive while no transaction is running? The driver does not tell the
    /// process ID of the session, so this is not known otherwise.
    async fn hears(&self, session: &mut Session, server: &Server) -> Result<bool, Error> {
        let channel = format!("pinpoint_probe_{:016x}", getrandom::u64().unwrap_or(0));
        session.execute(&format!("LISTEN {channel}")).await?;
        let other = (self.shared.connector)().await?;
        other.query("SELECT pg_notify($1, '')", &[(&channel, Type::TEXT)]).await?;
        drop(other);
        // Through a pooler, there may be notifications that another client of its listens for.
        let arrives = async {
            while let Some(notification) = session.notifications.recv().await {
                if notification.channel() == channel {
                    return Ok(());
                }
            }
            Err(Error::Lost("the connection was closed".to_owned()))
        };
        let heard = match tokio::time::timeout(self.shared.options.probe_timeout, arrives).await {
            Ok(arrived) => arrived.map(|()| true)?,
            Err(_) => false,
        };
        session.execute(&format!("UNLISTEN {channel}")).await?;
        if !heard && !server.has_wait {
            return Err(Error::Server(NO_LISTEN));
        }
        Ok(heard)
    }

    // ---- Channels -----------------------------------------------------------------

    fn wanted(&self) -> HashSet<String> {
        pin!(self.shared.changes.notified()).enable(); // this takes the changes until now
        let state = self.shared.state();
        state.subscriptions.values().flat_map(|subscriber| subscriber.channels.iter().cloned()).collect()
    }

    /// Does a call that waits for these channels have all wanted ones? Then it continues, and
    /// subscriptions are told.
    fn covers(&self, asked: &HashSet<String>) -> bool {
        let covers = self.wanted().is_subset(asked);
        if covers {
            self.tell_changed(asked, &HashSet::new());
        }
        covers
    }

    /// Tell subscriptions of changed channels, and of all whose notifications they receive from now on.
    fn tell_changed(&self, heard: &HashSet<String>, changed: &HashSet<String>) {
        for subscriber in self.shared.state().subscriptions.values_mut() {
            let is_new = |channel: &String| changed.contains(channel) || !subscriber.heard.contains(channel);
            let channels: Vec<String> = subscriber
                .channels
                .iter()
                .filter(|channel| heard.contains(*channel) && is_new(channel))
                .cloned()
                .collect();
            subscriber.heard.extend(channels.iter().cloned());
            if !channels.is_empty() {
                subscriber.queue.put_changed(channels);
            }
            subscriber.told.notify_one();
        }
    }

    fn begin(&mut self, connected: Event) {
        self.ever_connected = true;
        self.connections += 1;
        let mut state = self.shared.state();
        state.connection = Some(connected.clone());
        self.shared.connected.send_replace(self.connections);
        tell_all(&state, &connected); // those that come later are told when they begin
    }

    fn is_connected(&self) -> bool {
        *self.shared.connected.borrow() != 0
    }

    // ---- LISTEN -------------------------------------------------------------------

    async fn listen(&mut self, session: &mut Session, connected: Event, server: &Server) -> Result<(), Error> {
        if !server.interval.is_zero() {
            session.execute(&format!("LISTEN {HEARTBEAT}")).await?;
        }
        let mut connected = Some(connected);
        let mut any_heartbeat = false;
        let mut heard = Instant::now(); // of the connection, also if the channels change
        loop {
            let wanted = self.wanted();
            self.listen_to(session, &wanted, server.has_wait).await?;
            let mut changed = HashSet::new();
            if let Some(connected) = connected.take() {
                changed = wanted.clone();
                if server.pinpoint {
                    let channels: Vec<&String> = wanted.iter().collect();
                    let position = self.shared.state().position.clone();
                    let row =
                        session.fetch(CHANGED_SINCE, &[(&position, Type::TEXT), (&channels, Type::TEXT_ARRAY)]).await?;
                    changed = row.get::<_, Vec<String>>(0).into_iter().collect();
                    self.shared.state().position = Some(row.get(1));
                }
                self.begin(connected);
            }
            self.tell_changed(&wanted, &changed);
            self.read(session, server, &mut heard, &mut any_heartbeat).await?;
        }
    }

    /// Make the connection listen to these channels.
    async fn listen_to(&mut self, session: &Session, wanted: &HashSet<String>, has_listen: bool) -> Result<(), Error> {
        let fresh: Vec<&String> = wanted.difference(&self.listened).collect();
        let gone: Vec<&String> = self.listened.difference(wanted).collect();
        if has_listen {
            for (function, channels) in [("listen", &fresh), ("unlisten", &gone)] {
                if !channels.is_empty() {
                    let query = format!("SELECT pinpoint.{function}(VARIADIC $1)");
                    session.query(&query, &[(channels, Type::TEXT_ARRAY)]).await?;
                }
            }
        } else {
            let statement = |verb: &str, channel: &str| format!("{verb} \"{}\";", channel.replace('"', "\"\""));
            let fresh = fresh.iter().map(|channel| statement("LISTEN", channel));
            let statements: String = fresh.chain(gone.iter().map(|channel| statement("UNLISTEN", channel))).collect();
            session.execute(&statements).await?;
        }
        self.listened.clone_from(wanted);
        Ok(())
    }

    /// Read notifications until the channels change, or the connection is lost. heard: time of the last one.
    async fn read(
        &mut self,
        session: &mut Session,
        server: &Server,
        heard: &mut Instant,
        any_heartbeat: &mut bool,
    ) -> Result<(), Error> {
        let shared = self.shared.clone();
        let heartbeats = !server.interval.is_zero();
        let quiet = if heartbeats { server.interval * 3 } else { shared.options.check_interval };
        loop {
            tokio::select! {
                biased;
                notification = session.notifications.recv() => {
                    let Some(notification) = notification else {
                        return Err(Error::Lost("the connection was closed".to_owned()));
                    };
                    *heard = Instant::now();
                    let (channel, payload) = (notification.channel(), notification.payload());
                    if channel == HEARTBEAT {
                        *any_heartbeat = true;
                        shared.state().position = payload.split(' ').next().map(str::to_owned);
                        continue;
                    }
                    for subscriber in shared.state().subscriptions.values().filter(|s| s.heard.contains(channel)) {
                        let (channel, payload) = (channel.to_owned(), payload.to_owned());
                        subscriber.queue.put(Event::Notification { channel, payload, pid: notification.process_id() });
                    }
                }
                () = sleep_until(*heard + quiet) => {
                    if heartbeats {
                        if server.has_wait && !*any_heartbeat && shared.options.mode == Mode::Auto {
                            session.fetch(HAS_PINPOINT, &[]).await?; // it is not the connection
                            self.waits = true;
                        }
                        return Err(Error::Lost(format!("no heartbeat for {quiet:?}")));
                    }
                    if session.fetch(HAS_PINPOINT, &[]).await?.get::<_, bool>(0) != server.pinpoint {
                        return Err(Error::Lost("the extension pg_pinpoint was created or dropped".to_owned()));
                    }
                    *heard = Instant::now();
                }
                () = shared.changes.notified() => return Ok(()),
            }
        }
    }

    // ---- pinpoint.wait() ------------------------------------------------------------

    async fn wait(&mut self, session: &Session, connected: Event, server: &Server) -> Result<(), Error> {
        let options = self.shared.options.clone();
        let mut timeout = options.check_interval;
        if !server.time_limit.is_zero() {
            timeout = timeout.min(server.time_limit / 2);
        }
        let mut first = true;
        loop {
            let wanted = self.wanted();
            if self.is_connected() {
                self.tell_changed(&wanted, &HashSet::new());
            }
            // The first call shows whether it works. It ends at once, so each connection brings an
            // answer, however often the channels change.
            let longest = if first { Duration::ZERO } else { timeout };
            let mut channels: Vec<&str> = wanted.iter().map(String::as_str).collect();
            if channels.is_empty() {
                channels.push(HEARTBEAT);
            }
            let position = self.shared.state().position.clone();
            let seconds = format!("{} s", longest.as_secs_f64());
            let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
                [(&channels, Type::TEXT_ARRAY), (&position, Type::TEXT), (&seconds, Type::TEXT)];
            let call =
                within(timeout + options.timeout, async { Ok(session.client.query_typed(WAIT, &parameters).await?) });
            let mut call = pin!(call);
            let result = loop {
                tokio::select! {
                    result = &mut call => break result,
                    () = self.shared.changes.notified(), if !first => {
                        if !self.covers(&wanted) {
                            return Ok(()); // wait for the other channels on a new connection: the server ends this call
                        }
                    }
                }
            };
            match result {
                Ok(rows) => {
                    let changed: HashSet<String> = rows[0].get::<_, Vec<String>>(0).into_iter().collect();
                    let told: String = rows[0].get(1);
                    // A connection for other channels: the live queries have theirs.
                    if first && self.is_connected() && position.as_deref().map(server_of) != Some(server_of(&told)) {
                        return Err(Error::Lost("the connection leads to another server".to_owned()));
                    }
                    first = false;
                    self.shared.state().position = Some(told);
                    if !self.is_connected() {
                        self.begin(connected.clone());
                    }
                    self.tell_changed(&wanted, &changed);
                    if !changed.is_empty() {
                        sleep(options.min_interval).await;
                    }
                }
                // A timeout that the server has.
                Err(error) if error.code() == Some(SqlState::QUERY_CANCELED.code()) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn tell_all(state: &State, event: &Event) {
    for subscriber in state.subscriptions.values() {
        subscriber.queue.put(event.clone());
    }
}

/// The part of a position that tells the server.
pub(crate) fn server_of(position: &str) -> Vec<&str> {
    position.split('-').take(2).collect()
}

/// Errors that another attempt does not mend: authorization, no such database, no such feature.
fn is_permanent(error: &Error) -> bool {
    match error {
        Error::Server(_) => true,
        Error::Postgres(_) => match error.code() {
            Some(code) => ["28", "3D", "42", "0A"].contains(&&code[..2]),
            None => {
                let text = error.to_string();
                ["certificate", "does not support TLS", "invalid configuration"].iter().any(|part| text.contains(part))
            }
        },
        _ => false,
    }
}
