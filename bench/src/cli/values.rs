//! Values of options.

pub use pinpoint_servers::options::{duration as seconds, positive_duration as positive_seconds};

/// PostgreSQL accepts no more connections (2^18 - 1, less its own processes).
pub const MAX_CONNECTIONS: i64 = 250_000;

/// Numbers to measure with, each once: sessions are only ever added from one to the next.
pub fn ascending<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}
