//! What all those who take part have in common.

use std::collections::{BTreeMap, HashSet};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pinpoint_servers::connection::connect;
use tokio::task::AbortHandle;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, SimpleQueryMessage, Socket};

use crate::checker::finding::{Finding, error_text};
use crate::checker::record::{Clock, Fate, Moment, Outcome, WriterSession};
use crate::options::Plan;
use crate::workload::Workload;
use crate::workload::identity::{Channel, Introduction, Key, min_length};
use crate::workload::unit_of_work::{Notification, Transaction};

/// Between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the writers have to tell to the checker.
#[derive(Debug, Default)]
pub struct News {
    pub sessions: Vec<WriterSession>,
    pub outcomes: Vec<Outcome>,
}

/// What was done to the sessions, and how they failed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Writers that were cancelled.
    pub cancelled: u64,
    /// Writers that were terminated.
    pub terminated: u64,
    /// Writers whose connection was closed by their client.
    pub abandoned: u64,
    /// Listeners that were terminated.
    pub terminated_listeners: u64,
    /// Commits that were cancelled or terminated behind their commit record.
    pub interrupted_in_commit: u64,
    /// Serializable transactions that failed in COMMIT itself.
    pub failed_in_last_moment: u64,
    /// Errors that were not planned, by SQLSTATE.
    pub errors: BTreeMap<String, u64>,
    /// How often the replay of the standby was paused.
    pub pauses: u64,
    /// How often the standby was shut down and started again.
    pub restarts: u64,
    /// Listeners that were connected to the standby before and after its promotion.
    pub promoted_listeners: u64,
    /// Rows that listeners looked for when they were told of them.
    pub rows_seen: u64,
    /// Transactions that changed a watched table.
    pub watched_changes: u64,
    /// How often a session with COMMIT PREPARED was cancelled.
    pub cancelled_prepared: u64,
    /// How often a session with COMMIT PREPARED was terminated.
    pub terminated_prepared: u64,
    /// How often the waker was stopped.
    pub stopped_waker: u64,
    /// How often a commit took so long, while the waker was stopped, that the waker may have had
    /// a lock.
    pub stopped_with_lock: u64,
    /// How often replication was switched off and on.
    pub switches: u64,
    /// Units of work of writers that were not replicated.
    pub unreplicated: u64,
    /// Heartbeats that were forged.
    pub forged: u64,
    /// Heartbeats that position clients received.
    pub heartbeats: u64,
    /// Connections of position clients that were cut.
    pub cut_clients: u64,
}

/// A standby, where every second listener is.
#[derive(Debug)]
pub struct Standby {
    pub config: Config,
    /// How often it began to shut down or was there again: while it is odd, the standby
    /// is restarted.
    stops: AtomicU32,
    /// How many of the listeners there have taken each step towards the promotion.
    steps: [AtomicU32; STEPS_TO_PROMOTION],
    /// Its replay is paused, and goes on only with the promotion.
    is_held: AtomicBool,
    is_promoted: AtomicBool,
}

/// Steps of a listener on a standby towards the promotion: it does nothing more that waits
/// for replay, and all that it is to receive is sent.
pub const STEPS_TO_PROMOTION: usize = 2;

