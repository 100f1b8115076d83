//! A primary and its standby.

use std::time::Duration;

use anyhow::{Context, Error, anyhow};
use pinpoint_servers::cluster::Cluster;
use pinpoint_servers::server::Server;
use pinpoint_servers::target::Setting;
use tokio_postgres::{Client, Config};

use super::lookout;
use crate::benchmarks::load::form::Form;

/// The setting by which notifications travel.
const REPLICATE: &str = "pinpoint.replicate";

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// `pinpoint.replicate` with a value.
pub fn replicate(value: &str) -> Setting {
    Setting {
        name: REPLICATE.to_owned(),
        value: value.to_owned(),
    }
}

/// What is kept of a server between its runs: its standby, and a session on each.
#[derive(Debug)]
pub struct Pair {
    /// Whether notifications reach the standby.
    pub replicates: bool,
    primary: Client,
    on_standby: Client,
    standby: Cluster,
}

impl Pair {
    /// Makes the tables and the standby.
    pub async fn set_up(server: &Server) -> anyhow::Result<Self> {
        let primary = server.connect().await?;
        let replicates = replicates(&primary).await?;
        let mut statements = Form::Statement.set_up();
        statements.push(lookout::index());
        primary.batch_execute(&statements.join("; ")).await?;
        let standby = server.start_standby().await?;
        Ok(Self {
            replicates,
            primary,
            on_standby: standby.connect().await?,
            standby,
        })
    }

    /// How to connect to the standby.
    pub fn standby_config(&self) -> Config {
        self.standby.config()
    }

    /// Executes statements on the primary.
    pub async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        Ok(self.primary.batch_execute(statements).await?)
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
        match self.standby.end().await {
            Some(end) => anyhow!(end),
            None => error,
        }
    }
}

async fn replicates(primary: &Client) -> anyhow::Result<bool> {
    let sql = format!("SELECT current_setting('{REPLICATE}')::bool");
    let row = primary.query_one(&sql, &[]).await.with_context(|| {
        format!("could not ask for {REPLICATE}: install pg_pinpoint")
    })?;
    Ok(row.try_get(0)?)
}

/// A place in the WAL that a function tells, as the number of bytes before it.
async fn lsn(client: &Client, function: &str) -> anyhow::Result<u64> {
    let sql = format!("SELECT ({function} - '0/0')::bigint");
    let bytes: i64 = client.query_one(&sql, &[]).await?.try_get(0)?;
    u64::try_from(bytes).context("a place in the WAL is negative")
}
