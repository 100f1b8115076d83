//! What all those who take part have in common.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::{Client, Config};

use crate::checker::record::{Fate, Moment, Outcome, Record};
use crate::options::Plan;
use crate::sessions::replication::Confirmations;
use crate::sessions::standby_state::Standby;
use crate::sessions::tally::Tally;
use crate::workload::Workload;
use crate::workload::identity::{Channel, Introduction, Key, min_length};
use crate::workload::unit_of_work::{Notification, Transaction};

pub struct Shared {
    pub config: Config,
    pub standby: Option<Standby>,
    pub workload: Workload,
    started: Instant,
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
    /// What the sessions tell to the checker.
    records: UnboundedSender<Record>,
    pub confirmations: Arc<Confirmations>,
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
        records: UnboundedSender<Record>,
    ) -> Self {
        Self {
            config,
            standby,
            workload,
            started: Instant::now(),
            timeout: plan.timeout,
            has_sharing: plan.sharing,
            switches_replication: plan.switch_replication,
            is_stopping: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
            records,
            confirmations: Arc::default(),
            tally: Mutex::default(),
            listeners: Mutex::new(vec![None; plan.listeners as usize]),
            gone: AtomicU32::new(0),
            ended: Mutex::default(),
            signaller,
        }
    }

    pub fn now(&self) -> Moment {
        self.started.elapsed()
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

    /// Tells the checker.
    pub fn record(&self, record: Record) {
        // If nobody takes them any more, the run is over.
        let _ = self.records.send(record);
    }

    /// Tells the checker how a transaction ended, and when: what is told after the records
    /// were taken has also finished after that.
    pub fn add_outcome(
        &self,
        transaction: &Transaction,
        fate: Fate,
        started: Moment,
        seen: Vec<Introduction>,
    ) {
        self.record(Record::Outcome(Outcome {
            id: transaction.id,
            fate,
            has_rows: transaction.has_rows,
            started,
            finished: self.now(),
            notifications: transaction.notifications(),
            seen,
        }));
    }

    /// The same of a row and a notification that were sent for a listener, and committed, or
    /// of a row and a change of a watched table.
    pub fn add_sent(&self, key: Key, channel: Channel, started: Moment) {
        self.record(Record::Outcome(Outcome {
            id: key.transaction,
            fate: Fate::Committed,
            has_rows: key.has_row,
            started,
            finished: self.now(),
            notifications: vec![Notification {
                index: key.index,
                channel,
                length: min_length(key),
            }],
            seen: Vec::new(),
        }));
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
}
