//! The program as a person starts it, against real servers.
//!
//! Needs PostgreSQL's server and server development package with its
//! `pg_config` on the PATH, and pg_pinpoint and
//! pg_pinpoint_decoding installed in it.

mod all;
mod bad_input;
mod cleanup;
mod decode;
mod harness;
mod instructions;
mod load;
mod report;
mod results;
mod standby;
mod url;
mod workloads;
