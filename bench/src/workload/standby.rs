//! The streaming standby of a server.

use std::time::Duration;

use anyhow::{Context, Error, anyhow};
use pinpoint_servers::cluster::Cluster;
use pinpoint_servers::server::Server;
use tokio_postgres::{Client, Config};

use super::row_visibility;

/// The setting by which notifications travel.
pub const REPLICATE: &str = "pinpoint.replicate";

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A standby, and a session on both servers.
#[derive(Debug)]
pub struct Standby {
    /// Whether notifications reach the standby.
    pub replicates: bool,
    primary: Client,
    on_standby: Client,
    cluster: Cluster,
}

impl Standby {
    /// Makes the standby of a server, which has the table of the probe.
    pub async fn start(server: &Server) -> anyhow::Result<Self> {
        let primary = server.connect().await?;
        let replicates = replicates(&primary).await?;
        primary.batch_execute(&row_visibility::index()).await?;
        let cluster = server.start_standby().await?;
        Ok(Self {
            replicates,
            primary,
            on_standby: cluster.connect().await?,
            cluster,
        })
    }

    /// How to connect to it.
    pub fn config(&self) -> Config {
        self.cluster.config()
    }

    /// How many bytes of WAL there have been on the primary since it was made.
    pub async fn wal_bytes(&self) -> anyhow::Result<u64> {
        lsn(&self.primary, "pg_current_wal_insert_lsn()").await
    }

    /// Waits until the standby has replayed what is written by now.
    pub async fn catch_up(&self) -> anyhow::Result<()> {
        let written = lsn(&self.primary, "pg_current_wal_lsn()").await?;
        while lsn(&self.on_standby, "pg_last_wal_replay_lsn()").await? < written {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The error to report when something failed with `error`: the end of the standby,
    /// if that is what has happened.
    pub async fn explain(&mut self, error: Error) -> Error {
        match self.cluster.end().await {
            Some(end) => anyhow!(end),
            None => error,
        }
    }
}

async fn replicates(primary: &Client) -> anyhow::Result<bool> {
    let sql = format!("SELECT current_setting('{REPLICATE}')::bool");
    let row = primary
        .query_one(&sql, &[])
        .await
        .with_context(|| format!("could not ask for {REPLICATE}: install pg_pinpoint"))?;
    Ok(row.try_get(0)?)
}

/// A place in the WAL that a function tells, as the number of bytes before it.
async fn lsn(client: &Client, function: &str) -> anyhow::Result<u64> {
    let sql = format!("SELECT ({function} - '0/0')::bigint");
    let bytes: i64 = client.query_one(&sql, &[]).await?.try_get(0)?;
    u64::try_from(bytes).context("a place in the WAL is negative")
}
