//! The session of a listener. It reads its socket only when it is asked to,
//! and keeps what it sees in the order in which it comes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Client, Connection, Notification, SimpleQueryMessage};

use crate::checker::finding::{Finding, shorten};
use crate::checker::record::{Event, Record, Returned, Sent};
use crate::sessions::connection::{End, execute, first_value, is_lost, within};
use crate::sessions::read_to_end::ReadToEnd;
use crate::sessions::run_state::Shared;
use crate::sessions::standby_state::Standby;
use crate::workload::identity::{Channel, Introduction, Key, Lsn, parse_payload};

pub struct Listening {
    shared: Arc<Shared>,
    listener: u32,
    pub who: String,
    pub pid: i32,
    /// `Standby::stops` of its server, if that is a standby, before it connected.
    stops: u32,
    client: Client,
    connection: Connection<ReadToEnd, NoTlsStream>,
    /// Events that the checker does not have yet.
    outbox: Vec<Event>,
    /// A LISTEN is under way, whose event has to come before those in the outbox.
    is_held: bool,
    /// Notifications received so far.
    pub count: u64,
    /// The last notification received.
    pub last: Option<Key>,
    /// The last fence that has arrived.
    pub fence: Option<u32>,
    /// What the listener has sent to itself after the promotion has arrived.
    pub has_seen_promotion: bool,
}

/// The payload by which a listener finds out that it still listens after a promotion.
pub const PROMOTED: &str = "promoted";

/// For how long a listener looks whether a standby replays something.
const REPLAY_LOOK: Duration = Duration::from_millis(50);

impl Listening {
    pub async fn connect(shared: &Arc<Shared>, listener: u32) -> Result<Self, Finding> {
        let who = format!("listener {listener}");
        let deadline = Instant::now() + shared.timeout;
        let standby = shared.standby_of(listener);
        let config = standby.map_or(&shared.config, |standby| &standby.config);
        loop {
            let stops = standby.map_or(0, Standby::stops);
            let (client, connection) = match ReadToEnd::connect(config).await {
                Ok(connected) => connected,
                Err(error) if Instant::now() >= deadline => {
                    return Err(Finding::no_connection(&who, &error));
                }
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let mut listening = Self {
                shared: Arc::clone(shared),
                listener,
                who: who.clone(),
                pid: 0,
                stops,
                client,
                connection,
                outbox: Vec::new(),
                is_held: false,
                count: 0,
                last: None,
                fence: None,
                has_seen_promotion: false,
            };
            let at = shared.now();
            listening.pid = match listening.query_value("SELECT pg_backend_pid()").await {
                Ok(pid) => pid.parse().unwrap_or_default(),
                Err(End::Finding(finding)) => return Err(finding),
                // Nobody knows its PID yet, so nobody has ended it; but the standby was
                // shut down.
                Err(End::Lost) => continue,
            };
            shared.forget_end(listening.pid);
            listening.add(Event::Connected {
                pid: listening.pid,
                at,
            });
            shared.set_listener(listener, Some(listening.pid));
            return Ok(listening);
        }
    }

    /// Tells the checker.
    pub fn add(&mut self, event: Event) {
        self.outbox.push(event);
        self.hand_over();
    }

    fn hand_over(&mut self) {
        if !self.is_held {
            for event in self.outbox.drain(..) {
                self.shared.record(Record::Event(self.listener, event));
            }
        }
    }

    /// Executes SQL, and meanwhile reads what arrives.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<SimpleQueryMessage>, End> {
        match self.try_query(sql).await? {
            Ok(messages) => Ok(messages),
            Err(error) => Err(Finding::unexpected_error(&self.who, sql, &error).into()),
        }
    }

