//! What happened, as a test tells it.

use std::collections::HashMap;
use std::time::Duration;

use crate::checker::Checker;
use crate::checker::difference::{Difference, Mismatch};
use crate::checker::listener_check::Counts;
use crate::checker::record::{
    Decoded, Entry, Event, Fate, Moment, Outcome, PositionEvent, Record, Returned, Sent,
    WriterSession,
};
use crate::workload::identity::{Channel, Introduction, Key, Lsn, TransactionId};
use crate::workload::unit_of_work::Notification;
use crate::workload::{Planned, Plans};

pub const LENGTH: u32 = 20;

pub const MEMORY: Duration = Duration::from_secs(60);

pub const INTRODUCTION: Introduction = Introduction {
    listener: 0,
    number: 7,
};

#[derive(Default)]
pub struct Plan(pub HashMap<TransactionId, Planned>);

impl Plans for &Plan {
    fn planned(&self, id: TransactionId) -> Option<Planned> {
        self.0.get(&id).cloned()
    }

    fn describe(&self, _id: TransactionId) -> String {
        "what it was to do".to_owned()
    }
}

pub fn pid_of(writer: u32) -> i32 {
    100 + writer as i32
}

pub fn id(writer: u32, number: u32) -> TransactionId {
    TransactionId { writer, number }
}

/// The first notification of a transaction, which has a row.
pub fn key(writer: u32, number: u32) -> Key {
    Key {
        transaction: id(writer, number),
        index: 0,
        has_row: true,
    }
}

pub fn rowless(writer: u32, number: u32) -> Key {
    Key {
        has_row: false,
        ..key(writer, number)
    }
}

pub fn received(key: Key, channel: u32) -> Sent {
    Sent {
        key,
        channel: Channel(channel),
        length: LENGTH,
        pid: pid_of(key.transaction.writer),
    }
}

pub fn arrival(key: Key, channel: u32) -> Event {
    Event::Received(received(key, channel))
}

/// What happened, as a test tells it.
pub struct Story<'a> {
    pub checker: Checker<&'a Plan>,
    /// Whose events follow.
    listener: u32,
    pub start: Moment,
}

