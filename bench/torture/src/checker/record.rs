//! What is observed of a run. The checker sees nothing else, so that a recorded
//! run can be checked again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::Workload;
use crate::workload::identity::{Channel, Introduction, Key, Lsn, TransactionId};
use crate::workload::unit_of_work::Notification;

/// A time since the beginning of the run.
pub type Moment = Duration;

/// With what a recorded run was made: the first line of its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Goes up when records change their meaning.
    pub format: u32,
    pub workload: Workload,
    pub listeners: u32,
    pub timeout: Duration,
}

/// Each of the other lines, in the order in which the checker takes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// What happened to a listener.
    Event(u32, Event),
    /// What happened to a position client.
    Position(u32, PositionEvent),
    Session(WriterSession),
    Outcome(Outcome),
    Decoded(Decoded),
    /// A listener introduced itself, in a transaction of the decoded stream.
    Introduced {
        introduction: Introduction,
        /// End of its commit record.
        lsn: Lsn,
        at: Moment,
    },
    /// Everything that committed before the records so far is among them: they can
    /// be compared.
    Round(Moment),
}

/// A notification, as a listener received it, or as a row tells that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub key: Key,
    pub channel: Channel,
    /// Bytes of its payload.
    pub length: u32,
    /// The session that sent it.
    pub pid: i32,
}

/// What happens to a listener, in the order in which it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Connected {
        pid: i32,
        at: Moment,
    },
    /// A LISTEN is sent, on channels on which it does not listen yet. `returned`
    /// is `None` if the connection was lost before the answer came.
    Listen {
        channels: Vec<Channel>,
        returned: Option<Returned>,
        /// What else was done in its transaction.
        introduction: Option<Introduction>,
    },
    /// It shares these channels from its next LISTEN on them.
    Shares {
        channels: Vec<Channel>,
        /// It neither stops to listen nor leaves before all others have.
        stays: bool,
        /// It is on the standby, and shares with those who are there.
        on_standby: bool,
    },
    /// An UNLISTEN is sent.
    Unlistening(Vec<Channel>),
    /// Its answer has arrived.
    Unlistened(Vec<Channel>),
    /// Another session is about to send this notification.
    FenceSent {
        key: Key,
        at: Moment,
    },
    Received(Sent),
    Garbled {
        channel: String,
        payload: String,
    },
    /// The row of what was just received cannot be seen.
    Early(Key),
    /// What was just received came in the middle of a transaction.
    InTransaction(Key),
    Closed {
        /// Right after a fence, rather than by force.
        is_complete: bool,
    },
}

/// What happens to a position client, in the order in which it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionEvent {
    /// It was told which of its channels have changed.
    Asked {
        /// Before the question was sent.
        at: Moment,
        /// On a standby: up to where it had replayed before.
        replayed: Option<Lsn>,
        changed: Vec<Channel>,
        unchanged: Vec<Channel>,
    },
    /// After that it read these channels.
    Read {
        channels: Vec<Channel>,
        last: Vec<Last>,
    },
    /// A notification that has a row.
    Received { channel: Channel, key: Key },
    /// What is in the table after its last question, on all its channels.
    Table(Vec<Last>),
}

/// The number of the last transaction of a writer that has a row on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last(pub Channel, pub u32, pub u32);

/// The moment at which a LISTEN had certainly taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    pub lsn: Lsn,
    pub at: Moment,
}

/// A transaction of the decoded stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoded {
    pub id: TransactionId,
    /// In the order of insertion. There is at least one.
    pub entries: Vec<Entry>,
    /// When it arrived.
    pub at: Moment,
}

/// How a transaction ended, as its writer was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub id: TransactionId,
    pub fate: Fate,
    pub has_rows: bool,
    /// Before its first statement was sent.
    pub started: Moment,
    /// After the answer to its last statement.
    pub finished: Moment,
    pub notifications: Vec<Notification>,
    /// The listeners that it had seen before it sent them.
    pub seen: Vec<Introduction>,
}

/// A connection of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterSession {
    pub writer: u32,
    pub first_transaction: u32,
    pub pid: i32,
}

/// A row of the decoded stream, and so a notification that must be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// End of the commit record of its transaction.
    pub lsn: Lsn,
    pub sent: Sent,
}

/// How a transaction ended for the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    Committed,
    RolledBack,
    /// The answer to COMMIT did not come.
    Unknown,
}
