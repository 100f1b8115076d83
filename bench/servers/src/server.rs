//! The servers that are measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Config};

use crate::arguments::Targets;
use crate::cluster::Cluster;
use crate::installation::Installation;
use crate::process::{Account, Process};
use crate::running::{self, Running, RunningTarget};
use crate::target::Target;
use crate::workspace::{PORT, Workspace};

/// What a server said about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    pub name: String,
    /// Of the installation that the cluster was made with; null for a running server.
    pub pg_config: Option<String>,
    /// Of a running server, without its password; null for a cluster of our own.
    pub url: Option<String>,
    pub server_version: String,
    pub preload: Vec<String>,
    /// Extensions and their versions.
    pub extensions: BTreeMap<String, String>,
    /// Settings that are not the default, and those that decide on durability.
    pub settings: BTreeMap<String, String>,
}

/// A server that is measured.
#[derive(Debug)]
pub enum Server {
    /// Of a throwaway cluster.
    Own(Box<Cluster>),
    /// Somebody else's.
    Running(Running),
}

impl Server {
    /// The name of the target.
    pub fn name(&self) -> &str {
        match self {
            Self::Own(cluster) => &cluster.target().name,
            Self::Running(running) => &running.target().name,
        }
    }

    /// How to connect to the server.
    pub fn config(&self) -> Config {
        match self {
            Self::Own(cluster) => cluster.config(),
            Self::Running(running) => running.config().clone(),
        }
    }

    /// A session.
    pub async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        match self {
            Self::Own(cluster) => cluster.connect().await,
            Self::Running(running) => running.connect().await,
        }
    }

    /// A folder for the files of programs that are started.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Own(cluster) => cluster.folder(),
            Self::Running(running) => running.folder(),
        }
    }

    /// The path of a program of PostgreSQL.
    pub fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        Ok(match self {
            Self::Own(cluster) => cluster.installation().program(name)?,
            Self::Running(_) => running::program(name)?,
        })
    }

    /// Starts a program in the folder. A program of PostgreSQL connects to this
    /// server without being told: its environment says how.
    pub fn start_program(
        &self,
        mut command: Command,
        stop_signal: Signal,
    ) -> anyhow::Result<Process> {
        match self {
            Self::Own(cluster) => {
                command
                    .env("PGHOST", cluster.folder())
                    .env("PGPORT", PORT.to_string())
                    .env("PGUSER", "postgres")
                    .env("PGDATABASE", "postgres");
                cluster.start_program(command, stop_signal)
            }
            Self::Running(running) => {
                command.envs(running.environment());
                Process::start(command, running.folder(), Account::own(), stop_signal)
            }
        }
    }

    /// A name for a channel that nobody else uses on this server.
    pub fn channel(&self, name: &str) -> String {
        match self {
            Self::Own(_) => name.to_owned(),
            Self::Running(running) => running.channel(name),
        }
    }

    /// Has the server write out what it has in memory, so that this does not
    /// disturb what is measured next. Somebody else's server decides by itself.
    pub async fn checkpoint(&self) -> Result<(), tokio_postgres::Error> {
        match self {
            Self::Own(_) => self.connect().await?.batch_execute("CHECKPOINT").await,
            Self::Running(_) => Ok(()),
        }
    }

    /// Makes and starts a hot standby, with all settings of this server. It stops when
    /// it is dropped.
    pub async fn start_standby(&self) -> anyhow::Result<Cluster> {
        match self {
            Self::Own(cluster) => cluster.start_standby().await,
            Self::Running(running) => bail!(
                "{} is somebody else's, of which no standby is made: leave out --url",
                running.target()
            ),
        }
    }

    /// The error to report when something failed with `error`: the end of the
    /// server, if that is what has happened.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self {
            Self::Own(cluster) => cluster.explain(error).await,
            Self::Running(running) => error.context(format!("target \"{}\"", running.target())),
        }
    }

    /// What the server says about itself.
    pub async fn describe(&self) -> anyhow::Result<ServerRecord> {
        let describe = async {
            let client = self.connect().await?;
            let row = client.query_one("SELECT version()", &[]).await?;
            let server_version = row.try_get(0)?;
            let extensions = query_pairs(&client, EXTENSIONS).await?;
            let settings = query_pairs(&client, SETTINGS).await?;
            let preload = match self {
                Self::Own(cluster) => cluster.target().preload.clone(),
                // Not everybody may see it; then there is no row.
                Self::Running(_) => client
                    .query(PRELOAD, &[])
                    .await?
                    .iter()
                    .map(|row| row.try_get(0))
                    .collect::<Result<_, _>>()?,
            };
            Ok::<_, tokio_postgres::Error>(ServerRecord {
                name: self.name().to_owned(),
                pg_config: match self {
                    Self::Own(cluster) => Some(cluster.target().pg_config.display().to_string()),
                    Self::Running(_) => None,
                },
                url: match self {
                    Self::Own(_) => None,
                    Self::Running(running) => Some(running.target().url()),
                },
                server_version,
                preload,
                extensions,
                settings,
            })
        };
        describe
            .await
            .with_context(|| format!("target \"{}\" does not tell what it is", self.name()))
    }
}

