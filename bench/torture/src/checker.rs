//! Everything that was observed, compared with everything that happened.

pub mod copies;
pub mod difference;
pub mod finding;
pub mod history;
pub mod listener_check;
pub mod record;
pub mod record_file;
pub mod shared_channels;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::checker::copies::Copies;
use crate::checker::difference::{Difference, Mismatch};
use crate::checker::history::History;
use crate::checker::listener_check::{Counts, ListenerCheck};
use crate::checker::record::{Decoded, Fate, Moment, Outcome, Record};
use crate::checker::shared_channels::SharedDeliveries;
use crate::workload::Plans;
use crate::workload::identity::TransactionId;
use crate::workload::unit_of_work::Notification;

pub struct Checker<P> {
    plans: P,
    history: History,
    listener_checks: Vec<ListenerCheck>,
    /// Transactions with rows that were acknowledged since the last `check`.
    acknowledged: Vec<TransactionId>,
    counts: Counts,
    shared_deliveries: SharedDeliveries,
    copies: Copies,
    /// For how long what may still be needed is kept.
    memory: Duration,
}

impl<P: Plans> Checker<P> {
    pub fn new(plans: P, listeners: u32, memory: Duration) -> Self {
        Self {
            plans,
            history: History::default(),
            listener_checks: (0..listeners).map(ListenerCheck::new).collect(),
            acknowledged: Vec::new(),
            counts: Counts::default(),
            shared_deliveries: SharedDeliveries::default(),
            copies: Copies::default(),
            memory,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes the next record. Those of a round are compared at its end.
    pub fn apply(&mut self, record: Record) -> Result<(), Box<Difference>> {
        match record {
            Record::Event(listener, event) => {
                if let Some(listener_check) = self.listener_checks.get_mut(listener as usize) {
                    listener_check.add(event);
                }
            }
            Record::Position(client, event) => self.copies.add(client, event),
            Record::Session(session) => self.history.add_session(session),
            Record::Outcome(outcome) => self.add_outcome(outcome),
            Record::Decoded(decoded) => self.add_decoded(decoded)?,
            Record::Introduced {
                introduction,
                lsn,
                at,
            } => self.history.add_introduction(introduction, lsn, at),
            Record::Round(now) => {
                self.check(now)?;
                self.forget(now);
            }
        }
        Ok(())
    }

    fn add_outcome(&mut self, outcome: Outcome) {
        if outcome.fate == Fate::Committed && outcome.has_rows {
            self.copies.acknowledge(&outcome);
        }
        let (id, fate) = (outcome.id, outcome.fate);
        match fate {
            // Only what writers do is counted.
            _ if id.is_of_listener() => {}
            Fate::Committed => self.counts.committed += 1,
            Fate::RolledBack => self.counts.rolled_back += 1,
            Fate::Unknown => self.counts.unanswered += 1,
        }
        if outcome.notifications.is_empty() {
            return;
        }
        if !outcome.has_rows {
            self.history.add_rowless(outcome);
        } else if fate == Fate::Committed {
            self.acknowledged.push(id);
        }
    }

    /// The next transaction of the decoded stream.
    fn add_decoded(&mut self, decoded: Decoded) -> Result<(), Box<Difference>> {
        self.copies.add_decoded(&decoded);
        let id = decoded.id;
        if let Some(planned) = self.plans.planned(id) {
            let rows = decoded.entries.iter().map(|entry| Notification {
                index: entry.sent.key.index,
                channel: entry.sent.channel,
                length: entry.sent.length,
            });
            if !planned.commits || !planned.has_rows || !rows.eq(planned.notifications) {
                return Err(self.difference(Mismatch::OtherRows(id)));
            }
        }
        self.history.append(decoded);
        Ok(())
    }

    /// Compares what was observed so far. Whatever committed before the last
    /// event and outcome must have been added by now.
    fn check(&mut self, now: Moment) -> Result<(), Box<Difference>> {
        for listener_check in &mut self.listener_checks {
            listener_check.check(&self.history, &self.plans, &mut self.counts)?;
        }
        let listener_checks = &mut self.listener_checks;
        self.shared_deliveries
            .check(
                &self.history,
                listener_checks,
                &mut self.counts,
                now,
                self.memory,
            )
            .map_err(|what| self.difference(what))?;
        let told = self.copies.check(&mut self.counts);
        told.map_err(|what| self.difference(what))?;
        let acknowledged = std::mem::take(&mut self.acknowledged);
        match acknowledged.into_iter().find(|&id| !self.history.has(id)) {
            Some(id) => Err(self.difference(Mismatch::NotDecoded(id))),
            None => Ok(()),
        }
    }

    /// Forgets what is not needed any more, or at least all of it that is old.
    fn forget(&mut self, now: Moment) {
        let age = self.memory;
        let positions = self
            .listener_checks
            .iter()
            .filter_map(ListenerCheck::oldest_position);
        let position = positions.min().unwrap_or(self.history.end());
        self.history.forget(position, age, now);

        if let Some(limit) = now.checked_sub(age) {
            self.copies.forget(limit);
            let times = self
                .listener_checks
                .iter()
                .filter_map(ListenerCheck::oldest_time);
            self.history.forget_rowless(times.fold(limit, Moment::min));
        }
    }

    fn difference(&self, what: Mismatch) -> Box<Difference> {
        Difference::new(what, &self.plans)
    }
}
