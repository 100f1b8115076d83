//! Connecting to a server, and the deadline for what is done there.

use std::fmt::Display;
use std::time::Duration;

use anyhow::anyhow;
use tokio_postgres::{Client, Config, Error, NoTls};

/// Connects. The session ends with the client.
pub async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // What goes wrong is reported to the client, too.
    tokio::spawn(connection);
    Ok(client)
}

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