impl<'a> Story<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        Self {
            checker: Checker::new(plan, 2, MEMORY),
            listener: 0,
            start: Moment::default(),
        }
    }

    /// What cannot be wrong by itself.
    fn apply(&mut self, record: Record) {
        self.checker.apply(record).unwrap();
    }

    pub fn at(&self, seconds: u64) -> Moment {
        self.start + Duration::from_secs(seconds)
    }

    /// Each with one notification: key, channel. The positions in the WAL are
    /// 10, 20, 30 and so on.
    pub fn commit(mut self, transactions: &[(Key, u32)]) -> Self {
        for (number, &(key, channel)) in transactions.iter().enumerate() {
            let entry = Entry {
                lsn: Lsn(10 * (number as u64 + 1)),
                sent: received(key, channel),
            };
            let decoded = Decoded {
                id: key.transaction,
                entries: vec![entry],
                at: self.start,
            };
            self.apply(Record::Decoded(decoded));
        }
        self
    }

    pub fn event(mut self, event: Event) -> Self {
        self.apply(Record::Event(self.listener, event));
        self
    }

    pub fn position(mut self, event: PositionEvent) -> Self {
        self.apply(Record::Position(3, event));
        self
    }

    /// What another listener sees.
    pub fn other(mut self, events: impl FnOnce(Self) -> Self) -> Self {
        self.listener = 1;
        self = events(self);
        self.listener = 0;
        self
    }

    pub fn connect(self) -> Self {
        let at = self.start;
        self.event(Event::Connected { pid: 7, at })
    }

    /// LISTEN that returned at a position and a time.
    pub fn listen(self, channels: &[u32], lsn: u64, seconds: u64) -> Self {
        self.listen_introduced(channels, lsn, seconds, None)
    }

    /// The same in a transaction that introduced the listener, and whose commit
    /// record ends at a position.
    pub fn listen_introduced(
        mut self,
        channels: &[u32],
        lsn: u64,
        seconds: u64,
        introduced: Option<u64>,
    ) -> Self {
        if let Some(lsn) = introduced {
            self.apply(Record::Introduced {
                introduction: INTRODUCTION,
                lsn: Lsn(lsn),
                at: self.start,
            });
        }
        let returned = Returned {
            lsn: Lsn(lsn),
            at: self.at(seconds),
        };
        self.event(Event::Listen {
            channels: channels.iter().map(|&channel| Channel(channel)).collect(),
            returned: Some(returned),
            introduction: introduced.map(|_| INTRODUCTION),
        })
    }

    pub fn receive(mut self, arrivals: &[(Key, u32)]) -> Self {
        for &(key, channel) in arrivals {
            self = self.event(arrival(key, channel));
        }
        self
    }

    pub fn fence_sent(self, key: Key, seconds: u64) -> Self {
        let at = self.at(seconds);
        self.event(Event::FenceSent { key, at })
    }

    pub fn outcome(self, key: Key, fate: Fate, started: u64, finished: u64, channel: u32) -> Self {
        self.outcome_after_seeing(key, fate, started, finished, channel, &[])
    }

    /// The same of a session that had looked for listeners.
    pub fn outcome_after_seeing(
        mut self,
        key: Key,
        fate: Fate,
        started: u64,
        finished: u64,
        channel: u32,
        seen: &[Introduction],
    ) -> Self {
        let TransactionId { writer, .. } = key.transaction;
        self.apply(Record::Session(WriterSession {
            writer,
            first_transaction: 0,
            pid: pid_of(writer),
        }));
        let outcome = Outcome {
            id: key.transaction,
            fate,
            has_rows: key.has_row,
            started: self.at(started),
            finished: self.at(finished),
            notifications: vec![notification(channel)],
            seen: seen.to_vec(),
        };
        self.apply(Record::Outcome(outcome));
        self
    }

    pub fn check(&mut self) -> Result<Counts, Box<Difference>> {
        self.checker.apply(Record::Round(self.start))?;
        Ok(self.checker.counts())
    }

    pub fn passes(mut self) -> Counts {
        self.check()
            .unwrap_or_else(|difference| panic!("{difference}"))
    }

    pub fn fails(mut self) -> Mismatch {
        match self.check() {
            Err(difference) => difference.what,
            Ok(_) => panic!("no difference was found"),
        }
    }
}

pub fn notification(channel: u32) -> Notification {
    Notification {
        index: 0,
        channel: Channel(channel),
        length: LENGTH,
    }
}

/// Plans of transactions that have no rows, and one notification each.
pub fn plan_rowless(transactions: &[(TransactionId, bool, u32)]) -> Plan {
    let planned = transactions.iter().map(|&(id, commits, channel)| {
        let planned = Planned {
            commits,
            has_rows: false,
            notifications: vec![notification(channel)],
        };
        (id, planned)
    });
    Plan(planned.collect())
}

/// Five transactions on channel 1, and two on channel 2 among them.
pub fn committed() -> [(Key, u32); 7] {
    [
        (key(1, 1), 1),
        (key(2, 1), 1),
        (key(3, 1), 2),
        (key(1, 2), 1),
        (key(3, 2), 2),
        (key(2, 2), 1),
        (key(4, 1), 1),
    ]
}

pub fn on_channel(channel: u32) -> Vec<(Key, u32)> {
    let mut committed = committed().to_vec();
    committed.retain(|&(_, other)| other == channel);
    committed
}

/// A listener on channel 1 that received this.
pub fn listener_on_1<'a>(plan: &'a Plan, arrivals: &[(Key, u32)]) -> Story<'a> {
    Story::new(plan)
        .commit(&committed())
        .connect()
        .listen(&[1], 0, 0)
        .receive(arrivals)
}
