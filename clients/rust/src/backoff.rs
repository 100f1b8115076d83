//! The time between two attempts.

use std::time::Duration;

/// The time until the next attempt after so many failures in succession, at least one. random: from 0 to 1.
pub(crate) fn backoff(minimum: Duration, maximum: Duration, failures: u32, random: f64) -> Duration {
    let doubled = minimum.as_secs_f64() * 2f64.powi(i32::try_from(failures - 1).unwrap_or(i32::MAX));
    Duration::from_secs_f64(doubled.min(maximum.as_secs_f64()) * (0.5 + random / 2.0))
}

/// The failures in succession after another one. lasted: the connection that was lost now, if it had worked.
pub(crate) fn count_failures(before: u32, lasted: Option<Duration>, maximum: Duration) -> u32 {
    if lasted.is_some_and(|lasted| lasted >= maximum) {
        1
    } else {
        before.saturating_add(1)
    }
}

/// A number from 0 to 1.
pub(crate) fn random() -> f64 {
    f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX)
}
