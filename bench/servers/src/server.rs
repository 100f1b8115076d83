//! The servers that are measured.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_postgres::{Client, Config};

use crate::arguments::Targets;
use crate::cluster::Cluster;
use crate::connection::{connect, within};
use crate::installation::Installation;
use crate::process::{Account, Process, first_lines};
use crate::running::{self, Running};
use crate::workspace::Workspace;

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
pub struct Server {
    /// Of the target.
    pub name: String,
    config: Config,
    /// For the files of programs that are started.
    pub folder: PathBuf,
    /// Of those.
    account: Account,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// This program: a throwaway cluster.
    Own(Box<Cluster>),
    Other(Box<Running>),
}

impl Server {
    fn own(cluster: Cluster) -> Self {
        Self {
            name: cluster.target.name.clone(),
            config: cluster.config(),
            folder: cluster.folder.clone(),
            account: cluster.account,
            owner: Owner::Own(Box::new(cluster)),
        }
    }

    fn running(running: Running, folder: PathBuf) -> Self {
        Self {
            name: running.target.name.clone(),
            config: running.config.clone(),
            folder,
            account: Account::own(),
            owner: Owner::Other(Box::new(running)),
        }
    }

    /// Is it a cluster that was made for the measurement, on this machine?
    pub fn is_own(&self) -> bool {
        matches!(self.owner, Owner::Own(_))
    }

    /// The processes of sessions, if they can be seen; otherwise none.
    pub fn session_processes(&self) -> Vec<i32> {
        match &self.owner {
            Owner::Own(cluster) => cluster.session_processes(),
            Owner::Other(_) => Vec::new(),
        }
    }

    /// How to connect to the server.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// A session.
    pub async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        connect(&self.config).await
    }

    fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        match &self.owner {
            Owner::Own(cluster) => cluster.installation.program(name),
            Owner::Other(_) => running::program(name),
        }
    }

    /// Runs a program of PostgreSQL in the folder to its end, for no longer than `limit`, and
    /// returns what it prints. It connects to this server without being told: its environment
    /// says how. `on_line` gets each line of standard error, and returns whether that is no
    /// complaint.
    pub async fn run_program(
        &self,
        name: &str,
        arguments: &[impl AsRef<OsStr>],
        limit: Duration,
        mut on_line: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<String> {
        let mut command = Command::new(self.program(name)?);
        command
            .args(arguments)
            .envs(running::environment(&self.config))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::start(command, &self.folder, self.account, Signal::SIGTERM)?;
        let output = process.take_output();
        let (mut stdout, stderr) = output.with_context(|| format!("{name} has no output"))?;
        let mut printed = String::new();
        let mut complaints = String::new();
        let run = async {
            let read_errors = async {
                let mut lines = BufReader::new(stderr).lines();
                while let Some(line) = lines.next_line().await? {
                    if !on_line(&line) {
                        complaints.push_str(&line);
                        complaints.push('\n');
                    }
                }
                Ok::<_, io::Error>(())
            };
            tokio::try_join!(stdout.read_to_string(&mut printed), read_errors)?;
            process.wait().await
        };
        let status = within(limit, name, run).await?;
        let status = status.with_context(|| format!("could not read what {name} prints"))?;
        ensure!(
            status.success(),
            "{name} failed ({status}); fix the error that it reports:\n{}",
            first_lines(&complaints)
        );
        Ok(printed)
    }

    /// A name for a channel that nobody else uses on this server.
    pub fn channel(&self, name: &str) -> String {
        match &self.owner {
            Owner::Own(_) => name.to_owned(),
            Owner::Other(running) => running.channel(name),
        }
    }

    /// Has the server write out what it has in memory, so that this does not
    /// disturb what is measured next. Somebody else's server decides by itself.
    pub async fn checkpoint(&self) -> Result<(), tokio_postgres::Error> {
        match self.is_own() {
            true => self.connect().await?.batch_execute("CHECKPOINT").await,
            false => Ok(()),
        }
    }

    /// Makes and starts a hot standby, with all settings of this server. It stops when
    /// it is dropped.
    pub async fn start_standby(&self) -> anyhow::Result<Cluster> {
        match &self.owner {
            Owner::Own(cluster) => cluster.start_standby().await,
            Owner::Other(_) => bail!("no standby is made of somebody else's server"),
        }
    }

    /// The error to report when something failed with `error`: the end of the
    /// server, if that is what has happened.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match &mut self.owner {
            Owner::Own(cluster) => cluster.explain(error).await,
            Owner::Other(running) => error.context(format!("target \"{}\"", running.target)),
        }
    }

    /// What the server says about itself.
    pub async fn describe(&self) -> anyhow::Result<ServerRecord> {
        let (pg_config, url) = match &self.owner {
            Owner::Own(cluster) => (Some(cluster.target.pg_config.display().to_string()), None),
            Owner::Other(running) => (None, Some(running.target.url())),
        };
        let describe = async {
            let client = self.connect().await?;
            let version = client.query_one("SELECT version()", &[]).await?;
            // Not everybody may see it; then there is no row.
            let preload = client.query(PRELOAD, &[]).await?;
            Ok::<_, tokio_postgres::Error>(ServerRecord {
                name: self.name.clone(),
                pg_config,
                url,
                server_version: version.try_get(0)?,
                preload: preload
                    .iter()
                    .map(|row| row.try_get(0))
                    .collect::<Result<_, _>>()?,
                extensions: query_pairs(&client, EXTENSIONS).await?,
                settings: query_pairs(&client, SETTINGS).await?,
            })
        };
        describe
            .await
            .with_context(|| format!("target \"{}\" does not tell what it is", self.name))
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
        let workspace = Arc::new(Workspace::create(temp_dir).await?);
        self.workspace = Some(workspace.clone());
        match targets {
            Targets::Own(targets) => {
                let mut installed = Vec::new();
                for target in targets {
                    let installation = Installation::of(&target)?;
                    for program in programs {
                        installation.program(program)?;
                    }
                    installed.push((target, installation));
                }
                for (target, installation) in installed {
                    let cluster = Cluster::start(target, installation, &workspace, connections);
                    self.servers.push(Server::own(cluster.await?));
                }
            }
            Targets::Running(targets) => {
                for program in programs {
                    running::program(program)?;
                }
                let mut checked = Vec::new();
                for target in targets {
                    let folder = workspace.create_folder(&target.name)?;
                    let running = Running::check(target, connections).await?;
                    checked.push(Server::running(running, folder));
                }
                // From now on `stop` removes what is made.
                self.servers = checked;
                for running in self.others() {
                    running.create_schema().await?;
                }
            }
        }
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = &Running> {
        self.servers
            .iter()
            .filter_map(|server| match &server.owner {
                Owner::Own(_) => None,
                Owner::Other(running) => Some(&**running),
            })
    }

    /// Removes what was made on running servers, and stops the other ones.
    pub async fn stop(self) {
        for running in self.others() {
            running.remove_schema().await;
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [Server] {
        &mut self.servers
    }
}
