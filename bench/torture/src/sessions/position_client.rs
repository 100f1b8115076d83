//! A position client: keeps a position and a copy of some channels, asks which of them
//! have changed, and reads only these again.
//!
//! Each of its connections is cut after a while. Half of them also listen on all channels
//! and on that of the heartbeats: then a heartbeat gives the position, and notifications
//! change the copy.
//!
//! The copy itself is kept by the checker: this only tells what the client was told, what
//! it read, and what it received.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{Notification, SimpleQueryMessage};

use crate::checker::finding::Finding;
use crate::checker::record::{Last, PositionEvent, Record};
use crate::sessions::connection::{Connected, End, is_lost, within};
use crate::sessions::run_state::Shared;
use crate::sessions::standby_state::Standby;
use crate::workload::identity::{Channel, WATCHED_TABLES, parse_payload};
use crate::workload::random_for;

/// Of the random sequences, beside those of the listeners.
const OF_POSITION_CLIENTS: u32 = 1 << 30;

const HEARTBEAT_CHANNEL: &str = "pinpoint_heartbeat";

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What a session executes whose activity does not change any channel.
pub const DO_NOT_WAIT_FOR_ME: &str = "SET application_name = 'onlooker'";

/// Of writers whose client has gone, some may still commit.
const STILL_ACTIVE: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE backend_type = 'client backend' AND state = 'active' \
         AND application_name <> 'onlooker'";

/// Asks until told to stop, and once more when all others have gone.
pub async fn run(shared: Arc<Shared>, number: u32, listeners: u32) -> Result<(), Finding> {
    let mut rng = random_for(shared.workload.seed, OF_POSITION_CLIENTS, number);
    // Those of the fences are quiet, so that there is something to be unchanged.
    let busy = (0..shared.workload.channels).map(Channel);
    let quiet = (0..listeners).map(Channel::of_fence);
    let watched = (0..WATCHED_TABLES).map(Channel::of_watched);
    let mut channels: Vec<Channel> = busy.chain(quiet).chain(watched).collect();
    channels.retain(|&channel| channel == Channel(0) || rng.random_ratio(1, 2));
    let mut client = PositionClient {
        who: format!("position client {number}"),
        standby: shared.standby_of_client(number),
        shared: &shared,
        number,
        rng,
        channels,
        notified: BTreeSet::new(),
        position: "NULL".to_owned(),
    };
    loop {
        let is_last = shared.is_stopping();
        let result = if is_last {
            client.finish().await
        } else {
            client.visit().await
        };
        match result {
            Ok(()) if is_last => return Ok(()),
            Ok(()) | Err(End::Lost) => {}
            Err(End::Finding(finding)) => return Err(finding),
        }
    }
}

struct PositionClient<'a> {
    shared: &'a Arc<Shared>,
    standby: Option<&'a Standby>,
    number: u32,
    who: String,
    rng: ChaCha8Rng,
    channels: Vec<Channel>,
    /// Channels of watched tables: what was received does not tell what to keep, so they
    /// are read again.
    notified: BTreeSet<Channel>,
    /// A literal.
    position: String,
}