const EXTENSIONS: &str = "SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql'";

/// Those that are not the default, be it for this session alone, and those that
/// decide on durability. Paths, commands and passwords of somebody else's server are
/// nobody's business, and what each of our sessions sets says nothing.
const SETTINGS: &str = "SELECT name, current_setting(name) FROM pg_settings \
     WHERE source IN ('configuration file', 'database', 'user', 'database user', 'client') \
         AND name !~ '(conninfo|command|file|files|directory|directories)$' \
         AND name NOT IN ('application_name', 'client_encoding', 'search_path') \
     OR name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'wal_level')";

const PRELOAD: &str = "SELECT btrim(library) FROM pg_settings, \
         LATERAL regexp_split_to_table(setting, ',') AS library \
     WHERE name = 'shared_preload_libraries' AND setting <> ''";

async fn query_pairs(
    client: &Client,
    sql: &str,
) -> Result<BTreeMap<String, String>, tokio_postgres::Error> {
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// All servers of a measurement, up at the same time. Those of our own stop, and
/// then their folder goes, when this is dropped.
#[derive(Debug, Default)]
pub struct Servers {
    // Fields are dropped in this order.
    servers: Vec<Server>,
    workspace: Option<Arc<Workspace>>,
}

impl Servers {
    /// Starts a server for each target, or connects to the running ones, with a
    /// folder for each in `temp_dir` and room for `connections` sessions at a time.
    /// Makes sure before that `programs` are there.
    pub async fn start(
        &mut self,
        targets: Targets,
        temp_dir: &Path,
        connections: u32,
        programs: &[&str],
    ) -> anyhow::Result<()> {
        match targets {
            Targets::Own(targets) => {
                self.start_own(targets, temp_dir, connections, programs)
                    .await
            }
            Targets::Running(targets) => {
                self.join_running(targets, temp_dir, connections, programs)
                    .await
            }
        }
    }

    async fn start_own(
        &mut self,
        targets: Vec<Target>,
        temp_dir: &Path,
        connections: u32,
        programs: &[&str],
    ) -> anyhow::Result<()> {
        let mut installations = Vec::new();
        for target in &targets {
            let installation = Installation::of(target)?;
            for program in programs {
                installation.program(program)?;
            }
            installations.push(installation);
        }

        let workspace = Workspace::create(temp_dir).await?;
        let workspace = self.workspace.insert(Arc::new(workspace));
        for (target, installation) in targets.into_iter().zip(installations) {
            let cluster = Cluster::start(target, installation, workspace, connections).await?;
            self.servers.push(Server::Own(Box::new(cluster)));
        }
        Ok(())
    }

    async fn join_running(
        &mut self,
        targets: Vec<RunningTarget>,
        temp_dir: &Path,
        connections: u32,
        programs: &[&str],
    ) -> anyhow::Result<()> {
        for program in programs {
            running::program(program)?;
        }

        let workspace = Workspace::create(temp_dir).await?;
        let workspace = self.workspace.insert(Arc::new(workspace));
        let mut checked = Vec::new();
        for target in targets {
            let folder = workspace.create_folder(&target.name)?;
            checked.push(Running::check(target, folder, connections).await?);
        }
        for running in checked {
            self.servers.push(Server::Running(running));
            if let Some(Server::Running(running)) = self.servers.last() {
                running.create_schema().await?;
            }
        }
        Ok(())
    }

    /// Removes what was made on running servers, and stops the other ones.
    pub async fn stop(self) {
        for server in &self.servers {
            if let Server::Running(running) = server {
                running.remove_schema().await;
            }
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [Server] {
        &mut self.servers
    }
}
