//! What is known to have happened: the transactions in commit order, as the
//! server decodes them from its WAL, and what the writers know of their own.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::checker::record::{Decoded, Entry, Moment, Outcome, WriterSession};
use crate::workload::identity::{Introduction, Key, Lsn, TransactionId};

/// A window of the past. Positions number all entries since the beginning.
#[derive(Debug, Default)]
pub struct History {
    entries: VecDeque<Entry>,
    /// Position of the first entry in the window.
    base: u64,
    /// Where each transaction in the window begins.
    positions: HashMap<TransactionId, u64>,
    /// When entries arrived: up to which position there were entries then.
    arrivals: VecDeque<(Moment, u64)>,
    /// Transactions without rows, which the decoded stream does not have.
    rowless: BTreeMap<(Moment, TransactionId), Outcome>,
    /// Where the commit record of each introduction ends, and when it arrived.
    introductions: HashMap<Introduction, (Lsn, Moment)>,
    /// The sessions of each writer: number of the first transaction, and PID.
    sessions: HashMap<u32, Vec<(u32, i32)>>,
}

impl History {
    /// The position of the oldest entry that is still known.
    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    pub fn get(&self, position: u64) -> Option<&Entry> {
        let index = position.checked_sub(self.base)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// Adds what one transaction did, the next in commit order.
    pub fn append(&mut self, decoded: Decoded) {
        self.positions.insert(decoded.id, self.end());
        self.entries.extend(decoded.entries);
        self.arrivals.push_back((decoded.at, self.end()));
    }

    pub fn has(&self, id: TransactionId) -> bool {
        self.positions.contains_key(&id)
    }

    pub fn position_of(&self, key: Key) -> Option<u64> {
        let first = *self.positions.get(&key.transaction)?;
        (first..)
            .map_while(|position| Some((position, self.get(position)?)))
            .take_while(|(_, entry)| entry.sent.key.transaction == key.transaction)
            .find(|(_, entry)| entry.sent.key == key)
            .map(|(position, _)| position)
    }

    pub fn add_introduction(&mut self, introduction: Introduction, lsn: Lsn, now: Moment) {
        self.introductions.insert(introduction, (lsn, now));
    }

    /// The end of its commit record, if it committed.
    pub fn introduced(&self, introduction: Introduction) -> Option<Lsn> {
        let (lsn, _) = self.introductions.get(&introduction)?;
        Some(*lsn)
    }

    /// Forgets entries before `position` that are older than `age`. A
    /// transaction may be published a good while after it is decoded, and a
    /// listener that introduced itself may tell of it with its next answer.
    pub fn forget(&mut self, position: u64, age: Duration, now: Moment) {
        self.introductions
            .retain(|_, (_, arrived)| now.saturating_sub(*arrived) <= 2 * age);
        while let Some(&(arrived, end)) = self.arrivals.front() {
            if end > position || now.saturating_sub(arrived) < age {
                break;
            }
            self.arrivals.pop_front();
            while self.base < end {
                let entry = self
                    .entries
                    .pop_front()
                    .expect("the window reaches that far");
                self.base += 1;
                self.positions.remove(&entry.sent.key.transaction);
            }
        }
    }

    pub fn add_session(&mut self, session: WriterSession) {
        let sessions = self.sessions.entry(session.writer).or_default();
        sessions.push((session.first_transaction, session.pid));
    }

    /// The session that ran a transaction of a writer.
    pub fn pid_of(&self, id: TransactionId) -> Option<i32> {
        let sessions = self.sessions.get(&id.writer)?;
        let later = sessions.partition_point(|&(first, _)| first <= id.number);
        Some(sessions[later.checked_sub(1)?].1)
    }

    pub fn add_rowless(&mut self, rowless: Outcome) {
        self.rowless.insert((rowless.finished, rowless.id), rowless);
    }

    /// The transactions without rows that finished after `from`, up to `to`.
    pub fn rowless_finished(&self, from: Moment, to: Moment) -> impl Iterator<Item = &Outcome> {
        self.rowless
            .range(after(from)..after(to))
            .map(|(_, rowless)| rowless)
    }

    /// Forgets transactions without rows that finished up to `until`.
    pub fn forget_rowless(&mut self, until: Moment) {
        self.rowless = self.rowless.split_off(&after(until));
    }
}

/// Greater than everything that finished up to `time`.
fn after(time: Moment) -> (Moment, TransactionId) {
    (
        time,
        TransactionId {
            writer: u32::MAX,
            number: u32::MAX,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::record::{Fate, Sent};
    use crate::workload::identity::Channel;

    fn key(writer: u32, number: u32, index: u32) -> Key {
        Key {
            transaction: TransactionId { writer, number },
            index,
            has_row: true,
        }
    }

    fn append(history: &mut History, keys: &[Key], at: Moment) {
        let entry = |&key| Entry {
            lsn: Lsn(1),
            sent: Sent {
                key,
                channel: Channel(0),
                length: 1,
                pid: 1,
            },
        };
        history.append(Decoded {
            id: keys[0].transaction,
            entries: keys.iter().map(entry).collect(),
            at,
        });
    }

    #[test]
    fn positions_stay_when_the_beginning_is_forgotten() {
        let start = Moment::default();
        let later = start + Duration::from_secs(60);
        let mut history = History::default();
        append(&mut history, &[key(1, 1, 0), key(1, 1, 1)], start);
        append(&mut history, &[key(2, 1, 0)], start);
        let last = key(1, 2, 4);
        append(&mut history, &[last], later);
        assert_eq!(history.position_of(key(1, 1, 1)), Some(1));
        assert_eq!(history.position_of(last), Some(3));

        // Not beyond what is still needed, nor what is young.
        history.forget(2, Duration::from_secs(60), later);
        assert_eq!((history.base(), history.end()), (2, 4));
        history.forget(4, Duration::from_secs(60), later);
        assert_eq!((history.base(), history.end()), (3, 4));

        assert_eq!(history.position_of(last), Some(3));
        assert_eq!(history.get(3).map(|entry| entry.sent.key), Some(last));
        assert_eq!(history.get(2), None);
        assert!(!history.has(key(2, 1, 0).transaction));
    }

    #[test]
    fn a_transaction_belongs_to_the_session_that_had_begun_last() {
        let mut history = History::default();
        for (first_transaction, pid) in [(0, 100), (16, 200)] {
            history.add_session(WriterSession {
                writer: 1,
                first_transaction,
                pid,
            });
        }
        let pid = |writer, number| history.pid_of(TransactionId { writer, number });
        assert_eq!(pid(1, 0), Some(100));
        assert_eq!(pid(1, 15), Some(100));
        assert_eq!(pid(1, 16), Some(200));
        assert_eq!(pid(2, 0), None);
    }

    #[test]
    fn transactions_without_rows_are_found_by_the_time_they_finished() {
        let start = Moment::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut history = History::default();
        for number in 1..=4 {
            history.add_rowless(Outcome {
                id: key(1, number as u32, 0).transaction,
                fate: Fate::Committed,
                has_rows: false,
                started: start,
                finished: at(number),
                notifications: Vec::new(),
                seen: Vec::new(),
            });
        }
        let found = |history: &History, from, to| -> Vec<u32> {
            history
                .rowless_finished(at(from), at(to))
                .map(|rowless| rowless.id.number)
                .collect()
        };
        assert_eq!(found(&history, 1, 3), [2, 3]);
        history.forget_rowless(at(2));
        assert_eq!(found(&history, 0, 9), [3, 4]);
    }
}
