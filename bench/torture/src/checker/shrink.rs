//! Checking a recorded run again, and finding the least part of it that still
//! shows the same difference.

use std::collections::BTreeMap;
use std::mem::discriminant;

use crate::checker::Checker;
use crate::checker::difference::{Difference, Mismatch};
use crate::checker::listener_check::Counts;
use crate::checker::record::{Event, Header, PositionEvent, Record};
use crate::workload::identity::TransactionId;

/// Applies all records. What was missing at first and comes later is out of order.
pub fn check(header: &Header, records: &[Record]) -> (Counts, Option<Box<Difference>>) {
    let mut checker = Checker::new(header.workload, header.listeners, header.timeout);
    for (position, record) in records.iter().enumerate() {
        if let Err(mut difference) = checker.apply(record.clone()) {
            let mut later = records[position..].iter();
            if later.any(|record| is_arrival_of_missing(&difference, record)) {
                difference.what = difference.what.clone().after_arrival();
            }
            return (checker.counts(), Some(difference));
        }
    }
    (checker.counts(), None)
}

/// Whether the listener that missed something has got it with this record.
pub fn is_arrival_of_missing(difference: &Difference, record: &Record) -> bool {
    let (Some(missing), Some(witness)) = (difference.what.missing(), &difference.witness) else {
        return false;
    };
    matches!(
        record,
        Record::Event(listener, Event::Received(received))
            if *listener == witness.listener && received.key == missing
    )
}

/// Leaves out records, many at a time and then ever fewer, as long as what is left
/// shows a difference of the same kind at the same listener ("delta debugging").
pub fn shrink(header: &Header, records: Vec<Record>, difference: &Difference) -> Vec<Record> {
    let listener = difference.witness.as_ref().map(|witness| witness.listener);
    let is_same = |records: &[Record]| {
        let (_, found) = check(header, records);
        found.is_some_and(|found| {
            is_same_kind(&found.what, &difference.what)
                && found.witness.map(|witness| witness.listener) == listener
        })
    };
    // Mostly, the events of the others say nothing.
    let is_of_others =
        |record: &Record| matches!(record, Record::Event(other, _) if Some(*other) != listener);
    let mut least = records;
    let alone: Vec<Record> = least.iter().filter(|r| !is_of_others(r)).cloned().collect();
    if is_same(&alone) {
        least = alone;
    }

    // What was committed and not received would be a difference of its own, so all that
    // has to do with a transaction goes together, and then what can go by itself. Less
    // may let more go.
    loop {
        let length = least.len();
        least = leave_out(least, transaction, is_same);
        least = leave_out(least, |_| None, is_same);
        if least.len() == length {
            return least;
        }
    }
}

/// What a position client does not know depends on all that it has read, so there the
/// transaction must be the same one.
fn is_same_kind(found: &Mismatch, difference: &Mismatch) -> bool {
    match found {
        Mismatch::Unreported { .. } | Mismatch::OtherCopy { .. } => found == difference,
        _ => discriminant(found) == discriminant(difference),
    }
}

/// Leaves out what `is_same` can do without, records of one transaction together.
fn leave_out(
    records: Vec<Record>,
    transaction: impl Fn(&Record) -> Option<TransactionId>,
    is_same: impl Fn(&[Record]) -> bool,
) -> Vec<Record> {
    let mut numbers = BTreeMap::new();
    let mut groups = 0;
    let mut least: Vec<(usize, Record)> = Vec::new();
    for record in records {
        let mut next = || {
            groups += 1;
            groups - 1
        };
        let group = match transaction(&record) {
            Some(id) => *numbers.entry(id).or_insert_with(next),
            None => next(),
        };
        least.push((group, record));
    }

    let mut left: Vec<usize> = (0..groups).collect();
    let mut size = groups.div_ceil(2);
    loop {
        let mut start = 0;
        while start < left.len() {
            let end = left.len().min(start + size);
            // The groups are numbered in the order of their first records.
            let without = |group: &usize| left[start..end].binary_search(group).is_err();
            let shorter: Vec<_> = least.iter().filter(|(g, _)| without(g)).cloned().collect();
            let rest: Vec<Record> = shorter.iter().map(|(_, record)| record.clone()).collect();
            if is_same(&rest) {
                least = shorter;
                left.drain(start..end);
            } else {
                start = end;
            }
        }
        if size <= 1 {
            return least.into_iter().map(|(_, record)| record).collect();
        }
        size /= 2;
    }
}

