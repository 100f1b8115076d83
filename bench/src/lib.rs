//! Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.
//!
//! ```text
//! cli ──► benchmarks ──► clients ──┐
//!  │           └───────► runner ───┼──► pinpoint_servers
//!  │                       └─► report
//!  └──► pinpoint_torture ──────────┘
//! ```

mod benchmarks;
pub mod cli;
mod clients;
mod report;
mod runner;
mod workload;
