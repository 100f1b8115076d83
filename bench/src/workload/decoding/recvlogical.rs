//! pg_recvlogical, which has a slot decoded and receives the result.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use pinpoint_servers::connection::within;
use pinpoint_servers::process::first_lines;
use pinpoint_servers::server::Server;
use tokio::io::AsyncReadExt;

use super::database::Decoded;

pub const PROGRAM: &str = "pg_recvlogical";

const OUTPUT: &str = "decoded";

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

    /// Receives what a slot has up to `end`, an LSN. The time is that from the start of
    /// the program to its end.
    pub async fn receive(&self, slot: &str, end: &str) -> anyhow::Result<Decoded> {
        let output = self.server.folder().join(OUTPUT);
        let in_folder = || {
            format!(
                "could not use {}: make room there or name another place with --temp-dir",
                output.display()
            )
        };
        remove(&output).with_context(in_folder)?;
        let mut command = Command::new(&self.program);
        command
            .args(["--start", "--no-loop"])
            .args(["--dbname", self.database])
            .args(["--slot", slot])
            .args(["--endpos", end])
            .args(["--file", OUTPUT])
            .args(["--fsync-interval", "0"])
            .stderr(Stdio::piped());

        let start = Instant::now();
        let mut process = self.server.start_program(command, Signal::SIGTERM)?;
        let (_, errors) = process.take_output();
        let mut errors = errors.context("there is no pipe for errors")?;
        let mut complaints = String::new();
        // Its end closes the pipe, which is noticed at once.
        let end_of_errors = errors.read_to_string(&mut complaints);
        within(self.timeout, PROGRAM, end_of_errors)
            .await?
            .with_context(in_folder)?;
        let time = start.elapsed();

        let status = process.wait().await.with_context(in_folder)?;
        ensure!(
            status.success(),
            "{PROGRAM} failed ({status}); mend what it complains of:\n{}",
            first_lines(&complaints)
        );
        let decoded = fs::read_to_string(&output).with_context(in_folder)?;
        remove(&output).with_context(in_folder)?;
        Ok(Decoded {
            time,
            cpu: None,
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
}
