//! Child processes: under which account they run, and that they end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Gid, Pid, Uid, User};
use thiserror::Error;

/// How long a process may take to obey its signal before it is killed. More
/// than the 5 s after which a postmaster in immediate shutdown kills its children.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How much of what a program complains of goes with an error.
const ERROR_LINES: usize = 6;

#[derive(Debug, Error)]
pub enum ProcessError {
    #[error(
        "PostgreSQL servers do not run as root, and there is no user \"postgres\": \
         create that user, or start pinpoint-bench as an ordinary user"
    )]
    NoServerAccount,
    #[error("could not look up the user \"postgres\"")]
    AccountLookup(#[source] Errno),
    #[error(
        "could not start \"{}\" in {}: {account} must be able to run the one and enter \
         the other (see --temp-dir)", program.display(), folder.display()
    )]
    Start {
        program: PathBuf,
        folder: PathBuf,
        account: &'static str,
        source: io::Error,
    },
}

/// The account that servers run as: one's own, or that of `postgres` if one's
/// own is root, which PostgreSQL refuses.
#[derive(Debug, Clone, Copy)]
pub struct Account(Option<(Uid, Gid)>);

impl Account {
    pub fn for_servers() -> Result<Self, ProcessError> {
        if !Uid::effective().is_root() {
            return Ok(Self(None));
        }
        let user = User::from_name("postgres")
            .map_err(ProcessError::AccountLookup)?
            .ok_or(ProcessError::NoServerAccount)?;
        Ok(Self(Some((user.uid, user.gid))))
    }

    /// One's own.
    pub fn own() -> Self {
        Self(None)
    }

    /// Makes the account own a file or folder.
    pub fn give(&self, path: &Path) -> io::Result<()> {
        match self.0 {
            Some((uid, gid)) => chown(path, Some(uid.as_raw()), Some(gid.as_raw())),
            None => Ok(()),
        }
    }

    fn description(&self) -> &'static str {
        match self.0 {
            Some(_) => "the user \"postgres\"",
            None => "the present user",
        }
    }
}

/// A running child process, which is stopped when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stop_signal: Signal,
}

impl Process {
    /// Starts `command` in `folder`, under `account`.
    ///
    /// It gets a process group of its own: a Ctrl-C at the terminal is for us to
    /// handle, and `stop_signal` has to reach the children of initdb too. What
    /// our own environment says about PostgreSQL is not for it, unlike what
    /// `command` says.
    pub fn start(
        mut command: Command,
        folder: &Path,
        account: Account,
        stop_signal: Signal,
    ) -> Result<Self, ProcessError> {
        let is_set = |name: &OsStr| command.get_envs().any(|(set, _)| set == name);
        let foreign: Vec<OsString> = std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| name.as_encoded_bytes().starts_with(b"PG") && !is_set(name))
            .collect();
        for name in foreign {
            command.env_remove(name);
        }
        command
            .env("LC_ALL", "C")
            .current_dir(folder)
            .stdin(Stdio::null())
            .process_group(0);
        if let Some((uid, gid)) = account.0 {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        let child = command.spawn().map_err(|source| ProcessError::Start {
            program: command.get_program().into(),
            folder: folder.to_owned(),
            account: account.description(),
            source,
        })?;
        Ok(Self { child, stop_signal })
    }

    /// The status with which the process has ended, or `None` if it runs.
    pub fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the process to end by itself.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Errors are of no interest: either there is nothing left to signal, or
    /// `stop` goes on to the next means.
    fn signal(&self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), signal);
    }

    fn stop(&mut self) -> io::Result<()> {
        if self.status()?.is_some() {
            return Ok(());
        }
        self.signal(self.stop_signal);
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if self.status()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.signal(Signal::SIGKILL);
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!(
                "warning: could not stop the process {}: {error}",
                self.child.id()
            );
        }
    }
}

/// The first lines of what a program complains of. They tell why it failed; each
/// session of the program may add one of its own.
pub fn first_lines(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(ERROR_LINES)
        .map(|line| format!("  {line}"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, Path::new("/"), Account(None), Signal::SIGTERM).unwrap()
    }

    #[test]
    fn dropping_stops_the_process_and_its_children() {
        let process = start("sleep 1000 & sleep 1000");
        let group = Pid::from_raw(process.child.id() as i32);
        assert_eq!(killpg(group, None), Ok(()));
        drop(process);

        // The group is gone once init has reaped the grandchild.
        let deadline = Instant::now() + STOP_DEADLINE;
        while killpg(group, None) != Err(Errno::ESRCH) {
            assert!(Instant::now() < deadline, "the children still run");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn waiting_gives_the_status() {
        let status = start("exit 7").wait().await.unwrap();
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn a_program_that_cannot_be_started() {
        let error = Process::start(
            Command::new("/nowhere/initdb"),
            Path::new("/"),
            Account(None),
            Signal::SIGTERM,
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not start \"/nowhere/initdb\" in /: the present user must be able to run \
             the one and enter the other (see --temp-dir)"
        );
    }
}
