//! A throwaway cluster.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use nix::sys::signal::Signal;
use tokio_postgres::{Client, Config};

use crate::connection::connect;
use crate::installation::Installation;
use crate::process::{Account, Process, TOLD_LINES, told};
use crate::target::{Target, quoted};
use crate::workspace::{PORT, SOCKET, Workspace};

/// Connections on top of those that were asked for: superuser_reserved_connections,
/// and sessions of an earlier run that have not quite ended.
const SPARE_CONNECTIONS: u32 = 20;

/// As long as pg_ctl waits for a server to accept connections.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How long a server that has lost a process takes, at most, to notice.
const NOTICE_DEADLINE: Duration = Duration::from_secs(2);

/// How long it then takes, at most, to end: a postmaster gives its other processes
/// five seconds.
const END_DEADLINE: Duration = Duration::from_secs(20);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The program that copies a cluster for its standby.
pub const BASE_BACKUP: &str = "pg_basebackup";

const SERVER_LOG: &str = "server.log";

/// With which the primary keeps what its standby has not got yet.
const STANDBY_SLOT: &str = "pinpoint_standby";

/// How a server is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    Fast,
    Immediate,
}

/// A cluster with its server running, which stops when this is dropped. Its
/// folder goes with the workspace.
#[derive(Debug)]
pub struct Cluster {
    pub target: Target,
    pub installation: Installation,
    /// Of the server, its socket and its log.
    pub folder: PathBuf,
    /// Of the server.
    pub account: Account,
    server: Process,
    /// Of the folder. Goes after the server.
    workspace: Arc<Workspace>,
}

impl Cluster {
    /// Makes and starts a cluster for a target, with room for `connections`
    /// sessions at a time.
    pub async fn start(
        target: Target,
        installation: Installation,
        workspace: &Arc<Workspace>,
        connections: u32,
    ) -> anyhow::Result<Self> {
        let mut initdb = Command::new(installation.program("initdb")?);
        initdb.args([
            "--pgdata=data",
            "--username=postgres",
            // The folder of the socket is closed to all other users.
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
        ]);
        let max_connections = connections + SPARE_CONNECTIONS;
        let settings =
            |target: &Target, folder: &Path| configuration(target, folder, max_connections);
        let cluster = Self::make(target, installation, workspace, initdb, settings).await?;
        cluster.create_extensions().await?;
        Ok(cluster)
    }

    /// Makes and starts a hot standby of this cluster, with all its settings.
    pub async fn start_standby(&self) -> anyhow::Result<Self> {
        let target = Target {
            name: format!("{}-standby", self.target.name),
            ..self.target.clone()
        };
        let installation = self.installation.clone();
        let mut backup = Command::new(installation.program(BASE_BACKUP)?);
        backup
            .arg("--host")
            .arg(&self.folder)
            .args(["--port", &PORT.to_string(), "--username=postgres"])
            .args(["--pgdata=data", "--checkpoint=fast", "--wal-method=stream"])
            .args(["--write-recovery-conf", "--create-slot", "--slot"])
            .arg(STANDBY_SLOT);
        let settings = |_: &Target, folder: &Path| {
            // Replay waits for a session that reads, and does not end it.
            format!(
                "{}\nmax_standby_streaming_delay = -1\nhot_standby_feedback = on\n",
                socket_setting(folder)
            )
        };
        Self::make(target, installation, &self.workspace, backup, settings).await
    }

    /// Runs a program that makes the folder `data`, adds settings to postgresql.conf, and
    /// starts the server.
    async fn make(
        target: Target,
        installation: Installation,
        workspace: &Arc<Workspace>,
        mut command: Command,
        settings: impl FnOnce(&Target, &Path) -> String,
    ) -> anyhow::Result<Self> {
        let account = Account::for_servers()?;
        let folder = workspace.create_folder(&target.name)?;
        let in_folder = || cannot_write(&folder);
        account.give(&folder).with_context(in_folder)?;

        let program = Path::new(command.get_program()).file_stem();
        let program = program.unwrap_or_default().display().to_string();
        let log = folder.join(format!("{program}.log"));
        log_to(&mut command, &log).with_context(in_folder)?;
        let mut process = Process::start(command, &folder, account, Signal::SIGTERM)?;
        let status = process.wait().await.with_context(in_folder)?;
        ensure!(
            status.success(),
            "{program} failed for target \"{}\" ({status}); fix the error that it reports:\n{}",
            target.name,
            end_of_log(&log)
        );
        let configuration = settings(&target, &folder);
        File::options()
            .append(true)
            .open(folder.join("data/postgresql.conf"))
            .and_then(|mut file| file.write_all(configuration.as_bytes()))
            .with_context(in_folder)?;
        let mut cluster = Self {
            server: start_server(&target, &installation, &folder, account)?,
            target,
            installation,
            folder,
            account,
            workspace: workspace.clone(),
        };
        cluster.wait_until_ready().await?;
        cluster.check_settings().await?;
        Ok(cluster)
    }

