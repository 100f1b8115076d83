//! A difference between what was to happen and what did, as it is shown.

use std::fmt;

use thiserror::Error;

use crate::checker::record::{Event, Record, Sent};
use crate::workload::Plans;
use crate::workload::identity::{Channel, Key, Lsn, TransactionId};

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Mismatch {
    #[error("{received} arrived, but not {key} before it, which committed earlier")]
    Missing { key: Key, received: Key },
    #[error("{0} did not arrive before the fence, though it was complete before that was sent")]
    MissingBeforeFence(Key),
    #[error("{0} arrived after something that committed later")]
    Late(Key),
    #[error("{0} arrived after something that its session sent later")]
    LateInSession(Key),
    #[error("{0} arrived twice")]
    Repeated(Key),
    #[error("{0} arrived, but was not committed")]
    NotCommitted(Key),
    #[error("{0} arrived, but nobody sends such a notification")]
    NotSent(Key),
    #[error("{} arrived {}, but was sent {}", sent.key, way(received), way(sent))]
    Altered { sent: Sent, received: Sent },
    #[error("{key} arrived on channel {channel}, on which this session does not listen")]
    NotListening { key: Key, channel: Channel },
    #[error("something arrived on channel {channel:?} that was never sent: {payload:?}")]
    Garbled { channel: String, payload: String },
    #[error("{0} arrived, but the row that it tells of cannot be seen yet")]
    Early(Key),
    #[error("{0} arrived while the listener was in a transaction")]
    InTransaction(Key),
    #[error(
        "no session received {0}, although a session that shares its channel listened all the time"
    )]
    GivenToNobody(Key),
    #[error(
        "position client {client} was told that {channel} has not changed, but {transaction} was \
         {} before it asked, and is not in its copy",
        if *is_replayed { "replayed" } else { "acknowledged" }
    )]
    Unreported {
        client: u32,
        transaction: TransactionId,
        channel: Channel,
        /// On a standby, before the question was asked there.
        is_replayed: bool,
    },
    #[error(
        "position client {client} has asked for the last time, and its copy of {channel} is not \
         what is in the table: a writer's last transaction is {} in the copy, and {} in the table",
        or_none(*in_copy),
        or_none(*in_table)
    )]
    OtherCopy {
        client: u32,
        channel: Channel,
        in_copy: Option<TransactionId>,
        in_table: Option<TransactionId>,
    },
    #[error("{0} was acknowledged, but is missing in the decoded stream")]
    NotDecoded(TransactionId),
    #[error("{0} is in the decoded stream with other rows than it was to insert")]
    OtherRows(TransactionId),
}

fn way(sent: &Sent) -> String {
    let Sent {
        channel,
        length,
        pid,
        ..
    } = sent;
    format!("on {channel} with {length} bytes of payload by PID {pid}")
}

fn or_none(id: Option<TransactionId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

impl Mismatch {
    /// What is not there, as far as is known.
    pub fn missing(&self) -> Option<Key> {
        match self {
            Self::Missing { key, .. } | Self::MissingBeforeFence(key) => Some(*key),
            _ => None,
        }
    }

    /// The transactions that this is about.
    pub fn transactions(&self) -> Vec<TransactionId> {
        match self {
            Self::MissingBeforeFence(key)
            | Self::Late(key)
            | Self::LateInSession(key)
            | Self::Repeated(key)
            | Self::NotCommitted(key)
            | Self::NotSent(key)
            | Self::NotListening { key, .. }
            | Self::Early(key)
            | Self::GivenToNobody(key)
            | Self::InTransaction(key) => vec![key.transaction],
            Self::Altered { sent, .. } => vec![sent.key.transaction],
            Self::Missing { received, key } => vec![received.transaction, key.transaction],
            Self::NotDecoded(id) | Self::OtherRows(id) => vec![*id],
            Self::Unreported { transaction, .. } => vec![*transaction],
            Self::OtherCopy {
                in_copy, in_table, ..
            } => in_copy.iter().chain(in_table).copied().collect(),
            Self::Garbled { .. } => Vec::new(),
        }
    }
}

/// One line of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `None` if it is not in the decoded stream.
    pub lsn: Option<Lsn>,
    pub sent: Sent,
    /// Whether this is where the sequences part.
    pub is_marked: bool,
}

/// The listener that saw a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witness {
    pub listener: u32,
    pub pid: i32,
    pub channels: Vec<Channel>,
    /// What it was to receive, in commit order, around the difference.
    pub expected: Vec<Line>,
    /// What it received.
    pub received: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub what: Mismatch,
    pub witness: Option<Witness>,
    /// What was missing has arrived later: it is out of order, and not lost.
    pub is_late: bool,
    /// What the transactions in question were to do.
    pub plans: Vec<(TransactionId, String)>,
}

impl Difference {
    pub fn new(what: Mismatch, plans: &impl Plans) -> Box<Self> {
        let transactions = what.transactions().into_iter();
        Box::new(Self {
            witness: None,
            is_late: false,
            plans: transactions.map(|id| (id, plans.describe(id))).collect(),
            what,
        })
    }

    /// Whether the listener that missed something has got it with this record.
    pub fn is_arrival_of_missing(&self, record: &Record) -> bool {
        let (Some(missing), Some(witness)) = (self.what.missing(), &self.witness) else {
            return false;
        };
        matches!(
            record,
            Record::Event(listener, Event::Received(received))
                if *listener == witness.listener && received.key == missing
        )
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_marked { '>' } else { ' ' };
        let lsn = match self.lsn {
            Some(lsn) => lsn.to_string(),
            None => "-".to_owned(),
        };
        write!(
            f,
            "{mark} {lsn:<12} {:<8} PID {:<8} {}",
            self.sent.channel.to_string(),
            self.sent.pid,
            self.sent.key
        )
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            witness,
            is_late,
            plans,
        } = self;
        match witness {
            Some(Witness { listener, pid, .. }) => {
                writeln!(f, "Difference at listener {listener} (PID {pid}): {what}.")?;
            }
            None => writeln!(f, "Difference: {what}.")?,
        }
        if *is_late {
            writeln!(f, "It arrived later.")?;
        }
        if let Some(witness) = witness {
            let channels: Vec<String> = witness.channels.iter().map(Channel::to_string).collect();
            writeln!(f, "It listens on {}.", channels.join(", "))?;
            for (title, lines) in [
                ("Expected, in commit order:", &witness.expected),
                ("Received:", &witness.received),
            ] {
                writeln!(f, "\n{title}")?;
                if lines.is_empty() {
                    writeln!(f, "  (nothing)")?;
                }
                for line in lines {
                    writeln!(f, "{line}")?;
                }
            }
        }
        for (number, (id, plan)) in plans.iter().enumerate() {
            if number == 0 {
                writeln!(f)?;
            }
            writeln!(f, "{id}: {plan}.")?;
        }
        Ok(())
    }
}