/// The transaction that a record has to do with, if it is one.
fn transaction(record: &Record) -> Option<TransactionId> {
    match record {
        Record::Event(_, Event::Received(received)) => Some(received.key.transaction),
        Record::Position(_, PositionEvent::Received { key, .. }) => Some(key.transaction),
        Record::Event(_, Event::FenceSent { key, .. }) => Some(key.transaction),
        Record::Outcome(outcome) => Some(outcome.id),
        Record::Decoded(decoded) => Some(decoded.id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checker::difference::Mismatch;
    use crate::checker::record::{Decoded, Entry, Moment, Received, Returned};
    use crate::workload::Workload;
    use crate::workload::identity::{Channel, Key, Lsn, TransactionId};

    /// What no plan is made for: a notification that a listener sends by itself.
    fn key(number: u32) -> Key {
        Key {
            transaction: TransactionId {
                writer: crate::workload::identity::FENCE_BASE,
                number,
            },
            index: 0,
            has_row: true,
        }
    }

    /// A listener that gets these of a hundred transactions, among others that
    /// get all.
    fn records(arrivals: &[u32]) -> Vec<Record> {
        let at = Moment::default();
        let mut records = Vec::new();
        for listener in 0..3 {
            let returned = Some(Returned { lsn: Lsn(0), at });
            for event in [
                Event::Connected { pid: 7, at },
                Event::Listen {
                    channels: vec![Channel(1)],
                    returned,
                    introduction: None,
                },
            ] {
                records.push(Record::Event(listener, event));
            }
        }
        let (length, pid, channel) = (20, 1, Channel(1));
        for number in 0..100 {
            let key = key(number);
            let lsn = Lsn(10 + u64::from(number));
            let entry = Entry {
                lsn,
                key,
                channel,
                length,
                pid,
            };
            records.push(Record::Decoded(Decoded {
                id: key.transaction,
                entries: vec![entry],
                at,
            }));
        }
        for listener in 0..3 {
            let all: Vec<u32> = (0..100).collect();
            let numbers = if listener == 1 { arrivals } else { &all };
            records.extend(numbers.iter().map(|&number| {
                let key = key(number);
                let received = Received {
                    key,
                    channel,
                    length,
                    pid,
                };
                Record::Event(listener, Event::Received(received))
            }));
        }
        records.push(Record::Round(at));
        records
    }

    fn header() -> Header {
        Header {
            format: crate::checker::record_file::FORMAT,
            workload: Workload {
                seed: 1,
                channels: 8,
            },
            listeners: 3,
            timeout: Duration::from_secs(60),
            server: String::new(),
        }
    }

    #[test]
    fn a_failure_is_found_again_and_shrunk_to_what_shows_it() {
        let mut arrivals: Vec<u32> = (0..100).collect();
        arrivals.remove(50);
        let records = records(&arrivals);
        let (_, difference) = check(&header(), &records);
        let difference = difference.unwrap();
        let lost = Mismatch::Missing {
            key: key(50),
            received: key(51),
        };
        assert_eq!(difference.what, lost);

        let least = shrink(&header(), records, &difference);
        // It connects, listens, one is committed and another one received, which
        // was committed, too; and the round that compares.
        assert_eq!(least.len(), 6, "{least:#?}");
        let (_, again) = check(&header(), &least);
        assert!(matches!(again.unwrap().what, Mismatch::Missing { .. }));
    }

    /// Between two that are swapped are many that can only go with their commits.
    #[test]
    fn what_belongs_together_is_left_out_together() {
        let mut arrivals: Vec<u32> = (0..100).collect();
        arrivals.remove(20);
        arrivals.insert(80, 20);
        let records = records(&arrivals);
        let (_, difference) = check(&header(), &records);
        let difference = difference.unwrap();
        assert!(matches!(difference.what, Mismatch::Swapped { .. }));
        let least = shrink(&header(), records, &difference);
        // Two are committed and received.
        assert_eq!(least.len(), 7, "{least:#?}");
    }

    #[test]
    fn what_comes_in_a_later_round_is_out_of_order() {
        let mut arrivals: Vec<u32> = (0..100).collect();
        arrivals.remove(50);
        let mut records = records(&arrivals);
        let late = Received {
            key: key(50),
            channel: Channel(1),
            length: 20,
            pid: 1,
        };
        records.push(Record::Event(0, Event::Received(late)));
        let (_, difference) = check(&header(), &records);
        assert!(matches!(difference.unwrap().what, Mismatch::Missing { .. }));
        // The same at the listener that has missed it.
        records.push(Record::Event(1, Event::Received(late)));
        let (_, difference) = check(&header(), &records);
        assert!(matches!(difference.unwrap().what, Mismatch::Swapped { .. }));
    }
}
