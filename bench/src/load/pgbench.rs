//! pgbench, which makes the load.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::signal::Signal;
use serde::Serialize;
use thiserror::Error;

use super::results::Load;
use crate::process::ProcessError;
use crate::server::Server;

const SCRIPT: &str = "pgbench.sql";
const OUTPUT: &str = "pgbench.out";
const ERRORS: &str = "pgbench.err";

/// How much of what pgbench complains of goes with an error. The first lines
/// tell why; each session may add one of its own.
const ERROR_LINES: usize = 6;

#[derive(Debug, Error)]
pub enum PgbenchError {
    #[error(transparent)]
    Program(anyhow::Error),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("could not use {}: make room there or name another place with --temp-dir", .0.display())]
    Files(PathBuf, #[source] io::Error),
    #[error("pgbench failed ({status}); mend what it complains of:\n{errors}")]
    Failed { status: ExitStatus, errors: String },
    #[error("{0} transactions of pgbench failed, so that its figures are of no use")]
    FailedTransactions(u64),
    #[error("pgbench reports no figures that could be understood:\n{0}")]
    Output(String),
    #[error(
        "pgbench did not end within {0:?} after its time: if the server is only slow, \
         raise --timeout"
    )]
    Endless(Duration),
}

/// How statements are sent, by pgbench's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// As text
    Simple,
    /// As prepared statements
    Prepared,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Prepared => "prepared",
        }
    }
}

/// Runs `script` in `clients` sessions for `duration`, in whole seconds.
pub async fn run(
    server: &Server,
    script: &str,
    clients: u32,
    protocol: Protocol,
    duration: Duration,
    timeout: Duration,
) -> Result<Load, PgbenchError> {
    let folder = server.folder();
    let in_folder = |error| PgbenchError::Files(folder.to_owned(), error);
    fs::write(folder.join(SCRIPT), script).map_err(in_folder)?;

    let mut command = Command::new(server.program("pgbench").map_err(PgbenchError::Program)?);
    command
        .arg("--no-vacuum")
        .args(["--file", SCRIPT])
        .args(["--protocol", protocol.name()])
        .args(["--client", &clients.to_string()])
        .args(["--jobs", &jobs(clients).to_string()])
        .args(["--time", &duration.as_secs().to_string()])
        .stdout(File::create(folder.join(OUTPUT)).map_err(in_folder)?)
        .stderr(File::create(folder.join(ERRORS)).map_err(in_folder)?);
    let mut process = server.start_program(command, Signal::SIGTERM)?;
    let status = tokio::time::timeout(duration + timeout, process.wait())
        .await
        .map_err(|_| PgbenchError::Endless(timeout))?
        .map_err(in_folder)?;

    if !status.success() {
        return Err(PgbenchError::Failed {
            status,
            errors: first_lines(&read(&folder.join(ERRORS)).map_err(in_folder)?),
        });
    }
    parse(&read(&folder.join(OUTPUT)).map_err(in_folder)?)
}

/// Threads of pgbench: no more than can run at a time.
fn jobs(clients: u32) -> u32 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    clients.min(u32::try_from(cores).unwrap_or(u32::MAX))
}

fn read(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

fn first_lines(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(ERROR_LINES)
        .map(|line| format!("  {line}"))
        .collect();
    lines.join("\n")
}

/// The figures in what pgbench prints at its end.
fn parse(output: &str) -> Result<Load, PgbenchError> {
    let value = |name: &str| {
        let mut lines = output.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().and_then(|rest| rest.split_whitespace().next())
    };
    // PostgreSQL 14 and older do not count failures: there the session ends.
    if let Some(failed) = value("number of failed transactions:")
        && failed != "0"
    {
        return match failed.parse() {
            Ok(failed) => Err(PgbenchError::FailedTransactions(failed)),
            Err(_) => Err(PgbenchError::Output(first_lines(output))),
        };
    }
    let transactions =
        value("number of transactions actually processed:").and_then(|text| text.parse().ok());
    let tps = value("tps =").and_then(|text| text.parse().ok());
    match (transactions, tps) {
        // Ratios are made of these.
        (Some(transactions), Some(tps)) if transactions > 0 && tps > 0.0 => Ok(Load {
            transactions,
            transactions_per_sec: tps,
        }),
        _ => Err(PgbenchError::Output(first_lines(output))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
pgbench (15.20 (Debian 15.20-0+deb12u1))
transaction type: pgbench.sql
scaling factor: 1
query mode: simple
number of clients: 2
number of threads: 2
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 12345
number of failed transactions: 0 (0.000%)
latency average = 0.161 ms
initial connection time = 3.411 ms
tps = 12381.218503 (without initial connection time)
";

    #[test]
    fn figures() {
        assert_eq!(
            parse(OUTPUT).unwrap(),
            Load {
                transactions: 12_345,
                transactions_per_sec: 12_381.218503,
            }
        );
    }

    #[test]
    fn failed_transactions_spoil_them() {
        let error = parse(&OUTPUT.replace("failed transactions: 0 ", "failed transactions: 7 "))
            .unwrap_err();
        assert!(
            matches!(error, PgbenchError::FailedTransactions(7)),
            "{error}"
        );
    }

    #[test]
    fn output_that_cannot_be_understood() {
        for output in [
            "",
            "pgbench: no\n",
            &OUTPUT.replace("tps =", "tpm ="),
            &OUTPUT.replace("12345", "many"),
            &OUTPUT.replace("transactions: 0 ", "transactions: some "),
            // Nothing to make a ratio of.
            &OUTPUT.replace("12345", "0"),
            &OUTPUT.replace("12381.218503", "-nan"),
            &OUTPUT.replace("12381.218503", "0.000000"),
        ] {
            let error = parse(output).unwrap_err();
            assert!(matches!(error, PgbenchError::Output(_)), "{error}");
        }
    }

    #[test]
    fn the_first_errors_are_told() {
        let errors: String = (1..=20).map(|n| format!("error {n}\n\n")).collect();
        assert_eq!(
            first_lines(&errors),
            "  error 1\n  error 2\n  error 3\n  error 4\n  error 5\n  error 6"
        );
    }
}
