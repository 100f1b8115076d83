//! One deadline for everything, and one error when it has passed.

use std::fmt::Display;
use std::time::Duration;

use anyhow::anyhow;

/// Waits for the future, but no longer than `limit`. `what` is the subject of the
/// error: "a connection".
pub async fn within<T>(
    limit: Duration,
    what: impl Display,
    future: impl Future<Output = T>,
) -> anyhow::Result<T> {
    tokio::time::timeout(limit, future).await.map_err(|_| {
        anyhow!("{what} took longer than {limit:?}: if the server is only slow, raise --timeout")
    })
}
