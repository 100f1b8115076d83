//! Sessions and programs that work on a server.

pub mod commit_listeners;
pub mod latency;
pub mod load_listeners;
pub mod pgbench;
pub mod processor_time;
pub mod reader;
pub mod session;
