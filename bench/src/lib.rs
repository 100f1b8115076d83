//! Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.
//!
//! ```text
//! cli ──► benchmarks ──► runner ──► workload ──► clients ──► report
//!  │                                    └───────────┴──────► pinpoint_servers
//!  └────► pinpoint_torture ──────────────────────────────────────┘
//! ```
//!
//! - `benchmarks`: the options of each subcommand, and the description that they make.
//! - `runner`: makes the runs of a benchmark on all servers, in turn.
//! - `workload`: what is done on a server: the description, and its execution.
//! - `clients`: sessions, listeners and pgbench.
//! - `report`: what was measured, and everything that shows it.

mod benchmarks;
pub mod cli;
mod clients;
mod report;
mod runner;
mod workload;
