//! pg_recvlogical, which has a slot decoded and receives the result.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::process::first_lines;
use crate::server::Server;

pub const PROGRAM: &str = "pg_recvlogical";

const OUTPUT: &str = "decoded";

#[derive(Debug, Error)]
pub enum ReceiverError {
    #[error(transparent)]
    Process(#[from] anyhow::Error),
    #[error("could not use {}: make room there or name another place with --temp-dir", .0.display())]
    Files(PathBuf, #[source] io::Error),
    #[error("{PROGRAM} failed ({status}); mend what it complains of:\n{errors}")]
    Failed { status: ExitStatus, errors: String },
    #[error(
        "{PROGRAM} did not come to the end within {0:?}: if the server is only slow, raise \
         --timeout"
    )]
    Endless(Duration),
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// From the start of the program to its end.
    pub time: Duration,
    /// Rows that were inserted.
    pub changes: u64,
}

#[derive(Debug)]
pub struct Receiver<'a> {
    server: &'a Server,
    program: PathBuf,
    database: &'a str,
    timeout: Duration,
}

impl<'a> Receiver<'a> {
    pub fn of(server: &'a Server, database: &'a str, timeout: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            server,
            program: server.program(PROGRAM)?,
            database,
            timeout,
        })
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Receives what a slot has up to `end`, an LSN.
    pub async fn receive(&self, slot: &str, end: &str) -> Result<Received, ReceiverError> {
        let output = self.server.folder().join(OUTPUT);
        let in_folder = |error| ReceiverError::Files(output.clone(), error);
        remove(&output).map_err(in_folder)?;

        // Its end closes the pipe, which is noticed at once.
        let (errors, error_end) = io::pipe().map_err(in_folder)?;
        let mut errors = pipe::Receiver::from_owned_fd(OwnedFd::from(errors)).map_err(in_folder)?;
        let mut command = Command::new(&self.program);
        command
            .args(["--start", "--no-loop"])
            .args(["--dbname", self.database])
            .args(["--slot", slot])
            .args(["--endpos", end])
            .args(["--file", OUTPUT])
            .args(["--fsync-interval", "0"])
            .stderr(error_end);

        let start = Instant::now();
        let mut process = self.server.start_program(command, Signal::SIGTERM)?;
        let mut complaints = String::new();
        tokio::time::timeout(self.timeout, errors.read_to_string(&mut complaints))
            .await
            .map_err(|_| ReceiverError::Endless(self.timeout))?
            .map_err(in_folder)?;
        let time = start.elapsed();

        let status = process.wait().await.map_err(in_folder)?;
        if !status.success() {
            return Err(ReceiverError::Failed {
                status,
                errors: first_lines(&complaints),
            });
        }
        let decoded = fs::read_to_string(&output).map_err(in_folder)?;
        remove(&output).map_err(in_folder)?;
        Ok(Received {
            time,
            changes: count_inserts(&decoded),
        })
    }
}

/// pg_recvlogical would append to the file.
fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// In what test_decoding prints.
fn count_inserts(decoded: &str) -> u64 {
    let is_insert = |line: &&str| line.starts_with("table ") && line.contains(": INSERT: ");
    decoded.lines().filter(is_insert).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_rows_are_counted() {
        let decoded = "BEGIN 735\n\
                       table public.t1: INSERT: id[integer]:1\n\
                       table public.t2: INSERT: id[integer]:1 added[integer]:null\n\
                       table public.t2: UPDATE: id[integer]:1\n\
                       COMMIT 735\n\
                       message: transactional: 0 prefix: a, sz: 10 content:x: INSERT: \n";
        assert_eq!(count_inserts(decoded), 2);
        assert_eq!(count_inserts(""), 0);
    }

    #[test]
    fn a_file_that_is_not_there_need_not_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("decoded");
        assert!(remove(&file).is_ok());
        fs::write(&file, "x").unwrap();
        assert!(remove(&file).is_ok());
        assert!(!file.exists());
        assert!(remove(folder.path()).is_err());
    }
}
