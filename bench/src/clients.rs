//! Clients of the servers: sessions that send and listen, one or many of them, and
//! pgbench.

pub mod cpu;
pub mod crowd;
pub mod latency;
pub mod pgbench;
pub mod reader;
pub mod session;
