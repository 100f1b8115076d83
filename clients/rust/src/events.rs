//! What subscriptions and live queries give.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use crate::{Error, Mode};

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The connection works, and listens on all channels. server_version: for instance 150018.
    #[non_exhaustive]
    Connected { server_version: i32, standby: bool, mode: Mode },
    /// These channels may have been notified while the client did not listen: read your tables.
    Changed(HashSet<String>),
    /// A notification. pid: the process ID of the session that sent it.
    #[non_exhaustive]
    Notification { channel: String, payload: String, pid: i32 },
    /// The connection was lost, or could not be made.
    #[non_exhaustive]
    Disconnected { reason: String, retry_in: Duration },
}

/// An event of a live query.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Update {
    /// The result.
    Rows(Arc<Vec<Row>>),
    /// The query, or the connection for it, has failed. It is tried again. The same error is told once.
    Error(Arc<Error>),
    /// The connection was lost, or an attempt to connect has failed. The rows may be old.
    #[non_exhaustive]
    Disconnected { reason: String, retry_in: Duration },
}