impl Standby {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            stops: AtomicU32::new(0),
            steps: Default::default(),
            is_held: AtomicBool::new(false),
            is_promoted: AtomicBool::new(false),
        }
    }

    /// To be called before it is shut down, as its sessions will lose their connections,
    /// and when it is there again.
    pub fn add_stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
    }

    pub fn stops(&self) -> u32 {
        self.stops.load(Ordering::SeqCst)
    }

    /// Whether a session may have lost its connection by that, which was made when there
    /// were `stops`.
    pub fn may_have_ended(&self, stops: u32) -> bool {
        self.stops() != stops || stops % 2 == 1
    }

    /// A listener has taken these steps, counted from 0: each of them only once.
    pub fn add_steps(&self, steps: Range<usize>) {
        for step in &self.steps[steps] {
            step.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// How many listeners have taken this step. That one of them is further than
    /// another does not make up for it.
    pub fn have_taken(&self, step: usize) -> u32 {
        self.steps[step].load(Ordering::SeqCst)
    }

    pub fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    pub fn set_promoted(&self) {
        self.is_promoted.store(true, Ordering::SeqCst);
    }

    pub fn is_promoted(&self) -> bool {
        self.is_promoted.load(Ordering::SeqCst)
    }

    /// One session, for a single command.
    pub async fn execute(&self, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
        let messages = connect(&self.config).await?.simple_query(sql).await?;
        Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }
}

pub struct Shared {
    pub config: Config,
    pub standby: Option<Standby>,
    pub workload: Workload,
    pub clock: Clock,
    /// How long anything may take.
    pub timeout: Duration,
    /// Listeners share channels. The first one stays until all others have gone.
    pub has_sharing: bool,
    /// Some transactions are not replicated. The server ends sessions on the standby that
    /// may have missed notifications, so only position clients are there.
    pub switches_replication: bool,
    is_stopping: AtomicBool,
    /// All have gone but the position clients.
    is_quiet: AtomicBool,
    news: Mutex<News>,
    tally: Mutex<Tally>,
    /// PIDs of the listeners that are connected now.
    listeners: Mutex<Vec<Option<i32>>>,
    /// How many listeners have gone for good.
    gone: AtomicU32,
    /// PIDs of sessions that were ended by us.
    ended: Mutex<HashSet<i32>>,
    /// The session that signals to the others.
    signaller: Client,
}

/// None of what they protect is left half-done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(
        config: Config,
        standby: Option<Standby>,
        workload: Workload,
        plan: &Plan,
        signaller: Client,
    ) -> Self {
        Self {
            config,
            standby,
            workload,
            clock: Clock::start(),
            timeout: plan.timeout,
            has_sharing: plan.sharing,
            switches_replication: plan.switch_replication,
            is_stopping: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
            news: Mutex::default(),
            tally: Mutex::default(),
            listeners: Mutex::new(vec![None; plan.listeners as usize]),
            gone: AtomicU32::new(0),
            ended: Mutex::default(),
            signaller,
        }
    }

    /// Tells everybody to come to an end.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    pub fn set_quiet(&self) {
        self.is_quiet.store(true, Ordering::Relaxed);
    }

    pub fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }

    pub fn add_session(&self, session: WriterSession) {
        lock(&self.news).sessions.push(session);
    }

    /// Notes how a transaction ended. Its time is taken under the lock: what is
    /// noted after a look at the news has also finished after that.
    pub fn add_outcome(
        &self,
        transaction: &Transaction,
        fate: Fate,
        started: Moment,
        seen: Vec<Introduction>,
    ) {
        self.push_outcome(Outcome {
            id: transaction.id,
            fate,
            has_rows: transaction.has_rows,
            started,
            finished: started,
            notifications: transaction.notifications(),
            seen,
        });
    }

    /// The same of a row and a notification that were sent for a listener, and committed, or
    /// of a row and a change of a watched table.
    pub fn add_sent(&self, key: Key, channel: Channel, started: Moment) {
        self.push_outcome(Outcome {
            id: key.transaction,
            fate: Fate::Committed,
            has_rows: key.has_row,
            started,
            finished: started,
            notifications: vec![Notification {
                index: key.index,
                channel,
                length: min_length(key),
            }],
            seen: Vec::new(),
        });
    }

    fn push_outcome(&self, mut outcome: Outcome) {
        let mut news = lock(&self.news);
        outcome.finished = self.clock.now();
        news.outcomes.push(outcome);
    }

    pub fn take_news(&self) -> News {
        std::mem::take(&mut lock(&self.news))
    }

    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    pub fn set_listener(&self, listener: u32, pid: Option<i32>) {
        lock(&self.listeners)[listener as usize] = pid;
    }

    pub fn listener(&self, listener: u32) -> Option<i32> {
        lock(&self.listeners)[listener as usize]
    }

    /// The standby, if that is where this listener is.
    pub fn standby_of(&self, listener: u32) -> Option<&Standby> {
        self.standby_of_client(listener)
            .filter(|_| !self.switches_replication)
    }

    /// The same of a position client.
    pub fn standby_of_client(&self, client: u32) -> Option<&Standby> {
        self.standby.as_ref().filter(|_| client % 2 == 1)
    }

    /// Whether this listener stays until all others have gone.
    pub fn stays(&self, listener: u32) -> bool {
        self.has_sharing && listener == 0
    }

    /// A listener has gone for good.
    pub fn add_gone(&self) {
        self.gone.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether only one listener is left.
    pub fn is_last(&self) -> bool {
        self.gone.load(Ordering::Relaxed) as usize + 1 >= lock(&self.listeners).len()
    }

    /// Whether a session may lose its connection.
    pub fn is_ended(&self, pid: i32) -> bool {
        lock(&self.ended).contains(&pid)
    }

    pub fn end(&self, pid: i32) {
        lock(&self.ended).insert(pid);
    }

    /// A new session has this PID, which may have been that of one that was ended.
    pub fn forget_end(&self, pid: i32) {
        lock(&self.ended).remove(&pid);
    }

    /// Terminates a session on the standby, or else on the primary.
    pub async fn terminate_on(&self, standby: Option<&Standby>, pid: i32) {
        match standby {
            Some(standby) => {
                self.end(pid);
                let sql = format!("SELECT pg_terminate_backend({pid})");
                // It may be shut down just now.
                let _ = standby.execute(&sql).await;
            }
            None => self.terminate(pid).await,
        }
    }

    pub async fn terminate(&self, pid: i32) {
        self.end(pid);
        self.signal("pg_terminate_backend", pid).await;
    }

    pub async fn cancel(&self, pid: i32) {
        self.signal("pg_cancel_backend", pid).await;
    }

    /// That the session is not there any more is all right, and that the server
    /// is not will be noticed by others.
    async fn signal(&self, function: &str, pid: i32) {
        let sql = format!("SELECT {function}({pid})");
        let _ = self.signaller.simple_query(&sql).await;
    }

    /// Makes a connection; what is in the way may go away.
    pub async fn connect(self: &Arc<Self>, who: &str) -> Result<Connected, Finding> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.try_connect().await {
                Ok(connected) => {
                    self.forget_end(connected.pid);
                    return Ok(connected);
                }
                Err(_) if Instant::now() < deadline => {}
                Err(error) => {
                    return Err(Finding::NoConnection {
                        who: who.to_owned(),
                        error: error_text(&error),
                    });
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn try_connect(self: &Arc<Self>) -> Result<Connected, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        let driver = tokio::spawn(drive(connection, Arc::clone(self))).abort_handle();
        let pid = client
            .query_one("SELECT pg_backend_pid()", &[])
            .await?
            .try_get(0)?;
        Ok(Connected {
            client,
            driver,
            pid,
        })
    }
}

/// Reads a connection until it ends. The server warns when it is interrupted
/// while it waits for the standby: the commit record is written by then.
async fn drive(mut connection: Connection<Socket, NoTlsStream>, shared: Arc<Shared>) {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notice(notice))
                if [SqlState::QUERY_CANCELED, SqlState::ADMIN_SHUTDOWN].contains(notice.code()) =>
            {
                shared.tally().interrupted_in_commit += 1;
            }
            Ok(_) => {}
            // What was asked on this connection fails as well.
            Err(_) => return,
        }
    }
}

