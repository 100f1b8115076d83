//! Servers to measure and to torture: throwaway clusters of an installation, and
//! servers that run already. Also what the command lines that name them share.
//!
//! ```text
//! arguments ──► server ──► cluster ──► installation, workspace ──► process
//!                  └─────► running ──────► target, options, connection
//! ```

pub mod arguments;
pub mod cluster;
pub mod connection;
pub mod installation;
pub mod limits;
pub mod options;
pub mod process;
pub mod running;
pub mod server;
pub mod target;
pub mod workspace;
