//! Everything that was observed, compared with everything that happened.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::difference::{Difference, What};
use super::history::{Entry, Fate, History, Rowless};
use super::identity::{Introduction, Lsn, TransactionId};
use super::observer::{Event, Observer};
use super::workload::{End, Notification, Workload, describe};

/// What a transaction was to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub commits: bool,
    pub has_rows: bool,
    /// What is left of it after savepoints that are rolled back.
    pub notifications: Vec<Notification>,
}

pub trait Plans {
    /// `None` for transactions that are not planned: fences, and what the
    /// listeners send themselves.
    fn planned(&self, id: TransactionId) -> Option<Planned>;

    fn describe(&self, id: TransactionId) -> String;
}

impl Plans for Workload {
    fn planned(&self, id: TransactionId) -> Option<Planned> {
        if id.is_of_listener() {
            return None;
        }
        let planned = match self.transaction(id) {
            Some((transaction, _)) => Planned {
                commits: transaction.end == End::Commit,
                has_rows: transaction.has_rows,
                notifications: transaction.notifications(),
            },
            // There is no such transaction, so nothing may come of it.
            None => Planned {
                commits: false,
                has_rows: false,
                notifications: Vec::new(),
            },
        };
        Some(planned)
    }

    fn describe(&self, id: TransactionId) -> String {
        if id.is_of_listener() {
            return "a row and a notification, COMMIT".to_owned();
        }
        match self.transaction(id) {
            Some((transaction, unit)) => describe(&transaction, &unit),
            None => "not planned".to_owned(),
        }
    }
}

/// A transaction of the decoded stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    pub id: TransactionId,
    /// In the order of insertion.
    pub entries: Vec<Entry>,
}

/// How a transaction ended, as its writer was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub id: TransactionId,
    pub fate: Fate,
    pub has_rows: bool,
    /// Before its first statement was sent.
    pub started: Instant,
    /// After the answer to its last statement.
    pub finished: Instant,
    pub notifications: Vec<Notification>,
    /// The listeners that it had seen before it sent them.
    pub seen: Vec<Introduction>,
}

/// A connection of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterSession {
    pub writer: u32,
    pub first_transaction: u32,
    pub pid: i32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that were acknowledged.
    pub committed: u64,
    /// Transactions that were rolled back, or failed.
    pub rolled_back: u64,
    /// Transactions without an answer, in the end all of which
    pub unanswered: u64,
    /// have turned out to be committed.
    pub unanswered_committed: u64,
    /// Notifications received, all of them checked.
    pub notifications: u64,
    /// LISTENs that were checked from beginning to end.
    pub complete_intervals: u64,
    /// LISTENs that ended with their session.
    pub cut_intervals: u64,
}

pub struct Checker<P> {
    plans: P,
    history: History,
    observers: Vec<Observer>,
    /// Transactions with rows that got no answer, and are not decoded yet.
    unanswered: HashSet<TransactionId>,
    /// Transactions with rows that were acknowledged since the last `check`.
    acknowledged: Vec<TransactionId>,
    counts: Counts,
}

impl<P: Plans> Checker<P> {
    pub fn new(plans: P, listeners: u32) -> Self {
        Self {
            plans,
            history: History::default(),
            observers: (0..listeners).map(Observer::new).collect(),
            unanswered: HashSet::new(),
            acknowledged: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn add_event(&mut self, listener: u32, event: Event) {
        self.observers[listener as usize].add(event);
    }

    pub fn add_session(&mut self, session: WriterSession) {
        let WriterSession {
            writer,
            first_transaction,
            pid,
        } = session;
        self.history.add_session(writer, first_transaction, pid);
    }

    pub fn add_outcome(&mut self, outcome: Outcome) {
        let Outcome {
            id,
            fate,
            has_rows,
            started,
            finished,
            notifications,
            seen,
        } = outcome;
        match fate {
            Fate::Committed => self.counts.committed += 1,
            Fate::RolledBack => self.counts.rolled_back += 1,
            Fate::Unknown => self.counts.unanswered += 1,
        }
        if notifications.is_empty() {
            return;
        }
        if !has_rows {
            self.history.add_rowless(Rowless {
                id,
                fate,
                started,
                finished,
                notifications,
                seen,
            });
        } else if fate == Fate::Committed {
            self.acknowledged.push(id);
        } else if fate == Fate::Unknown {
            if self.history.has(id) {
                self.counts.unanswered_committed += 1;
            } else {
                self.unanswered.insert(id);
            }
        }
    }

    /// The next transaction of the decoded stream.
    pub fn add_decoded(&mut self, decoded: Decoded, now: Instant) -> Result<(), Box<Difference>> {
        let Decoded { id, entries } = decoded;
        if let Some(planned) = self.plans.planned(id) {
            let rows = entries.iter().map(|entry| Notification {
                index: entry.key.index,
                channel: entry.channel,
                length: entry.length,
            });
            if !planned.commits || !planned.has_rows || !rows.eq(planned.notifications) {
                return Err(self.difference(What::OtherRows(id)));
            }
        }
        if self.unanswered.remove(&id) {
            self.counts.unanswered_committed += 1;
        }
        self.history.append(id, entries, now);
        Ok(())
    }

    /// A listener introduced itself, in a transaction of the decoded stream.
    pub fn add_introduction(&mut self, introduction: Introduction, lsn: Lsn, now: Instant) {
        self.history.add_introduction(introduction, lsn, now);
    }

    /// Compares what was observed so far. Whatever committed before the last
    /// event and outcome must have been added by now.
    pub fn check(&mut self) -> Result<(), Box<Difference>> {
        for observer in &mut self.observers {
            observer.check(&self.history, &self.plans, &mut self.counts)?;
        }
        let acknowledged = std::mem::take(&mut self.acknowledged);
        match acknowledged.into_iter().find(|&id| !self.history.has(id)) {
            Some(id) => Err(self.difference(What::NotDecoded(id))),
            None => Ok(()),
        }
    }

    /// Forgets what is not needed any more, or at least all of it that is older
    /// than `age`.
    pub fn forget(&mut self, age: Duration, now: Instant) {
        let positions = self.observers.iter().filter_map(Observer::oldest_position);
        let position = positions.min().unwrap_or(self.history.end());
        self.history.forget(position, age, now);

        if let Some(limit) = now.checked_sub(age) {
            let times = self.observers.iter().filter_map(Observer::oldest_time);
            self.history.forget_rowless(times.fold(limit, Instant::min));
        }
    }

    fn difference(&self, what: What) -> Box<Difference> {
        let plans = what
            .transactions()
            .into_iter()
            .map(|id| (id, self.plans.describe(id)))
            .collect();
        Box::new(Difference {
            what,
            witness: None,
            plans,
        })
    }
}
