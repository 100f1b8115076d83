//! The true order of commits: what PostgreSQL's own plugin `test_decoding`
//! makes of the WAL.

use std::collections::HashMap;

use anyhow::anyhow;

use crate::checker::record::{Entry, Sent};
use crate::sessions::schema::MARKER;
use crate::workload::identity::{Channel, Introduction, Key, Lsn, TransactionId};

/// What came out of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoding {
    /// With its rows, in the order of insertion.
    Transaction(TransactionId, Vec<Entry>),
    /// A listener introduced itself, in a transaction whose commit record ends there.
    Introduction(Introduction, Lsn),
    /// All that committed before this marker has come out before.
    Marker(u64),
}

/// Puts transactions together from the lines of test_decoding.
#[derive(Debug, Default)]
pub struct Decoder {
    rows: Vec<Sent>,
    introduction: Option<Introduction>,
}

impl Decoder {
    /// Takes the next line, and where it is in the WAL: for a COMMIT the end of
    /// the commit record.
    pub fn decode(&mut self, lsn: Lsn, line: &str) -> anyhow::Result<Option<Decoding>> {
        let error = || anyhow!("cannot make sense of a line of the decoded stream: {line}");
        if line == "BEGIN" {
            Ok(None)
        } else if line == "COMMIT" {
            let rows = std::mem::take(&mut self.rows);
            if let Some(introduction) = self.introduction.take() {
                return match rows[..] {
                    [] => Ok(Some(Decoding::Introduction(introduction, lsn))),
                    _ => Err(error()),
                };
            }
            let Some(first) = rows.first() else {
                return Ok(None);
            };
            let id = first.key.transaction;
            if rows.iter().any(|row| row.key.transaction != id) {
                return Err(error());
            }
            let entries = rows.into_iter().map(|sent| Entry { lsn, sent }).collect();
            Ok(Some(Decoding::Transaction(id, entries)))
        } else if let Some(row) = line.strip_prefix("table public.event: INSERT: ") {
            self.rows.push(parse_row(row).ok_or_else(error)?);
            Ok(None)
        } else if let Some(row) = line.strip_prefix("table public.newcomer: UPDATE: ") {
            self.introduction = Some(parse_introduction(row).ok_or_else(error)?);
            Ok(None)
        } else if let Some(number) = parse_marker(line) {
            Ok(Some(Decoding::Marker(number)))
        } else if line.starts_with("message: transactional: 1 prefix: pg_pinpoint, ") {
            // Notifications on their way to a standby: what is compared are the rows.
            Ok(None)
        } else {
            Err(error())
        }
    }
}

/// `writer[integer]:3 transaction[integer]:17 ...`
fn parse_row(text: &str) -> Option<Sent> {
    let columns = columns(text);
    let number = |name| columns.get(name)?.parse::<u32>().ok();
    let transaction = TransactionId {
        writer: number("writer")?,
        number: number("transaction")?,
    };
    Some(Sent {
        key: Key {
            transaction,
            index: number("index")?,
            has_row: true,
        },
        channel: Channel(number("channel")?),
        length: number("length")?,
        pid: columns.get("pid")?.parse().ok()?,
    })
}

fn parse_introduction(text: &str) -> Option<Introduction> {
    let columns = columns(text);
    let number = |name| columns.get(name)?.parse().ok();
    Some(Introduction {
        listener: number("listener")?,
        number: number("number")?,
    })
}

/// The columns of a row, by their names.
fn columns(text: &str) -> HashMap<&str, &str> {
    text.split(' ')
        .filter_map(|column| {
            let (name, value) = column.split_once(':')?;
            Some((name.split('[').next()?, value))
        })
        .collect()
}

/// The SQL that writes a marker to the WAL, in a transaction.
pub fn write_marker(number: u64) -> String {
    format!("SELECT pg_logical_emit_message(true, '{MARKER}', '{number}')")
}

fn parse_marker(line: &str) -> Option<u64> {
    let (head, number) = line.split_once(" content:")?;
    head.starts_with(&format!("message: transactional: 1 prefix: {MARKER}, "))
        .then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "table public.event: INSERT: writer[integer]:3 transaction[integer]:17 \
                       index[integer]:2 channel[integer]:5 length[integer]:40 via[\"char\"]:'c' \
                       pid[integer]:4711";

    fn decode_all(lines: &[(u64, &str)]) -> anyhow::Result<Vec<Decoding>> {
        let mut decoder = Decoder::default();
        lines
            .iter()
            .filter_map(|&(lsn, line)| decoder.decode(Lsn(lsn), line).transpose())
            .collect()
    }

    fn transaction(lsn: u64) -> Decoding {
        let id = TransactionId {
            writer: 3,
            number: 17,
        };
        let sent = Sent {
            key: Key {
                transaction: id,
                index: 2,
                has_row: true,
            },
            channel: Channel(5),
            length: 40,
            pid: 4711,
        };
        let lsn = Lsn(lsn);
        Decoding::Transaction(id, vec![Entry { lsn, sent }])
    }

    #[test]
    fn a_transaction_has_the_position_of_its_commit() {
        let decoded = decode_all(&[(10, "BEGIN"), (12, ROW), (20, "COMMIT")]);
        assert_eq!(decoded.unwrap(), [transaction(20)]);
    }

    #[test]
    fn markers_and_transactions_without_rows() {
        let marker = "message: transactional: 1 prefix: pinpoint_torture, sz: 2 content:42";
        let decoded = decode_all(&[(1, "BEGIN"), (2, marker), (3, "BEGIN"), (4, "COMMIT")]);
        assert_eq!(decoded.unwrap(), [Decoding::Marker(42)]);
        let notification = "message: transactional: 1 prefix: pg_pinpoint, sz: 29 content:1 7 1 1 24 0\nc3\n0\t2.0.0:\n";
        let decoded = decode_all(&[(1, "BEGIN"), (2, notification), (4, "COMMIT")]);
        assert_eq!(decoded.unwrap(), []);
        assert_eq!(
            write_marker(42),
            "SELECT pg_logical_emit_message(true, 'pinpoint_torture', '42')"
        );
    }

    #[test]
    fn an_introduction_has_the_position_of_its_commit() {
        let update = "table public.newcomer: UPDATE: listener[integer]:3 number[integer]:17";
        let introduction = Introduction {
            listener: 3,
            number: 17,
        };
        let decoded = decode_all(&[(10, "BEGIN"), (12, update), (20, "COMMIT")]);
        let introduced = Decoding::Introduction(introduction, Lsn(20));
        assert_eq!(decoded.unwrap(), [introduced]);
        // A listener sends nothing in the same transaction.
        assert!(decode_all(&[(10, "BEGIN"), (12, update), (14, ROW), (20, "COMMIT")]).is_err());
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let other = ROW.replace("event", "other");
        let cut = ROW.replace(" pid", " xid");
        let mixed = ROW.replace("transaction[integer]:17", "transaction[integer]:18");
        for lines in [
            &[(1, other.as_str())][..],
            &[(1, cut.as_str())],
            &[(1, "BEGIN"), (2, ROW), (3, &mixed), (4, "COMMIT")],
        ] {
            assert!(decode_all(lines).is_err(), "{lines:?}");
        }
    }
}
