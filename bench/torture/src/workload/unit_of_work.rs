//! A unit of work of a writer.

use serde::{Deserialize, Serialize};

use crate::workload::identity::{Channel, Key, TransactionId};

/// What a writer sends to the server between two looks at its orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub transactions: Vec<Transaction>,
    pub form: Form,
    pub synchronous_commit: &'static str,
    pub is_serializable: bool,
    pub greeting: Option<Greeting>,
    pub disturbance: Option<Disturbance>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One statement after the other, each waiting for the one before.
    Statements,
    /// BEGIN to COMMIT in one message.
    OneMessage,
    /// One message without BEGIN and COMMIT.
    Implicit,
    /// Several transactions by COMMIT AND CHAIN.
    Chained,
    /// Several transactions by a procedure that does COMMIT.
    Procedure,
}

/// A look for new listeners, and then a notification on each of several channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    /// Of whom there is.
    AtOnce,
    /// Of one that is introducing itself: with the lock that it held.
    WithLock,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    pub id: TransactionId,
    /// Whether a row goes with each notification.
    pub has_rows: bool,
    /// Whether it gets a transaction ID even so.
    pub takes_xid: bool,
    pub steps: Vec<Step>,
    pub end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    Rollback,
    /// A statement that breaks a constraint, then ROLLBACK.
    ConstraintError,
    /// A COMMIT that fails, as a deferred constraint is broken.
    DeferredConstraintError,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Notify {
        notification: Notification,
        statement: Statement,
        /// Said again at once: PostgreSQL folds the two into one.
        is_repeated: bool,
    },
    Series(Series),
    Savepoint {
        steps: Vec<Step>,
        end: SavepointEnd,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notification {
    pub index: u32,
    pub channel: Channel,
    /// Bytes of its payload.
    pub length: u32,
}

/// Many notifications by one statement, on all channels in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Series {
    pub first_index: u32,
    pub count: u32,
    pub channels: u32,
    pub length: u32,
}

/// How a row and its notification are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statement {
    /// INSERT and NOTIFY.
    Notify,
    /// INSERT and SELECT pg_notify().
    Function,
    /// INSERT ... RETURNING in a CTE, and pg_notify() over that.
    Returning,
    /// INSERT, and a trigger that calls pg_notify().
    Trigger,
    /// The same, by a constraint trigger that is deferred until COMMIT.
    DeferredTrigger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavepointEnd {
    Release,
    /// Neither released nor rolled back: COMMIT does it.
    Leave,
    RollBack,
    RollBackAfterError,
}

/// Something that is done to the writer while it commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbance {
    pub kind: DisturbanceKind,
    /// From the moment at which the COMMIT is sent.
    pub delay_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisturbanceKind {
    /// pg_cancel_backend()
    Cancel,
    /// pg_terminate_backend()
    Terminate,
    /// The client closes its end of the connection.
    Abandon,
}

impl Series {
    fn notifications(self) -> impl Iterator<Item = Notification> {
        (self.first_index..self.first_index + self.count).map(move |index| Notification {
            index,
            channel: Channel(index % self.channels),
            length: self.length,
        })
    }
}

impl Transaction {
    /// The notifications that are sent if it commits, in that order.
    pub fn notifications(&self) -> Vec<Notification> {
        let mut kept = Vec::new();
        collect(&self.steps, &mut kept);
        kept
    }

    pub fn key(&self, index: u32) -> Key {
        Key {
            transaction: self.id,
            index,
            has_row: self.has_rows,
        }
    }
}

fn collect(steps: &[Step], kept: &mut Vec<Notification>) {
    for step in steps {
        match step {
            Step::Notify { notification, .. } => kept.push(*notification),
            Step::Series(series) => kept.extend(series.notifications()),
            Step::Savepoint {
                steps,
                end: SavepointEnd::Release | SavepointEnd::Leave,
            } => collect(steps, kept),
            Step::Savepoint { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_savepoint_undoes_is_not_sent() {
        let notify = |index| Step::Notify {
            notification: Notification {
                index,
                channel: Channel(0),
                length: 10,
            },
            statement: Statement::Notify,
            is_repeated: false,
        };
        let savepoint = |steps, end| Step::Savepoint { steps, end };
        let transaction = Transaction {
            id: TransactionId {
                writer: 0,
                number: 0,
            },
            has_rows: true,
            takes_xid: false,
            steps: vec![
                notify(0),
                savepoint(
                    vec![
                        notify(1),
                        savepoint(vec![notify(2)], SavepointEnd::RollBack),
                        savepoint(vec![notify(3)], SavepointEnd::Leave),
                    ],
                    SavepointEnd::Release,
                ),
                savepoint(
                    vec![savepoint(vec![notify(4)], SavepointEnd::Release)],
                    SavepointEnd::RollBackAfterError,
                ),
                notify(5),
            ],
            end: End::Commit,
        };
        let indexes: Vec<u32> = transaction
            .notifications()
            .iter()
            .map(|notification| notification.index)
            .collect();
        assert_eq!(indexes, [0, 1, 3, 5]);
    }
}
