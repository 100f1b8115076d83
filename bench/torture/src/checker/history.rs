//! What is known to have happened: the transactions in commit order, as the
//! server decodes them from its WAL, and what the writers know of their own.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::checker::record::{Entry, Fate, Moment};
use crate::workload::identity::{Introduction, Key, Lsn, TransactionId};
use crate::workload::unit_of_work::Notification;

/// A transaction without rows, which the decoded stream does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rowless {
    pub id: TransactionId,
    pub fate: Fate,
    /// Before its first statement was sent.
    pub started: Moment,
    /// After the answer to its last statement.
    pub finished: Moment,
    pub notifications: Vec<Notification>,
    /// Those that it had seen before it sent them.
    pub seen: Vec<Introduction>,
}

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
    rowless: BTreeMap<(Moment, TransactionId), Rowless>,
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
    pub fn append(&mut self, id: TransactionId, entries: Vec<Entry>, now: Moment) {
        self.positions.insert(id, self.end());
        self.entries.extend(entries);
        self.arrivals.push_back((now, self.end()));
    }

    pub fn has(&self, id: TransactionId) -> bool {
        self.positions.contains_key(&id)
    }

    pub fn position_of(&self, key: Key) -> Option<u64> {
        let first = *self.positions.get(&key.transaction)?;
        (first..)
            .map_while(|position| Some((position, self.get(position)?)))
            .take_while(|(_, entry)| entry.key.transaction == key.transaction)
            .find(|(_, entry)| entry.key == key)
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
            .retain(|_, (_, arrived)| now.since(*arrived) <= 2 * age);
        while let Some(&(arrived, end)) = self.arrivals.front() {
            if end > position || now.since(arrived) < age {
                break;
            }
            self.arrivals.pop_front();
            while self.base < end {
                let entry = self
                    .entries
                    .pop_front()
                    .expect("the window reaches that far");
                self.base += 1;
                self.positions.remove(&entry.key.transaction);
            }
        }
    }

    pub fn add_session(&mut self, writer: u32, first_transaction: u32, pid: i32) {
        let sessions = self.sessions.entry(writer).or_default();
        sessions.push((first_transaction, pid));
    }

    /// The session that ran a transaction of a writer.
    pub fn pid_of(&self, id: TransactionId) -> Option<i32> {
        let sessions = self.sessions.get(&id.writer)?;
        let later = sessions.partition_point(|&(first, _)| first <= id.number);
        Some(sessions[later.checked_sub(1)?].1)
    }

    pub fn add_rowless(&mut self, rowless: Rowless) {
        self.rowless.insert((rowless.finished, rowless.id), rowless);
    }

    /// The transactions without rows that finished after `from`, up to `to`.
    pub fn rowless_finished(&self, from: Moment, to: Moment) -> impl Iterator<Item = &Rowless> {
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
    use crate::workload::identity::Channel;

    fn entry(writer: u32, number: u32, index: u32) -> Entry {
        Entry {
            lsn: Lsn(u64::from(number)),
            key: Key {
                transaction: TransactionId { writer, number },
                index,
                has_row: true,
            },
            channel: Channel(0),
            length: 1,
            pid: 1,
        }
    }

    fn append(history: &mut History, entries: &[Entry], now: Moment) {
        history.append(entries[0].key.transaction, entries.to_vec(), now);
    }

    #[test]
    fn positions_stay_when_the_beginning_is_forgotten() {
        let start = Moment::default();
        let later = start + Duration::from_secs(60);
        let mut history = History::default();
        append(&mut history, &[entry(1, 1, 0), entry(1, 1, 1)], start);
        append(&mut history, &[entry(2, 1, 0)], start);
        append(&mut history, &[entry(1, 2, 4)], later);
        let last = entry(1, 2, 4).key;
        assert_eq!(history.position_of(entry(1, 1, 1).key), Some(1));
        assert_eq!(history.position_of(last), Some(3));

        // Not beyond what is still needed, nor what is young.
        history.forget(2, Duration::from_secs(60), later);
        assert_eq!((history.base(), history.end()), (2, 4));
        history.forget(4, Duration::from_secs(60), later);
        assert_eq!((history.base(), history.end()), (3, 4));

        assert_eq!(history.position_of(last), Some(3));
        assert_eq!(history.get(3), Some(&entry(1, 2, 4)));
        assert_eq!(history.get(2), None);
        assert!(!history.has(entry(2, 1, 0).key.transaction));
    }

    #[test]
    fn a_transaction_belongs_to_the_session_that_had_begun_last() {
        let mut history = History::default();
        history.add_session(1, 0, 100);
        history.add_session(1, 16, 200);
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
            history.add_rowless(Rowless {
                id: TransactionId {
                    writer: 1,
                    number: number as u32,
                },
                fate: Fate::Committed,
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
