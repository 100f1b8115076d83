//! The copies of the position clients: what they were told to keep must be right.
//!
//! A position client knows of each channel the last transaction of each writer that it
//! has read, and the notifications that it has received since. It asks which of its
//! channels have changed since a position. A channel that is not reported must be up to
//! date in its copy:
//!
//! - on the primary, each transaction is in the copy that was acknowledged before the
//!   question was sent;
//! - on a standby, each transaction that was replayed before.
//!
//! The transactions of a writer come one after the other, so a client that has read
//! one of them has also read all that were acknowledged before.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::checker::difference::Mismatch;
use crate::checker::listener_check::Counts;
use crate::checker::record::{Decoded, Last, Moment, Outcome, PositionEvent};
use crate::workload::identity::{Channel, Lsn, TransactionId};

/// Transactions of a writer on a channel.
type Line = (Channel, u32);

#[derive(Debug, Default)]
pub struct Copies {
    pending: VecDeque<(u32, PositionEvent)>,
    clients: BTreeMap<u32, TableCopy>,
    acknowledged: Ledger<Moment>,
    replayed: Ledger<Lsn>,
}

/// What a client knows.
type TableCopy = BTreeMap<Line, Known>;

#[derive(Debug, Default)]
struct Known {
    /// The last transaction that was there when the client read the channel.
    read: Option<u32>,
    /// How many notifications of which transactions were received since.
    received: HashMap<u32, u32>,
}

impl Known {
    fn last(&self) -> Option<u32> {
        self.received.keys().copied().max().max(self.read)
    }
}

/// Transactions with rows, each from a moment or a place in the WAL on.
#[derive(Debug)]
struct Ledger<W>(BTreeMap<Line, VecDeque<Due<W>>>);

impl<W> Default for Ledger<W> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[derive(Debug)]
struct Due<W> {
    from: W,
    number: u32,
    /// Its notifications on the channel.
    notifications: u32,
    /// When this became known.
    at: Moment,
}

impl<W: Ord> Ledger<W> {
    /// To be called in the order of `from`.
    fn add(
        &mut self,
        id: TransactionId,
        from: W,
        at: Moment,
        channels: impl Iterator<Item = Channel>,
    ) where
        W: Clone,
    {
        let mut counts = BTreeMap::<Channel, u32>::new();
        for channel in channels {
            *counts.entry(channel).or_default() += 1;
        }
        for (channel, notifications) in counts {
            let due = Due {
                from: from.clone(),
                number: id.number,
                notifications,
                at,
            };
            let line = self.0.entry((channel, id.writer)).or_default();
            line.push_back(due);
        }
    }

    /// A transaction on a channel that satisfies `is_due`, as all before it do, and is
    /// not in a copy.
    fn missing(
        &self,
        channel: Channel,
        copy: &TableCopy,
        is_due: impl Fn(&W) -> bool,
    ) -> Option<TransactionId> {
        let mut lines = self.0.range((channel, 0)..=(channel, u32::MAX));
        lines.find_map(|(line, all)| {
            let known = copy.get(line);
            let read = known.and_then(|known| known.read);
            let is_received = |due: &Due<W>| {
                let received = known.and_then(|known| known.received.get(&due.number));
                received.is_some_and(|&received| received >= due.notifications)
            };
            let end = all.partition_point(|due| is_due(&due.from));
            all.range(..end)
                .rev()
                .take_while(|due| Some(due.number) > read)
                .find(|due| !is_received(due))
                .map(|due| TransactionId {
                    writer: line.1,
                    number: due.number,
                })
        })
    }

    fn forget(&mut self, until: Moment) {
        for line in self.0.values_mut() {
            while line.front().is_some_and(|due| due.at < until) {
                line.pop_front();
            }
        }
    }
}

impl Copies {
    pub fn add(&mut self, client: u32, event: PositionEvent) {
        self.pending.push_back((client, event));
    }

    /// A transaction with rows that was acknowledged.
    pub fn acknowledge(&mut self, outcome: &Outcome) {
        let channels = outcome.notifications.iter().map(|n| n.channel);
        let finished = outcome.finished;
        self.acknowledged
            .add(outcome.id, finished, finished, channels);
    }

    pub fn add_decoded(&mut self, decoded: &Decoded) {
        if let Some(first) = decoded.entries.first() {
            let channels = decoded.entries.iter().map(|entry| entry.sent.channel);
            self.replayed
                .add(decoded.id, first.lsn, decoded.at, channels);
        }
    }

    /// Goes through all events so far. What was acknowledged or replayed before them
    /// must have been added.
    pub fn check(&mut self, counts: &mut Counts) -> Result<(), Mismatch> {
        while let Some((client, event)) = self.pending.pop_front() {
            let copy = self.clients.entry(client).or_default();
            match event {
                PositionEvent::Asked {
                    at,
                    replayed,
                    changed,
                    unchanged,
                } => {
                    for &channel in &unchanged {
                        let missing = match replayed {
                            None => self.acknowledged.missing(channel, copy, |&from| from < at),
                            Some(lsn) => self.replayed.missing(channel, copy, |&from| from <= lsn),
                        };
                        if let Some(transaction) = missing {
                            return Err(Mismatch::Unreported {
                                client,
                                transaction,
                                channel,
                                is_replayed: replayed.is_some(),
                            });
                        }
                    }
                    counts.questions += 1;
                    counts.changed += changed.len() as u64;
                    counts.unchanged += unchanged.len() as u64;
                }
                PositionEvent::Read { channels, last } => {
                    copy.retain(|(channel, _), _| !channels.contains(channel));
                    for Last(channel, writer, number) in last {
                        let known = Known {
                            read: Some(number),
                            received: HashMap::new(),
                        };
                        copy.insert((channel, writer), known);
                    }
                }
                PositionEvent::Received { channel, key } => {
                    let line = (channel, key.transaction.writer);
                    let received = &mut copy.entry(line).or_default().received;
                    *received.entry(key.transaction.number).or_default() += 1;
                }
                PositionEvent::Table(table) => compare(client, copy, &table)?,
            }
        }
        Ok(())
    }

    /// Forgets what was known before that: questions from then are answered.
    pub fn forget(&mut self, until: Moment) {
        self.acknowledged.forget(until);
        self.replayed.forget(until);
    }
}

/// At the end, the copy must be the table.
fn compare(client: u32, copy: &TableCopy, table: &[Last]) -> Result<(), Mismatch> {
    let table: BTreeMap<Line, u32> = table
        .iter()
        .map(|&Last(channel, writer, number)| ((channel, writer), number))
        .collect();
    let lines: BTreeSet<Line> = copy.keys().chain(table.keys()).copied().collect();
    for (channel, writer) in lines {
        let id = |number| TransactionId { writer, number };
        let in_copy = copy.get(&(channel, writer)).and_then(Known::last).map(id);
        let in_table = table.get(&(channel, writer)).copied().map(id);
        if in_copy != in_table {
            return Err(Mismatch::OtherCopy {
                client,
                channel,
                in_copy,
                in_table,
            });
        }
    }
    Ok(())
}
