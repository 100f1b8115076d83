//! The servers that are measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use nix::sys::signal::Signal;
use tokio_postgres::{Client, Config};

use crate::cluster::Cluster;
use crate::installation::{Installation, InstallationError};
use crate::process::{Process, ProcessError};
use crate::results::TargetRecord;
use crate::target::{Target, ensure_unique_names};
use crate::workspace::{PORT, Workspace};

/// A server that is measured.
#[derive(Debug)]
pub enum Server {
    /// Of a throwaway cluster.
    Own(Cluster),
}

impl Server {
    /// The name of the target.
    pub fn name(&self) -> &str {
        match self {
            Self::Own(cluster) => &cluster.target().name,
        }
    }

    /// How to connect to the server.
    pub fn config(&self) -> Config {
        match self {
            Self::Own(cluster) => cluster.config(),
        }
    }

    /// A session.
    pub async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        match self {
            Self::Own(cluster) => cluster.connect().await,
        }
    }

    /// A folder for the files of programs that are started.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Own(cluster) => cluster.folder(),
        }
    }

    /// The path of a program of PostgreSQL.
    pub fn program(&self, name: &str) -> Result<PathBuf, InstallationError> {
        match self {
            Self::Own(cluster) => cluster.installation().program(name),
        }
    }

    /// Starts a program in the folder. A program of PostgreSQL connects to this
    /// server without being told: its environment says how.
    pub fn start_program(
        &self,
        mut command: Command,
        stop_signal: Signal,
    ) -> Result<Process, ProcessError> {
        match self {
            Self::Own(cluster) => {
                command
                    .env("PGHOST", cluster.folder())
                    .env("PGPORT", PORT.to_string())
                    .env("PGUSER", "postgres")
                    .env("PGDATABASE", "postgres");
                cluster.start_program(command, stop_signal)
            }
        }
    }

    /// A name for a channel that nobody else uses on this server.
    pub fn channel(&self, name: &str) -> String {
        match self {
            Self::Own(_) => name.to_owned(),
        }
    }

    /// Has the server write out what it has in memory, so that this does not
    /// disturb what is measured next.
    pub async fn checkpoint(&self) -> Result<(), tokio_postgres::Error> {
        match self {
            Self::Own(_) => self.connect().await?.batch_execute("CHECKPOINT").await,
        }
    }

    /// The error to report when something failed with `error`: the end of the
    /// server, if that is what has happened.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self {
            Self::Own(cluster) => cluster.explain(error).await,
        }
    }

    /// What the server says about itself.
    pub async fn describe(&self) -> anyhow::Result<TargetRecord> {
        let describe = async {
            let client = self.connect().await?;
            let server_version = client
                .query_one("SELECT version()", &[])
                .await?
                .try_get(0)?;
            let extensions = query_pairs(
                &client,
                "SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql'",
            )
            .await?;
            let settings = query_pairs(
                &client,
                "SELECT name, current_setting(name) FROM pg_settings \
                 WHERE source = 'configuration file' \
                 OR name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'wal_level')",
            )
            .await?;
            Ok::<_, tokio_postgres::Error>((server_version, extensions, settings))
        };
        let (server_version, extensions, settings) = describe
            .await
            .with_context(|| format!("target \"{}\" does not tell what it is", self.name()))?;
        let Self::Own(cluster) = self;
        let target = cluster.target();
        Ok(TargetRecord {
            name: target.name.clone(),
            pg_config: Some(target.pg_config.display().to_string()),
            url: None,
            server_version,
            preload: target.preload.clone(),
            extensions,
            settings,
        })
    }
}

async fn query_pairs(
    client: &Client,
    sql: &str,
) -> Result<BTreeMap<String, String>, tokio_postgres::Error> {
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// All servers of a measurement, up at the same time. They stop, and then their
/// folder goes, when this is dropped.
#[derive(Debug, Default)]
pub struct Servers {
    // Fields are dropped in this order.
    servers: Vec<Server>,
    workspace: Option<Workspace>,
}

impl Servers {
    /// Starts a server for each target, in a folder of its own in `temp_dir`, with
    /// room for `connections` sessions at a time. Makes sure before that
    /// `programs` are there.
    pub async fn start(
        &mut self,
        targets: Vec<Target>,
        temp_dir: &Path,
        connections: u32,
        programs: &[&str],
    ) -> anyhow::Result<()> {
        ensure_unique_names(&targets)?;
        let mut installations = Vec::new();
        for target in &targets {
            let installation = Installation::of(target)?;
            for program in programs {
                installation.program(program)?;
            }
            installations.push(installation);
        }

        let workspace = Workspace::create(temp_dir).await?;
        let workspace = self.workspace.insert(workspace);
        for (target, installation) in targets.into_iter().zip(installations) {
            let cluster = Cluster::start(target, installation, workspace, connections).await?;
            self.servers.push(Server::Own(cluster));
        }
        Ok(())
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Server> {
        self.servers.iter_mut()
    }
}
