//! The sessions of a run: those that write, those that listen, the one that receives
//! the decoded stream, and those that disturb the others.

pub mod connection;
pub mod decoded_commits;
pub mod disturbance;
pub mod listener;
pub mod listener_session;
pub mod position_client;
pub mod read_to_end;
pub mod replication;
pub mod run_state;
pub mod schema;
pub mod standby;
pub mod standby_state;
pub mod switching;
pub mod tally;
pub mod waker;
pub mod watched;
pub mod writer;
pub mod writer_sql;
