//! What the sessions count.

use std::collections::BTreeMap;

use serde::Serialize;

/// What was done to the sessions, and how they failed.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Tally {
    /// Sessions that were cancelled while they committed.
    pub cancelled: u64,
    /// Sessions that were terminated while they committed.
    pub terminated: u64,
    /// Writers whose connection was closed by their client.
    pub abandoned: u64,
    /// Listeners that were terminated.
    pub terminated_listeners: u64,
    /// Commits that were cancelled or terminated behind their commit record.
    pub interrupted_in_commit: u64,
    /// Errors that were not planned, by SQLSTATE.
    pub errors: BTreeMap<String, u64>,
    /// How often the replay of the standby was paused.
    pub pauses: u64,
    /// How often the standby was shut down and started again.
    pub restarts: u64,
    /// Listeners that were connected to the standby before and after its promotion.
    pub promoted_listeners: u64,
    /// Rows that listeners looked for when they were told of them.
    pub rows_seen: u64,
    /// Transactions that changed a watched table.
    pub watched_changes: u64,
    /// How often the waker was stopped.
    pub stopped_waker: u64,
    /// How often a commit took so long, while the waker was stopped, that the waker may have had
    /// a lock.
    pub stopped_with_lock: u64,
    /// How often replication was switched off and on.
    pub switches: u64,
    /// Units of work of writers that were not replicated.
    pub unreplicated: u64,
    /// Heartbeats that were forged.
    pub forged: u64,
    /// Heartbeats that position clients received.
    pub heartbeats: u64,
    /// Connections of position clients that were cut.
    pub cut_clients: u64,
}
