//! Child processes: under which account they run, and that they end.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Gid, Pid, Uid, User};
use tokio::process::{Child, ChildStderr, ChildStdout};

/// How long a process may take to obey its signal before it is killed. More
/// than the 5 s after which a postmaster in immediate shutdown kills its children.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How many lines of what a program says go with an error.
pub const TOLD_LINES: usize = 6;

/// The account that servers run as: one's own, or that of `postgres` if one's
/// own is root, which PostgreSQL refuses.
#[derive(Debug, Clone, Copy)]
pub struct Account(Option<(Uid, Gid)>);

impl Account {
    pub fn for_servers() -> anyhow::Result<Self> {
        if !Uid::effective().is_root() {
            return Ok(Self(None));
        }
        let user = User::from_name("postgres")
            .context("could not look up the user \"postgres\"")?
            .context(
                "PostgreSQL servers do not run as root, and there is no user \"postgres\": \
                 create that user, or start pinpoint-bench as an ordinary user",
            )?;
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
    /// Of the process, and of the group that it leads.
    pid: Pid,
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
    ) -> anyhow::Result<Self> {
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
        let program = command.get_program().to_owned();
        let failed = || {
            format!(
                "could not start \"{}\" in {}: {} must be able to run the one and enter the \
                 other (see --temp-dir)",
                Path::new(&program).display(),
                folder.display(),
                account.description()
            )
        };
        let child = tokio::process::Command::from(command)
            .spawn()
            .with_context(failed)?;
        let pid = child.id().with_context(failed)?;
        Ok(Self {
            child,
            pid: Pid::from_raw(pid.cast_signed()),
            stop_signal,
        })
    }

    /// What the process writes to the pipes that the command has for it.
    pub fn take_output(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        self.child.stdout.take().zip(self.child.stderr.take())
    }

    /// The status with which the process has ended, or `None` if it runs.
    pub fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Its children, if the system tells: process IDs and command lines.
    pub fn children(&self) -> Vec<(i32, String)> {
        let pid = self.pid;
        let file = format!("/proc/{pid}/task/{pid}/children");
        let read = || fs::read_to_string(&file).unwrap_or_default();
        // A child that ends meanwhile can hide another (proc_tid_children(5)).
        let mut children = read();
        loop {
            let again = read();
            if again == children {
                break;
            }
            children = again;
        }
        let command = |pid: &str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some((
                pid.parse().ok()?,
                String::from_utf8_lossy(&line).into_owned(),
            ))
        };
        children.split_whitespace().filter_map(command).collect()
    }

    /// Has the process end by a signal, and waits for that.
    pub async fn end(&mut self, signal: Signal) -> io::Result<ExitStatus> {
        kill(self.pid, signal)?;
        self.wait().await
    }

    /// Waits for the process to end by itself.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits until the process is gone, for no longer than `deadline`. Whoever drops
    /// it cannot wait in any other way.
    fn is_gone_after(&mut self, deadline: Duration) -> io::Result<bool> {
        let end = Instant::now() + deadline;
        while self.status()?.is_none() {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }

    fn stop(&mut self) -> io::Result<()> {
        for signal in [self.stop_signal, Signal::SIGKILL] {
            if self.status()?.is_some() {
                break;
            }
            // That there is nothing left to signal is as well.
            let _ = killpg(self.pid, signal);
            if self.is_gone_after(STOP_DEADLINE)? {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("warning: could not stop the process {}: {error}", self.pid);
        }
    }
}

/// The first lines of what a program complains of. They tell why it failed; each
/// session of the program may add one of its own.
pub fn first_lines(text: &str) -> String {
    told(text.lines().filter(|line| !line.trim().is_empty()))
}

/// The first of these lines, for an error.
pub fn told<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines = lines.take(TOLD_LINES).map(|line| format!("  {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use nix::errno::Errno;

    use super::*;

    fn start(program: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        let mut command = Command::new(program);
        command.args(arguments);
        Process::start(command, Path::new("/"), Account::own(), Signal::SIGTERM)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn dropping_stops_the_process_and_its_children() {
        let process = start("sh", &["-c", "sleep 1000 & sleep 1000"]).unwrap();
        let group = process.pid;
        assert_eq!(killpg(group, None), Ok(()));
        drop(process);

        // The group is gone once init has reaped the grandchild.
        let deadline = Instant::now() + 8 * STOP_DEADLINE;
        while killpg(group, None) != Err(Errno::ESRCH) {
            assert!(Instant::now() < deadline, "the children still run");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_children_can_be_seen_while_they_run() {
        let process = start("sh", &["-c", "sleep 0.1; sleep 1000 & wait"]).unwrap();
        let deadline = Instant::now() + 8 * STOP_DEADLINE;
        let commands = || {
            let children = process.children().into_iter();
            children.map(|(_, command)| command).collect::<Vec<_>>()
        };
        while commands() != ["sleep\x001000\x00"] {
            let children = commands();
            assert!(Instant::now() < deadline, "the children are {children:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn no_child_is_hidden_by_another_that_ends() {
        let ends = "while :; do sleep 0.01 & sleep 0.001; done";
        let process = start("sh", &["-c", ends]).unwrap();
        let children = || -> HashSet<i32> {
            let children = process.children().into_iter();
            children.map(|(pid, _)| pid).collect()
        };
        let (mut before, mut now) = (children(), children());
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let after = children();
            let hidden: Vec<i32> = before
                .intersection(&after)
                .filter(|pid| !now.contains(pid))
                .copied()
                .collect();
            assert_eq!(hidden, [], "the process runs before and after");
            (before, now) = (now, after);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn waiting_gives_the_status() {
        let status = start("sh", &["-c", "exit 7"]).unwrap().wait().await;
        assert_eq!(status.unwrap().code(), Some(7));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_program_that_cannot_be_started() {
        let error = start("/nowhere/initdb", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not start \"/nowhere/initdb\" in /: the present user must be able to run \
             the one and enter the other (see --temp-dir)"
        );
    }
}