    /// As `query`, for SQL that may fail.
    pub async fn try_query(
        &mut self,
        sql: &str,
    ) -> Result<Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>, End> {
        let Self {
            shared,
            who,
            client,
            connection,
            ..
        } = self;
        let mut arrived = Vec::new();
        let answer = {
            let mut request = pin!(client.simple_query(sql));
            let answer = poll_fn(|context| {
                loop {
                    if let Poll::Ready(answer) = request.as_mut().poll(context) {
                        return Poll::Ready(answer);
                    }
                    match poll_connection(connection, context) {
                        Poll::Ready(Ok(Some(notification))) => arrived.push(notification),
                        Poll::Ready(Ok(None)) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        // What it has just read may be the answer.
                        Poll::Pending => return request.as_mut().poll(context),
                    }
                }
            });
            within(shared, who, &shorten(sql), answer).await
        };
        for notification in arrived {
            self.receive(&notification);
        }
        self.hand_over();
        match answer? {
            Err(error) if is_lost(&error) => Err(self.lost(&error)),
            answer => Ok(answer),
        }
    }

    /// Executes SQL that returns a single value.
    pub async fn query_value(&mut self, sql: &str) -> Result<String, End> {
        let answer = self.query(sql).await?;
        Ok(first_value(&answer).unwrap_or_default().to_owned())
    }

