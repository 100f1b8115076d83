//! Makes up what a writer does, by chance.

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;

use crate::workload::identity::{Channel, MAX_PAYLOAD, TransactionId, min_length};
use crate::workload::unit_of_work::{
    Disturbance, DisturbanceKind, End, Form, Greeting, Notification, SavepointEnd, Series,
    Statement, Step, Transaction, Unit,
};
use crate::workload::weighted_choice::choose;

/// Savepoints are nested this deep, at most.
const MAX_DEPTH: u32 = 3;

/// New listeners are greeted on so many channels, at most.
const MAX_GREETINGS: u32 = 8;

/// What a unit of work consists of.
#[derive(Clone, Copy)]
enum Kind {
    /// A transaction with one notification.
    Single,
    /// A transaction with several notifications.
    Several,
    /// A transaction with savepoints.
    Nested(End),
    Serializable,
    Chained,
    Procedure,
    /// A transaction that notifies new listeners.
    Greeting,
    Rowless,
    /// A transaction with very many notifications, or very long ones.
    Large,
}

/// How often each kind comes up.
const KINDS: [(u32, Kind); 12] = [
    (300, Kind::Single),
    (180, Kind::Several),
    (160, Kind::Nested(End::Commit)),
    (80, Kind::Nested(End::Rollback)),
    (20, Kind::Nested(End::ConstraintError)),
    (30, Kind::Nested(End::DeferredConstraintError)),
    (50, Kind::Serializable),
    (40, Kind::Chained),
    (30, Kind::Procedure),
    (40, Kind::Greeting),
    (68, Kind::Rowless),
    (2, Kind::Large),
];

/// How often each disturbance comes up.
const DISTURBANCES: [(u32, Option<DisturbanceKind>); 4] = [
    (20, Some(DisturbanceKind::Cancel)),
    (8, Some(DisturbanceKind::Terminate)),
    (4, Some(DisturbanceKind::Abandon)),
    (968, None),
];

/// How long a payload is.
#[derive(Clone, Copy)]
enum Length {
    Shortest,
    AtMost(u32),
    Longest,
}

/// How often each length comes up.
const LENGTHS: [(u32, Length); 4] = [
    (80, Length::Shortest),
    (13, Length::AtMost(200)),
    (6, Length::AtMost(2000)),
    (1, Length::Longest),
];

/// Makes up one unit of work.
pub struct Planner {
    rng: ChaCha8Rng,
    channels: u32,
    /// The number of the next transaction.
    next: TransactionId,
}

impl Planner {
    /// With the number of the unit's first transaction.
    pub fn new(rng: ChaCha8Rng, channels: u32, first: TransactionId) -> Self {
        Self {
            rng,
            channels,
            next: first,
        }
    }

    pub fn unit(&mut self) -> Unit {
        let mut unit = Unit {
            transactions: Vec::new(),
            form: Form::Statements,
            synchronous_commit: self.pick(&[
                "on",
                "on",
                "off",
                "off",
                "local",
                "remote_write",
                "remote_apply",
            ]),
            is_serializable: false,
            greeting: None,
            disturbance: self.disturbance(),
        };
        match choose(&mut self.rng, &KINDS) {
            Kind::Single => {
                unit.transactions = vec![self.flat(1, End::Commit)];
                unit.form = self.form();
            }
            Kind::Several => {
                let count = self.rng.random_range(2..=10);
                unit.transactions = vec![self.flat(count, End::Commit)];
                unit.form = self.form();
            }
            Kind::Nested(end) => {
                unit.transactions = vec![self.nested(end)];
            }
            Kind::Serializable => {
                let count = self.rng.random_range(1..=4);
                unit.transactions = vec![self.flat(count, End::Commit)];
                unit.is_serializable = true;
            }
            Kind::Chained => {
                unit.form = Form::Chained;
                unit.transactions = self.parts(4);
            }
            Kind::Procedure => {
                unit.form = Form::Procedure;
                unit.transactions = self.parts(5);
            }
            Kind::Greeting => {
                unit.transactions = vec![self.greeting()];
                unit.greeting = Some(self.pick(&[Greeting::AtOnce, Greeting::WithLock]));
                unit.form = Form::OneMessage;
            }
            Kind::Rowless => {
                let end = self.end(7);
                unit.transactions = vec![self.rowless(end)];
                unit.form = self.pick(&[Form::Statements, Form::OneMessage]);
            }
            Kind::Large => {
                unit.transactions = vec![self.large()];
                unit.form = Form::OneMessage;
            }
        }
        unit
    }

    /// How a unit of one transaction is sent.
    fn form(&mut self) -> Form {
        self.pick(&[Form::Statements, Form::OneMessage, Form::Implicit])
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices
            .choose(&mut self.rng)
            .expect("there are some choices")
    }

    fn one_in(&mut self, number: u32) -> bool {
        self.rng.random_ratio(1, number)
    }

    /// One in so many is rolled back.
    fn end(&mut self, rolled_back: u32) -> End {
        match self.one_in(rolled_back) {
            true => End::Rollback,
            false => End::Commit,
        }
    }

    fn disturbance(&mut self) -> Option<Disturbance> {
        Some(Disturbance {
            kind: choose(&mut self.rng, &DISTURBANCES)?,
            delay_ms: self.rng.random_range(0..=6),
        })
    }

    fn transaction(&mut self, has_rows: bool, end: End) -> Transaction {
        let id = self.next;
        self.next.number += 1;
        Transaction {
            id,
            has_rows,
            takes_xid: false,
            steps: Vec::new(),
            end,
        }
    }