/// A connection that is read by a task of its own.
pub struct Connected {
    pub client: Client,
    /// Aborting it closes the connection at once.
    pub driver: AbortHandle,
    pub pid: i32,
}

/// Waits for the future, but not for longer than anything may take.
pub async fn within<T>(
    shared: &Shared,
    who: &str,
    what: &str,
    future: impl Future<Output = T>,
) -> Result<T, Finding> {
    tokio::time::timeout(shared.timeout, future)
        .await
        .map_err(|_| Finding::hang(who, what, shared.timeout))
}

/// Executes a command in a session that nothing disturbs.
pub async fn execute(
    shared: &Shared,
    who: &str,
    client: &Client,
    sql: &str,
) -> Result<(), Finding> {
    within(shared, who, sql, client.simple_query(sql))
        .await?
        .map_err(|error| Finding::unexpected_error(who, sql, &error))?;
    Ok(())
}

/// Whether the connection is lost with this error.
pub fn is_lost(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(error) => matches!(
            error.parsed_severity(),
            Some(Severity::Fatal | Severity::Panic)
        ),
        None => true,
    }
}

/// Whether a transaction may fail with this error, by what is done to it.
pub fn is_accepted(error: &tokio_postgres::Error) -> bool {
    let accepted = [
        SqlState::QUERY_CANCELED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        // The queue is full: the transaction is refused before it commits.
        SqlState::PROGRAM_LIMIT_EXCEEDED,
    ];
    error.code().is_some_and(|code| accepted.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_gone_does_not_stand_in_for_who_is_still_waiting() {
        let standby = Standby::new(Config::new());
        standby.add_steps(0..STEPS_TO_PROMOTION);
        assert_eq!(standby.have_taken(0), 1);
        standby.add_steps(0..1);
        assert_eq!([standby.have_taken(0), standby.have_taken(1)], [2, 1]);
        standby.add_steps(1..STEPS_TO_PROMOTION);
        assert_eq!([standby.have_taken(0), standby.have_taken(1)], [2, 2]);
    }
}