    /// Waits for the next notification; `None` if there is none before `deadline`,
    /// or that has passed.
    pub async fn next(&mut self, deadline: Instant) -> Result<Option<Key>, End> {
        if Instant::now() >= deadline {
            return Ok(None);
        }
        let connection = &mut self.connection;
        let arrival = poll_fn(|context| {
            loop {
                match poll_connection(connection, context) {
                    Poll::Ready(Ok(None)) => {}
                    Poll::Ready(Ok(Some(notification))) => return Poll::Ready(Ok(notification)),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        match tokio::time::timeout_at(deadline.into(), arrival).await {
            Err(_) => Ok(None),
            Ok(Err(error)) => Err(self.lost(&error)),
            Ok(Ok(notification)) => {
                self.receive(&notification);
                self.hand_over();
                Ok(self.last)
            }
        }
    }

    /// Ends the session from within, so that all that it was sent is received.
    pub async fn terminate(&mut self) -> Result<(), End> {
        self.shared.end(self.pid);
        let sql = "SELECT pg_terminate_backend(pg_backend_pid())";
        self.query(sql).await?;
        // The signal has arrived before the answer, or is about to.
        let deadline = Instant::now() + self.shared.timeout;
        self.read_until(deadline).await?;
        Err(Finding::hang(&self.who, "its own end", self.shared.timeout).into())
    }

    /// Reads what arrives until `deadline`.
    pub async fn read_until(&mut self, deadline: Instant) -> Result<(), End> {
        while self.next(deadline).await?.is_some() {}
        Ok(())
    }

    /// Executes SQL with which LISTENs and UNLISTENs take effect: a COMMIT, or
    /// these commands themselves, and an introduction maybe. `ask` is then asked for the present end of the
    /// WAL.
    pub async fn change(
        &mut self,
        sql: &str,
        listen: Vec<Channel>,
        unlisten: Vec<Channel>,
        introduction: Option<Introduction>,
        ask: &Client,
    ) -> Result<(), End> {
        if !unlisten.is_empty() {
            self.add(Event::Unlistening(unlisten.clone()));
        }
        self.is_held = !listen.is_empty();
        let mut answer = self.query(sql).await;
        let returned = match answer {
            Ok(_) if !listen.is_empty() => {
                let at = self.shared.now();
                let replayed = match self.shared.standby_of(self.listener) {
                    Some(_) => self.replay_position().await,
                    None => Ok(None),
                };
                match replayed {
                    Ok(Some(lsn)) => Some(Returned { lsn, at }),
                    Ok(None) => {
                        let lsn = insert_position(&self.shared, &self.who, ask).await?;
                        Some(Returned { lsn, at })
                    }
                    Err(End::Lost) => {
                        answer = Err(End::Lost);
                        None
                    }
                    Err(End::Finding(finding)) => return Err(finding.into()),
                }
            }
            _ => None,
        };
        if self.is_held {
            let event = Event::Listen {
                channels: listen,
                returned,
                introduction,
            };
            self.outbox.insert(0, event);
            self.is_held = false;
            self.hand_over();
        }
        answer?;
        if !unlisten.is_empty() {
            self.add(Event::Unlistened(unlisten));
        }
        Ok(())
    }

    /// On a standby: what commits behind this is replayed from now on. Asked right now for
    /// the last record that was replayed, it may be in the middle of the next one; so
    /// it is asked until that is done. `None` if nothing is replayed.
    async fn replay_position(&mut self) -> Result<Option<Lsn>, End> {
        // The state is read first. If it is "paused", no record was half replayed then, so
        // what is behind the position is replayed later.
        let sql = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() \
                       ELSE 'promoted' END || ' ' || pg_last_wal_replay_lsn()";
        let deadline = Instant::now() + REPLAY_LOOK;
        let mut first = None;
        while Instant::now() < deadline {
            let answer = self.query_value(sql).await?;
            let parsed = answer
                .rsplit_once(' ')
                .and_then(|(state, lsn)| Some((state, lsn.parse::<Lsn>().ok()?)));
            let Some((state, lsn)) = parsed else {
                return Err(Finding::unexpected_answer(&self.who, sql, &answer).into());
            };
            // Then it is between two records.
            if state == "paused" || *first.get_or_insert(lsn) != lsn {
                return Ok(Some(lsn));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(None)
    }

    /// Ends the session, in the middle of nothing.
    pub fn close(mut self) {
        self.add(Event::Closed { is_complete: true });
    }

    fn receive(&mut self, notification: &Notification) {
        if notification.payload() == PROMOTED {
            self.has_seen_promotion = true;
            return;
        }
        let channel = Channel::parse(notification.channel());
        let key = parse_payload(notification.payload());
        let (Some(channel), Some(key)) = (channel, key) else {
            self.outbox.push(Event::Garbled {
                channel: notification.channel().to_owned(),
                payload: shorten(notification.payload()),
            });
            return;
        };
        self.count += 1;
        self.last = Some(key);
        if channel == Channel::of_fence(self.listener) {
            self.fence = Some(key.transaction.number);
        }
        self.outbox.push(Event::Received(Sent {
            key,
            channel,
            length: notification.payload().len() as u32,
            pid: notification.process_id(),
        }));
    }

    fn lost(&mut self, error: &tokio_postgres::Error) -> End {
        let standby = self.shared.standby_of(self.listener);
        let standby = standby.map(|standby| (standby, self.stops));
        self.shared.lost(&self.who, self.pid, standby, error)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.set_listener(self.listener, None);
    }
}

/// The next thing to arrive: a notification, or something of no interest.
fn poll_connection(
    connection: &mut Connection<ReadToEnd, NoTlsStream>,
    context: &mut Context<'_>,
) -> Poll<Result<Option<Notification>, tokio_postgres::Error>> {
    match connection.poll_message(context) {
        Poll::Ready(Some(Ok(AsyncMessage::Notification(notification)))) => {
            Poll::Ready(Ok(Some(notification)))
        }
        Poll::Ready(Some(Ok(_))) => Poll::Ready(Ok(None)),
        Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error)),
        // Polled on, it would wait for ever.
        Poll::Ready(None) => panic!("the connection has ended before"),
        Poll::Pending => Poll::Pending,
    }
}

/// Where the WAL ends now.
async fn insert_position(shared: &Shared, who: &str, client: &Client) -> Result<Lsn, Finding> {
    let sql = "SELECT pg_current_wal_insert_lsn()";
    let answer = execute(shared, who, client, sql).await?;
    let lsn = first_value(&answer).and_then(|lsn| lsn.parse().ok());
    lsn.ok_or_else(|| Finding::unexpected_answer(who, sql, &format!("{answer:?}")))
}
