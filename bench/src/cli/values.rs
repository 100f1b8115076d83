//! Values of options.

use std::time::Duration;

/// PostgreSQL accepts no more connections (2^18 - 1, less its own processes).
pub const MAX_CONNECTIONS: i64 = 250_000;

/// Numbers to measure with, each once: sessions are only ever added from one to the next.
pub fn ascending<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

/// A number of seconds, which may have a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// The same, but more than none.
pub fn positive_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}