    /// Notifications one after the other.
    fn flat(&mut self, count: u32, end: End) -> Transaction {
        let mut transaction = self.transaction(true, end);
        let palette = self.palette();
        let is_deferred = self.one_in(10);
        for index in 0..count {
            let step = self.notify(&transaction, index, &palette, is_deferred);
            transaction.steps.push(step);
        }
        transaction
    }

    /// The parts of a unit of several transactions.
    fn parts(&mut self, most: u32) -> Vec<Transaction> {
        let count = self.rng.random_range(2..=most);
        (0..count).map(|_| self.part()).collect()
    }

    fn part(&mut self) -> Transaction {
        let end = self.end(5);
        let count = self.rng.random_range(1..=3);
        self.flat(count, end)
    }

    /// Notifications inside and outside of savepoints.
    fn nested(&mut self, end: End) -> Transaction {
        let mut transaction = self.transaction(true, end);
        let palette = self.palette();
        let is_deferred = self.one_in(10);
        let mut next_index = 0;
        transaction.steps = self.steps(
            &transaction,
            &palette,
            is_deferred,
            MAX_DEPTH,
            &mut next_index,
        );
        transaction
    }

    fn steps(
        &mut self,
        transaction: &Transaction,
        palette: &[Channel],
        is_deferred: bool,
        depth: u32,
        next_index: &mut u32,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..self.rng.random_range(1..=3) {
            if depth > 0 && self.one_in(2) {
                steps.push(Step::Savepoint {
                    steps: self.steps(transaction, palette, is_deferred, depth - 1, next_index),
                    end: self.pick(&[
                        SavepointEnd::Release,
                        SavepointEnd::Release,
                        SavepointEnd::Leave,
                        SavepointEnd::RollBack,
                        SavepointEnd::RollBack,
                        SavepointEnd::RollBackAfterError,
                    ]),
                });
            } else {
                steps.push(self.notify(transaction, *next_index, palette, is_deferred));
                *next_index += 1;
            }
        }
        steps
    }

    /// Notifications alone: the decoded stream does not have them.
    fn rowless(&mut self, end: End) -> Transaction {
        let mut transaction = self.transaction(false, end);
        transaction.takes_xid = self.one_in(4);
        let palette = self.palette();
        for index in 0..self.rng.random_range(1..=3) {
            let step = self.notify_alone(&transaction, index, &palette);
            transaction.steps.push(step);
        }
        transaction
    }

    /// A notification without a row.
    fn notify_alone(&mut self, transaction: &Transaction, index: u32, palette: &[Channel]) -> Step {
        Step::Notify {
            notification: self.notification(transaction, index, palette),
            statement: self.pick(&[Statement::Notify, Statement::Function]),
            is_repeated: self.one_in(20),
        }
    }

    /// One notification on each of several channels.
    fn greeting(&mut self) -> Transaction {
        let has_rows = self.one_in(2);
        let mut transaction = self.transaction(has_rows, End::Commit);
        let first = self.rng.random_range(0..self.channels);
        for index in 0..self.channels.min(MAX_GREETINGS) {
            let channel = Channel((first + index) % self.channels);
            let step = if has_rows {
                self.notify(&transaction, index, &[channel], false)
            } else {
                self.notify_alone(&transaction, index, &[channel])
            };
            transaction.steps.push(step);
        }
        transaction
    }

    /// Thousands of notifications, or a hundred of the longest.
    fn large(&mut self) -> Transaction {
        let mut transaction = self.transaction(true, End::Commit);
        let is_long = self.one_in(2);
        let count = if is_long {
            self.rng.random_range(50..=150)
        } else {
            self.rng.random_range(1000..=4000)
        };
        let shortest = min_length(transaction.key(count));
        let length = if is_long {
            self.rng.random_range(2000..=MAX_PAYLOAD)
        } else {
            shortest + self.rng.random_range(0..=30)
        };
        transaction.steps.push(Step::Series(Series {
            first_index: 0,
            count,
            channels: self.channels,
            length,
        }));
        transaction
    }

    /// The channels of one transaction: often a single one.
    fn palette(&mut self) -> Vec<Channel> {
        let count = self.pick(&[1, 1, 2, 4]);
        (0..count)
            .map(|_| Channel(self.rng.random_range(0..self.channels)))
            .collect()
    }

    fn notify(
        &mut self,
        transaction: &Transaction,
        index: u32,
        palette: &[Channel],
        is_deferred: bool,
    ) -> Step {
        let notification = self.notification(transaction, index, palette);
        let statement = if is_deferred {
            Statement::DeferredTrigger
        } else {
            self.pick(&[
                Statement::Notify,
                Statement::Function,
                Statement::Returning,
                Statement::Trigger,
            ])
        };
        Step::Notify {
            notification,
            statement,
            // The repetition would come before what is deferred.
            is_repeated: !is_deferred && self.one_in(20),
        }
    }

    fn notification(
        &mut self,
        transaction: &Transaction,
        index: u32,
        palette: &[Channel],
    ) -> Notification {
        let shortest = min_length(transaction.key(index));
        let length = match choose(&mut self.rng, &LENGTHS) {
            Length::Shortest => shortest,
            Length::AtMost(longest) => self.rng.random_range(shortest..=longest),
            Length::Longest => MAX_PAYLOAD,
        };
        Notification {
            index,
            channel: self.pick(palette),
            length,
        }
    }
}
