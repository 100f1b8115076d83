//! What a notification carries, so that whoever receives it knows which one it is.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tokio_postgres::types::PgLsn;

/// The longest payload that PostgreSQL accepts, in bytes.
pub const MAX_PAYLOAD: u32 = 7999;

/// What payloads are filled up with, over and over.
pub const FILLER: &str = "0123456789abcdef";

/// Writers and channels from this number on belong to the listeners: each has
/// one of both, for its fences.
pub const FENCE_BASE: u32 = 1000;

/// Writers and channels from this number on belong to the watched tables: each has one of
/// both.
pub const WATCHED_BASE: u32 = 2000;

/// So many tables are watched.
pub const WATCHED_TABLES: u32 = 3;

/// Sessions that listen while the waker is stopped. For so many, senders leave the signals
/// to the waker.
pub const WAKER_LISTENERS: u32 = 12;

/// A position in the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PgLsn::from(self.0).fmt(f)
    }
}

impl FromStr for Lsn {
    type Err = <PgLsn as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse::<PgLsn>()?.into()))
    }
}

/// A transaction: which writer's, and which of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId {
    pub writer: u32,
    pub number: u32,
}

impl TransactionId {
    /// Whether it is a fence, or something else that belongs to a listener, or changes a
    /// watched table.
    pub fn is_of_listener(self) -> bool {
        self.writer >= FENCE_BASE
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(table) = self.writer.checked_sub(WATCHED_BASE) {
            return write!(f, "change {} of watched table {table}", self.number);
        }
        match self.writer.checked_sub(FENCE_BASE) {
            Some(listener) => write!(f, "fence {} of listener {listener}", self.number),
            None => write!(f, "writer {} transaction {}", self.writer, self.number),
        }
    }
}

/// A notification: the how-manieth of its transaction, in the order of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub transaction: TransactionId,
    pub index: u32,
    /// Whether a row was inserted with it, so that the decoded stream has it.
    pub has_row: bool,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.transaction, self.index)
    }
}

/// A LISTEN with which a listener showed itself to the writers: which listener's,
/// and which of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Introduction {
    pub listener: u32,
    pub number: u32,
}

impl Introduction {
    /// Whether whoever has seen this one comes after the other.
    pub fn implies(self, other: Self) -> bool {
        self.listener == other.listener && self.number >= other.number
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Channel(pub u32);

impl Channel {
    pub fn of_fence(listener: u32) -> Self {
        Self(FENCE_BASE + listener)
    }

    pub fn of_watched(table: u32) -> Self {
        Self(WATCHED_BASE + table)
    }

    /// Its notifications are without payload.
    pub fn is_of_watched(self) -> bool {
        self.0 >= WATCHED_BASE
    }

    pub fn parse(name: &str) -> Option<Self> {
        let based = |base: u32, number: &str| base.checked_add(number.parse().ok()?);
        let number = if let Some(table) = name.strip_prefix("watched_") {
            based(WATCHED_BASE, table)?
        } else if let Some(listener) = name.strip_prefix("fence_") {
            based(FENCE_BASE, listener)?
        } else {
            name.strip_prefix('c')?.parse().ok()?
        };
        let channel = Self(number);
        (channel.to_string() == name).then_some(channel)
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(table) = self.0.checked_sub(WATCHED_BASE) {
            return write!(f, "watched_{table}");
        }
        match self.0.checked_sub(FENCE_BASE) {
            Some(listener) => write!(f, "fence_{listener}"),
            None => write!(f, "c{}", self.0),
        }
    }
}

/// The beginning of the payload of a notification.
fn prefix(key: Key) -> String {
    let mark = if key.has_row { "" } else { "-" };
    let TransactionId { writer, number } = key.transaction;
    format!("{mark}{writer}.{number}.{}:", key.index)
}

/// The shortest payload, in bytes, that tells which notification it is.
pub fn min_length(key: Key) -> u32 {
    prefix(key).len() as u32
}

/// The payload of a notification, `length` bytes long.
pub fn payload(key: Key, length: u32) -> String {
    let mut payload = prefix(key);
    let length = length as usize;
    payload.reserve(length.saturating_sub(payload.len()));
    payload.extend(
        FILLER
            .chars()
            .cycle()
            .take(length.saturating_sub(payload.len())),
    );
    payload
}

/// Which notification has this payload; `None` if it is not one of ours, from
/// the first to the last byte.
pub fn parse_payload(text: &str) -> Option<Key> {
    let (prefix, filler) = text.split_once(':')?;
    let (numbers, has_row) = match prefix.strip_prefix('-') {
        Some(numbers) => (numbers, false),
        None => (prefix, true),
    };
    let mut numbers = numbers.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    let key = Key {
        transaction: TransactionId {
            writer: next()?,
            number: next()?,
        },
        index: next()?,
        has_row,
    };
    let is_filler = filler
        .bytes()
        .zip(FILLER.bytes().cycle())
        .all(|(byte, expected)| byte == expected);
    (next().is_none() && is_filler).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(has_row: bool) -> Key {
        Key {
            transaction: TransactionId {
                writer: 3,
                number: 17,
            },
            index: 5,
            has_row,
        }
    }

    #[test]
    fn payloads_tell_which_notification_they_are_of() {
        for has_row in [true, false] {
            let key = key(has_row);
            for length in [min_length(key), 100, MAX_PAYLOAD] {
                let payload = payload(key, length);
                assert_eq!(payload.len(), length as usize);
                assert_eq!(parse_payload(&payload), Some(key));
            }
        }
        assert_eq!(payload(key(true), 30), "3.17.5:0123456789abcdef0123456");
    }

    #[test]
    fn every_byte_of_a_payload_counts() {
        let payload = payload(key(true), 40);
        for damaged in [
            payload.replacen("ab", "aX", 1),
            payload.replacen("01", "1", 1),
            payload.replacen('.', "..", 1),
            payload.replacen(':', ".1:", 1),
            String::new(),
        ] {
            assert_eq!(parse_payload(&damaged), None, "{damaged}");
        }
    }

    #[test]
    fn channels_have_names() {
        for channel in [
            Channel(0),
            Channel(12),
            Channel::of_fence(3),
            Channel::of_watched(1),
        ] {
            assert_eq!(Channel::parse(&channel.to_string()), Some(channel));
        }
        assert_eq!(Channel::of_fence(3).to_string(), "fence_3");
        assert_eq!(Channel::of_watched(1).to_string(), "watched_1");
        for name in ["", "c", "c01", "d1", "fence_", "fence_-1", "c1000"] {
            assert_eq!(Channel::parse(name), None, "{name}");
        }
    }
}