impl PositionClient<'_> {
    /// One connection, until it is cut.
    async fn visit(&mut self) -> Result<(), End> {
        let mut session = self.connect().await?;
        let _cut = self.cut_later(&session);
        let listens = self.rng.random_ratio(1, 2);
        if listens {
            let commands: Vec<String> = self
                .channels
                .iter()
                .map(|channel| format!("LISTEN {channel}"))
                .collect();
            let sql = format!("{}; LISTEN {HEARTBEAT_CHANNEL}", commands.join("; "));
            self.query(&session, &sql).await?;
        }
        while !self.shared.is_stopping() {
            self.look(&mut session).await?;
            let milliseconds = match self.rng.random_range(0..10) {
                _ if listens => self.rng.random_range(50..=600),
                0..6 => self.rng.random_range(0..=2),
                6..9 => self.rng.random_range(5..=50),
                _ => self.rng.random_range(50..=300),
            };
            let pause = Duration::from_millis(milliseconds);
            if listens {
                self.listen(&mut session, Instant::now() + pause).await?;
            } else {
                tokio::time::sleep(pause).await;
            }
        }
        Ok(())
    }

    /// The last question.
    async fn finish(&mut self) -> Result<(), End> {
        while !self.shared.is_quiet() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let mut session = self.connect().await?;
        let deadline = Instant::now() + self.shared.timeout;
        while self.query(&session, STILL_ACTIVE).await? != [["0"]] {
            if Instant::now() >= deadline {
                let what = "what is still active to end";
                return Err(Finding::hang(&self.who, what, self.shared.timeout).into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.look(&mut session).await?;
        let table = self.read(&session, &self.channels).await?;
        self.add(PositionEvent::Table(table));
        Ok(())
    }

    async fn connect(&self) -> Result<Connected, End> {
        let session = self.shared.connect_to(self.standby, &self.who).await?;
        // To compile what `read` executes would take longer than to execute it.
        let sql = format!("{DO_NOT_WAIT_FOR_ME}; SET jit = off");
        self.query(&session, &sql).await?;
        Ok(session)
    }

    /// Has the connection cut after a while, by the server or by this client, unless the result
    /// is dropped before.
    fn cut_later(&mut self, session: &Connected) -> JoinSet<()> {
        let delay = Duration::from_millis(self.rng.random_range(20..=2000));
        let is_terminated = self.rng.random_ratio(1, 2);
        let shared = Arc::clone(self.shared);
        let driver = session.driver.clone();
        let (number, pid) = (self.number, session.pid);
        let mut cut = JoinSet::new();
        cut.spawn(async move {
            tokio::time::sleep(delay).await;
            shared.tally().cut_clients += 1;
            if is_terminated {
                let standby = shared.standby_of_client(number);
                shared.terminate_on(standby, pid).await;
            } else {
                shared.end(pid);
                driver.abort();
            }
        });
        cut
    }

    /// Asks, and reads what has changed. The position is that of the answer only after
    /// that.
    async fn look(&mut self, session: &mut Connected) -> Result<(), End> {
        let names: Vec<String> = self.channels.iter().map(|c| format!("'{c}'")).collect();
        let mut sql = format!(
            "SELECT array_to_string(changed, ','), position \
             FROM pinpoint.changed_since({}, {})",
            self.position,
            names.join(", ")
        );
        if self.standby.is_some() {
            sql.insert_str(0, "SELECT pg_last_wal_replay_lsn(); ");
        }
        let at = self.shared.now();
        let rows = self.query(session, &sql).await?;
        let unexpected = || Finding::unexpected_answer(&self.who, &sql, &format!("{rows:?}"));
        let (replayed, answer) = match (&rows[..], self.standby) {
            ([answer], None) => (None, answer),
            ([replayed, answer], Some(_)) => {
                let lsn = replayed[0].parse().map_err(|_| unexpected())?;
                (Some(lsn), answer)
            }
            _ => return Err(unexpected().into()),
        };
        let named = answer[0].split(',').filter(|name| !name.is_empty());
        let named: Option<Vec<Channel>> = named.map(Channel::parse).collect();
        let mut changed = named.ok_or_else(unexpected)?;
        changed.extend(&self.notified);
        changed.sort();
        changed.dedup();
        let position = format!("'{}'", answer[1]);
        let mut unchanged = self.channels.clone();
        unchanged.retain(|channel| !changed.contains(channel));
        self.add(PositionEvent::Asked {
            at,
            replayed,
            changed: changed.clone(),
            unchanged,
        });
        if !changed.is_empty() {
            if self.rng.random_ratio(1, 4) {
                let pause = Duration::from_millis(self.rng.random_range(0..=20));
                tokio::time::sleep(pause).await;
            }
            let last = self.read(session, &changed).await?;
            let channels = changed;
            self.add(PositionEvent::Read { channels, last });
            self.notified.clear();
        }
        self.position = position;
        // Positions of heartbeats that came in the meantime may be those of before.
        while let Ok(notification) = session.notifications.try_recv() {
            if notification.channel() != HEARTBEAT_CHANNEL {
                self.receive(&notification);
            }
        }
        Ok(())
    }

    /// Reads the tables, for the copy.
    async fn read(&self, session: &Connected, channels: &[Channel]) -> Result<Vec<Last>, End> {
        let numbers: Vec<String> = channels.iter().map(|c| c.0.to_string()).collect();
        let sql = format!(
            "SELECT * FROM last_transactions('{{{}}}')",
            numbers.join(",")
        );
        let rows = self.query(session, &sql).await?;
        let last = rows.iter().map(|row| {
            let number = |column: usize| row.get(column)?.parse().ok();
            Some(Last(Channel(number(0)?), number(1)?, number(2)?))
        });
        let last: Option<Vec<Last>> = last.collect();
        let unexpected = || Finding::unexpected_answer(&self.who, &sql, &format!("{rows:?}"));
        Ok(last.ok_or_else(unexpected)?)
    }

    /// Takes notifications and heartbeats as they come, now and then until a heartbeat.
    async fn listen(&mut self, session: &mut Connected, deadline: Instant) -> Result<(), End> {
        while let Ok(next) = timeout_at(deadline, session.notifications.recv()).await {
            let Some(notification) = next else {
                // The connection has ended; this tells why.
                self.query(session, "SELECT 1").await?;
                return Err(End::Lost);
            };
            if notification.channel() == HEARTBEAT_CHANNEL {
                let payload = notification.payload();
                let Some((position, "primary" | "standby")) = payload.split_once(' ') else {
                    let what = "LISTEN";
                    return Err(Finding::unexpected_answer(&self.who, what, payload).into());
                };
                self.position = format!("'{position}'");
                self.shared.tally().heartbeats += 1;
                // What it covers has come before it, not only soon after.
                if self.rng.random_ratio(1, 3) {
                    return Ok(());
                }
            } else {
                self.receive(&notification);
            }
        }
        Ok(())
    }

    /// Listeners look after what is wrong with it.
    fn receive(&mut self, notification: &Notification) {
        let channel = Channel::parse(notification.channel());
        self.notified.extend(channel.filter(|c| c.is_of_watched()));
        let key = parse_payload(notification.payload()).filter(|key| key.has_row);
        if let (Some(channel), Some(key)) = (channel, key) {
            self.add(PositionEvent::Received { channel, key });
        }
    }

    fn add(&self, event: PositionEvent) {
        self.shared.record(Record::Position(self.number, event));
    }

    async fn query(&self, session: &Connected, sql: &str) -> Result<Vec<Vec<String>>, End> {
        let answer = session.client.simple_query(sql);
        match within(self.shared, &self.who, sql, answer).await? {
            Ok(messages) => Ok(messages.iter().filter_map(columns).collect()),
            Err(error) if is_lost(&error) => {
                let standby = self.standby.map(|standby| (standby, session.stops));
                if standby.is_some() && self.shared.switches_replication {
                    return Err(End::Lost);
                }
                Err(self.shared.lost(&self.who, session.pid, standby, &error))
            }
            Err(error) => Err(Finding::unexpected_error(&self.who, sql, &error).into()),
        }
    }
}

fn columns(message: &SimpleQueryMessage) -> Option<Vec<String>> {
    let SimpleQueryMessage::Row(row) = message else {
        return None;
    };
    let column = |number| row.get(number).unwrap_or_default().to_owned();
    Some((0..row.len()).map(column).collect())
}
