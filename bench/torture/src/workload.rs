//! What the writers do: a pure function of the seed, the writer, and how many
//! units of work it has done before.

pub mod identity;
pub mod random_unit;
pub mod unit_of_work;
pub mod weighted_choice;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::workload::identity::{TransactionId, WATCHED_BASE};
use crate::workload::random_unit::Planner;
use crate::workload::unit_of_work::{End, Notification, Transaction, Unit};

/// Transactions are numbered through; each unit of work has this many numbers
/// to itself, so that the number tells the unit.
const NUMBERS_PER_UNIT: u32 = 8;

/// Streams of random numbers with this bit are not those of writers.
const NOT_A_WRITER: u64 = 1 << 63;

/// From the seed, an independent sequence of random numbers for everybody.
fn random(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

/// Random numbers for something that is no writer: the `part`th of the `whole`.
pub fn random_for(seed: u64, whole: u32, part: u32) -> ChaCha8Rng {
    random(
        seed,
        NOT_A_WRITER | u64::from(whole) << 32 | u64::from(part),
    )
}

/// All that the writers will ever do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    pub seed: u64,
    pub channels: u32,
}

impl Workload {
    pub fn unit(&self, writer: u32, number: u32) -> Unit {
        let stream = u64::from(writer) << 32 | u64::from(number);
        let first = TransactionId {
            writer,
            number: number * NUMBERS_PER_UNIT,
        };
        Planner::new(random(self.seed, stream), self.channels, first).unit()
    }

    /// One transaction, and the unit that it is a part of; `None` if there is none.
    pub fn transaction(&self, id: TransactionId) -> Option<(Transaction, Unit)> {
        let unit = self.unit(id.writer, id.number / NUMBERS_PER_UNIT);
        let transaction = unit.transactions.iter().find(|t| t.id == id)?.clone();
        Some((transaction, unit))
    }
}

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
        if id.writer >= WATCHED_BASE {
            return "rows of a watched table, COMMIT or COMMIT PREPARED".to_owned();
        }
        if id.is_of_listener() {
            return "a row and a notification, COMMIT".to_owned();
        }
        match self.transaction(id) {
            Some((_, unit)) => format!("{unit:?}"),
            None => "not planned".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::identity::{MAX_PAYLOAD, min_length};
    use crate::workload::unit_of_work::{DisturbanceKind, Form, Greeting};

    const WORKLOAD: Workload = Workload {
        seed: 42,
        channels: 8,
    };

    fn units() -> impl Iterator<Item = Unit> {
        (0..4).flat_map(|writer| (0..3000).map(move |number| WORKLOAD.unit(writer, number)))
    }

    #[test]
    fn the_same_seed_gives_the_same_work() {
        for number in 0..100 {
            assert_eq!(WORKLOAD.unit(3, number), WORKLOAD.unit(3, number));
        }
        let others = Workload {
            seed: 43,
            channels: 8,
        };
        assert!((0..100).any(|number| WORKLOAD.unit(3, number) != others.unit(3, number)));
        assert!((0..100).any(|number| {
            let (mut a, mut b) = (WORKLOAD.unit(3, number), WORKLOAD.unit(4, number));
            a.transactions.clear();
            b.transactions.clear();
            a != b
        }));
    }

    #[test]
    fn a_transaction_is_found_by_its_number() {
        let unit = (0..)
            .map(|number| WORKLOAD.unit(1, number))
            .find(|unit| unit.transactions.len() > 2)
            .unwrap();
        let third = &unit.transactions[2];
        let found = WORKLOAD.transaction(third.id).unwrap();
        assert_eq!(found, (third.clone(), unit.clone()));

        let beyond = TransactionId {
            number: third.id.number / NUMBERS_PER_UNIT * NUMBERS_PER_UNIT + NUMBERS_PER_UNIT - 1,
            ..third.id
        };
        assert_eq!(WORKLOAD.transaction(beyond), None);
    }

    #[test]
    fn every_kind_of_work_comes_up() {
        let units: Vec<Unit> = units().collect();
        let transactions = || units.iter().flat_map(|unit| &unit.transactions);
        for form in [
            Form::Statements,
            Form::OneMessage,
            Form::Implicit,
            Form::Chained,
            Form::Procedure,
        ] {
            assert!(units.iter().any(|unit| unit.form == form), "{form:?}");
        }
        for end in [
            End::Commit,
            End::Rollback,
            End::ConstraintError,
            End::DeferredConstraintError,
        ] {
            assert!(transactions().any(|t| t.end == end), "{end:?}");
        }
        for kind in [
            DisturbanceKind::Cancel,
            DisturbanceKind::Terminate,
            DisturbanceKind::Abandon,
        ] {
            let is_there = units
                .iter()
                .any(|unit| unit.disturbance.is_some_and(|d| d.kind == kind));
            assert!(is_there, "{kind:?}");
        }
        assert!(units.iter().any(|unit| unit.is_serializable));
        for greeting in [Greeting::AtOnce, Greeting::WithLock] {
            for has_rows in [true, false] {
                let mut greetings = units.iter().filter(|u| u.greeting == Some(greeting));
                assert!(greetings.any(|unit| unit.transactions[0].has_rows == has_rows));
            }
        }
        assert!(transactions().any(|t| !t.has_rows && t.takes_xid));
        assert!(transactions().any(|t| !t.has_rows && !t.takes_xid));
        assert!(transactions().any(|t| t.notifications().len() >= 1000));
    }

    #[test]
    fn notifications_are_valid_and_in_order() {
        for unit in units() {
            for transaction in &unit.transactions {
                let notifications = transaction.notifications();
                assert!(notifications.is_sorted_by(|a, b| a.index < b.index));
                for notification in notifications {
                    let shortest = min_length(transaction.key(notification.index));
                    assert!((shortest..=MAX_PAYLOAD).contains(&notification.length));
                    assert!(notification.channel.0 < WORKLOAD.channels);
                }
            }
        }
    }
}