    /// Shuts the server down, and starts it again.
    pub async fn restart(&mut self, how: Shutdown) -> anyhow::Result<()> {
        let signal = match how {
            Shutdown::Fast => Signal::SIGINT,
            Shutdown::Immediate => Signal::SIGQUIT,
        };
        let name = &self.target.name;
        let stopped = self.server.end(signal).await;
        let status = stopped.with_context(|| format!("could not stop the server of \"{name}\""))?;
        if how == Shutdown::Fast && !status.success() {
            bail!(
                "the server of target \"{name}\" did not shut down ({status}); its log ends:\n{}",
                self.end_of_log()
            );
        }
        self.server = self.start_server()?;
        self.wait_until_ready().await
    }

    fn start_server(&self) -> anyhow::Result<Process> {
        start_server(&self.target, &self.installation, &self.folder, self.account)
    }

    /// How to connect to the server, as its superuser.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .host_path(&self.folder)
            .port(PORT)
            .user("postgres")
            .dbname("postgres")
            .application_name("pinpoint-bench");
        config
    }

    /// The server's socket, for protocols that `config` is no good for.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// The error to report when a session of this server failed with `error`:
    /// the end of the server, if that is what has happened.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.end().await {
            Some(end) => anyhow!(end),
            None => error.context(format!("target \"{}\"", self.target.name)),
        }
    }

    /// How the server has ended, if a failure of a session is due to that: a sentence.
    pub async fn end(&mut self) -> Option<String> {
        let status = self.end_status().await?;
        Some(format!(
            "the server of target \"{}\" ended ({status}) in mid-run; its log tells what to mend \
             or to report:\n{}",
            self.target.name,
            self.end_of_log()
        ))
    }

    fn end_of_log(&self) -> String {
        end_of_log(&self.folder.join(SERVER_LOG))
    }

    /// Waits for the end of the server, unless it goes on to accept connections.
    async fn end_status(&mut self) -> Option<ExitStatus> {
        if let Ok(status) = tokio::time::timeout(NOTICE_DEADLINE, self.server.wait()).await {
            return status.ok();
        }
        if let Ok(Ok(_)) = tokio::time::timeout(NOTICE_DEADLINE, self.connect()).await {
            return None;
        }
        let end = tokio::time::timeout(END_DEADLINE, self.server.wait()).await;
        end.ok()?.ok()
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        let name = self.target.name.clone();
        loop {
            match self.connect().await {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < deadline => {}
                Err(_) => bail!(
                    "the server of target \"{name}\" did not accept connections within \
                     {START_DEADLINE:?}; try again on a less busy machine. Its log ends:\n{}",
                    self.end_of_log()
                ),
            }
            if let Ok(Some(status)) = self.server.status() {
                bail!(
                    "the server of target \"{name}\" did not start ({status}); \
                     fix the error in its log:\n{}",
                    self.end_of_log()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A session of its superuser.
    pub async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        connect(&self.config()).await
    }

    /// The processes of sessions, if the system tells. All sessions come through the socket.
    pub fn session_processes(&self) -> Vec<i32> {
        let children = self.server.children().into_iter();
        children
            .filter(|(_, title)| title.contains("[local]"))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Fails if a line of postgresql.conf has no effect. A server refuses to start with a
    /// wrong setting of its own, but only warns about a wrong setting of a library.
    async fn check_settings(&self) -> anyhow::Result<()> {
        let name = &self.target.name;
        let refused = async { self.connect().await?.query(REFUSED_SETTINGS, &[]).await };
        let refused = refused
            .await
            .with_context(|| format!("could not read the settings of target \"{name}\""))?;
        if let Some(row) = refused.first() {
            let (setting, value, error): (&str, &str, &str) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let log = fs::read(self.folder.join(SERVER_LOG)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let reasons: String = log
                .lines()
                .filter(|line| line.contains(&format!("\"{setting}\"")))
                .map(|line| format!("\n  {line}"))
                .collect();
            bail!(
                "the server of target \"{name}\" ignores {setting} = {}: {error}; \
                 give a name and a value that it accepts{reasons}",
                quoted(value)
            );
        }
        Ok(())
    }

    async fn create_extensions(&self) -> anyhow::Result<()> {
        let create = async {
            let client = self.connect().await?;
            for extension in &self.target.extensions {
                let name = extension.replace('"', "\"\"");
                let sql = format!("CREATE EXTENSION \"{name}\" CASCADE");
                client.batch_execute(&sql).await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        let name = &self.target.name;
        let created = create.await;
        created.with_context(|| format!("could not set up the server of target \"{name}\""))
    }
}

const REFUSED_SETTINGS: &str = "SELECT name, coalesce(setting, ''), error \
     FROM pg_file_settings WHERE error IS NOT NULL ORDER BY seqno";

fn start_server(
    target: &Target,
    installation: &Installation,
    folder: &Path,
    account: Account,
) -> anyhow::Result<Process> {
    let postgres = installation.program("postgres")?;
    let mut command = match target.wrapper {
        [] => Command::new(postgres),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(postgres);
            command
        }
    };
    command.args(["-D", "data"]);
    log_to(&mut command, &folder.join(SERVER_LOG)).with_context(|| cannot_write(folder))?;
    // Immediate shutdown: the data is thrown away in any case.
    Process::start(command, folder, account, Signal::SIGQUIT)
}

/// Why something could not be written to a folder of a server, and what to do.
pub fn cannot_write(folder: &Path) -> String {
    format!(
        "could not write to {}: make room there or name another place with --temp-dir",
        folder.display()
    )
}

/// What is added to postgresql.conf. Whatever bears on the figures stays as
/// PostgreSQL has it, unless the target says otherwise.
fn configuration(target: &Target, folder: &Path, max_connections: u32) -> String {
    let mut lines = vec![
        "listen_addresses = ''".to_owned(),
        format!("port = {PORT}"),
        socket_setting(folder),
        format!("max_connections = {max_connections}"),
        // A crash ends the run, so it may as well end the server, and be noticed.
        "restart_after_crash = off".to_owned(),
    ];
    if !target.preload.is_empty() {
        lines.push(format!(
            "shared_preload_libraries = {}",
            quoted(&target.preload.join(","))
        ));
    }
    lines.extend(target.settings.iter().map(ToString::to_string));
    lines.join("\n") + "\n"
}

fn socket_setting(folder: &Path) -> String {
    format!(
        "unix_socket_directories = {}",
        // A list: the double quotes keep a comma in the path from dividing it.
        quoted(&format!(
            "\"{}\"",
            folder.display().to_string().replace('"', "\"\"")
        ))
    )
}

fn log_to(command: &mut Command, log: &Path) -> io::Result<()> {
    // A server that is started again goes on with its log.
    let file = File::options().create(true).append(true).open(log)?;
    command.stdout(file.try_clone()?).stderr(file);
    Ok(())
}

/// The part of a log that tells why its program failed. The log itself is about
/// to be removed.
fn end_of_log(log: &Path) -> String {
    match fs::read(log) {
        Ok(content) => telling_lines(&String::from_utf8_lossy(&content)),
        Err(error) => format!("  (could not be read: {error})"),
    }
}

/// The lines from the first sign of a crash on, else the last ones.
fn telling_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_crash =
        |line: &&str| line.contains("PANIC: ") || line.contains("was terminated by signal");
    let first = lines
        .iter()
        .position(is_crash)
        .unwrap_or(lines.len().saturating_sub(TOLD_LINES));
    told(lines.into_iter().skip(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_a_target() {
        let target: Target = "fast=pg_config,preload=a,preload=b,fsync=off,fsync=on"
            .parse()
            .unwrap();
        assert_eq!(
            configuration(&target, Path::new("/tmp/it's"), 123),
            "listen_addresses = ''\n\
             port = 5432\n\
             unix_socket_directories = '\"/tmp/it''s\"'\n\
             max_connections = 123\n\
             restart_after_crash = off\n\
             shared_preload_libraries = 'a,b'\n\
             fsync = 'off'\n\
             fsync = 'on'\n"
        );
    }

    #[test]
    fn without_libraries_none_are_loaded() {
        let target: Target = "stock=pg_config".parse().unwrap();
        let configuration = configuration(&target, Path::new("/tmp"), 1);
        assert!(!configuration.contains("shared_preload_libraries"));
    }

    #[test]
    fn the_end_of_a_log_without_a_crash() {
        let log: String = (1..=20).map(|n| format!("LOG:  {n}\n\n")).collect();
        assert_eq!(
            telling_lines(&log),
            "  LOG:  15\n  LOG:  16\n  LOG:  17\n  LOG:  18\n  LOG:  19\n  LOG:  20"
        );
        assert_eq!(telling_lines("one\n"), "  one");
        assert_eq!(telling_lines(""), "");
    }

    #[test]
    fn a_crash_is_told_from_its_beginning() {
        let after: String = (1..=20).map(|n| format!("FATAL:  {n}\n")).collect();
        let log = format!(
            "LOG:  ready\nLOG:  server process (PID 1) was terminated by signal 11\n{after}"
        );
        assert_eq!(
            telling_lines(&log),
            "  LOG:  server process (PID 1) was terminated by signal 11\n  \
             FATAL:  1\n  FATAL:  2\n  FATAL:  3\n  FATAL:  4\n  FATAL:  5"
        );
    }
}
