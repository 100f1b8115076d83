//! The program as a person starts it, against real servers.
//!
//! Needs PostgreSQL's server and server development package with its
//! `pg_config` on the PATH, and pg_pinpoint installed in it.

mod bad_input;
mod cleanup;
mod harness;
mod load;
mod report;
mod results;
mod url;
mod workloads;
