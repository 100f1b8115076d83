//! pgbench, which makes the load where a benchmark needs many busy sessions.

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

use crate::process::first_lines;
use crate::server::Server;

const SCRIPT: &str = "pgbench.sql";
const OUTPUT: &str = "pgbench.out";
const ERRORS: &str = "pgbench.err";

/// Sessions that can be asked for; also of the listeners that read along with a load.
pub const MAX_CLIENTS: i64 = 10_000;

/// What it takes to connect a session, where that is not known better.
const CONNECTION_TIME: Duration = Duration::from_millis(3);

/// What it takes to fill the tables, for each 100,000 rows, where nothing is fast.
const TIME_TO_FILL: Duration = Duration::from_secs(2);

#[derive(Debug, Error)]
pub enum PgbenchError {
    #[error(transparent)]
    Process(#[from] anyhow::Error),
    #[error("could not use {}: make room there or name another place with --temp-dir", .0.display())]
    Files(PathBuf, #[source] io::Error),
    #[error("pgbench failed ({status}); mend what it complains of:\n{errors}")]
    Failed { status: ExitStatus, errors: String },
    #[error("{0} transactions of pgbench failed, so that its figures are of no use")]
    FailedTransactions(u64),
    #[error(
        "pgbench completed no transaction in its time, part of which it needs to connect: make \
         the runs longer (--duration, --warmup), or ask for fewer sessions"
    )]
    NoTransactions,
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

/// What pgbench reports of one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    pub transactions: u64,
    /// Without the time that it takes to connect.
    pub transactions_per_sec: f64,
    /// The time that it took to connect; zero if pgbench does not tell (PostgreSQL 13 and older).
    pub connecting: Duration,
}

/// What pgbench is to do.
#[derive(Debug, Clone, Copy)]
pub struct Pgbench<'a> {
    /// The transaction, which every session repeats.
    pub script: &'a str,
    /// Variables of the script, and their values at the beginning of each session.
    pub variables: &'a [(&'a str, &'a str)],
    /// Sessions.
    pub clients: u32,
    /// Threads, no more than sessions.
    pub jobs: u32,
    pub protocol: Protocol,
    /// For all that comes on top of the duration of a load: to connect, and the
    /// last transactions.
    pub timeout: Duration,
}

impl Pgbench<'_> {
    /// Makes one load for `duration`.
    pub async fn run(&self, server: &Server, duration: Duration) -> Result<Load, PgbenchError> {
        let connecting = CONNECTION_TIME * self.clients;
        self.load_for(server, time_option(duration, connecting))
            .await
    }

    /// Makes the same load for `warmup` and for `duration`, and reports the latter. A
    /// load that is cut short, since it takes long to connect, is made again.
    pub async fn run_after(
        &self,
        server: &Server,
        warmup: Duration,
        duration: Duration,
    ) -> Result<Load, PgbenchError> {
        let mut connecting = CONNECTION_TIME * self.clients;
        if !warmup.is_zero() {
            connecting = self
                .long_enough(server, warmup, connecting)
                .await?
                .connecting;
        }
        self.long_enough(server, duration, connecting).await
    }

    /// Makes a load for `duration`, if it takes about `connecting` to connect, else another one.
    async fn long_enough(
        &self,
        server: &Server,
        duration: Duration,
        mut connecting: Duration,
    ) -> Result<Load, PgbenchError> {
        loop {
            let seconds = time_option(duration, connecting);
            let load = self.load_for(server, seconds).await;
            match longer_to_connect(&load, seconds, duration) {
                Some(longer) if connecting < self.timeout => connecting = longer,
                _ => return load,
            }
        }
    }

    /// Makes one load of `seconds`, connecting included.
    async fn load_for(&self, server: &Server, seconds: u64) -> Result<Load, PgbenchError> {
        let folder = server.folder();
        fs::write(folder.join(SCRIPT), self.script)
            .map_err(|error| PgbenchError::Files(folder.to_owned(), error))?;
        let mut arguments = vec![
            "--no-vacuum".to_owned(),
            format!("--file={SCRIPT}"),
            format!("--protocol={}", self.protocol.name()),
            format!("--client={}", self.clients),
            format!("--jobs={}", self.jobs),
            format!("--time={seconds}"),
        ];
        for (name, value) in self.variables {
            arguments.push(format!("--define={name}={value}"));
        }
        let time = Duration::from_secs(seconds);
        parse(&execute(server, &arguments, time, self.timeout).await?)
    }
}

/// What pgbench's --time has to be for a load of `duration`. It counts from the
/// start, so that many sessions may have no time left once they are connected, and
/// it knows whole seconds only.
fn time_option(duration: Duration, connecting: Duration) -> u64 {
    let seconds = (duration + connecting).as_secs_f64().round() as u64;
    seconds.max(1)
}

/// What it takes to connect, if that has left less than half of `duration` for a load
/// of `seconds`, connecting included.
fn longer_to_connect(
    load: &Result<Load, PgbenchError>,
    seconds: u64,
    duration: Duration,
) -> Option<Duration> {
    let seconds = Duration::from_secs(seconds);
    match load {
        Ok(load) if load.connecting + duration / 2 > seconds => Some(load.connecting),
        // It does not tell.
        Err(PgbenchError::NoTransactions) => Some(2 * seconds),
        _ => None,
    }
}

/// Makes the tables of pgbench's own scripts, with 100,000 rows times `scale` in
/// pgbench_accounts.
pub async fn initialise(
    server: &Server,
    scale: u32,
    timeout: Duration,
) -> Result<(), PgbenchError> {
    let arguments = [
        "--initialize".to_owned(),
        "--quiet".to_owned(),
        format!("--scale={scale}"),
    ];
    execute(server, &arguments, TIME_TO_FILL * scale, timeout).await?;
    Ok(())
}

/// Runs pgbench to its end, which should come after about `time`, and returns
/// what it prints.
async fn execute(
    server: &Server,
    arguments: &[String],
    time: Duration,
    timeout: Duration,
) -> Result<String, PgbenchError> {
    let folder = server.folder();
    let in_folder = |error| PgbenchError::Files(folder.to_owned(), error);
    let mut command = Command::new(server.program("pgbench")?);
    command
        .args(arguments)
        .stdout(File::create(folder.join(OUTPUT)).map_err(in_folder)?)
        .stderr(File::create(folder.join(ERRORS)).map_err(in_folder)?);
    let mut process = server.start_program(command, Signal::SIGTERM)?;
    let status = tokio::time::timeout(time + timeout, process.wait())
        .await
        .map_err(|_| PgbenchError::Endless(timeout))?
        .map_err(in_folder)?;

    if !status.success() {
        return Err(PgbenchError::Failed {
            status,
            errors: first_lines(&read(&folder.join(ERRORS)).map_err(in_folder)?),
        });
    }
    read(&folder.join(OUTPUT)).map_err(in_folder)
}

/// Threads of pgbench: no more than can run at a time.
pub fn jobs(clients: u32) -> u32 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    clients.min(u32::try_from(cores).unwrap_or(u32::MAX))
}

fn read(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
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
    if transactions == Some(0) {
        return Err(PgbenchError::NoTransactions);
    }
    let connecting = value("initial connection time =").and_then(|text| text.parse().ok());
    let tps = value("tps =").and_then(|text| text.parse().ok());
    match (transactions, tps) {
        // Ratios are made of it.
        (Some(transactions), Some(tps)) if tps > 0.0 => Ok(Load {
            transactions,
            transactions_per_sec: tps,
            connecting: connecting
                .and_then(|milliseconds: f64| Duration::try_from_secs_f64(milliseconds / 1e3).ok())
                .unwrap_or_default(),
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
                connecting: Duration::from_micros(3411),
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
            &OUTPUT.replace("12381.218503", "-nan"),
            &OUTPUT.replace("12381.218503", "0.000000"),
        ] {
            let error = parse(output).unwrap_err();
            assert!(matches!(error, PgbenchError::Output(_)), "{error}");
        }
    }

    #[test]
    fn sessions_that_take_too_long_to_connect() {
        let error = parse(&OUTPUT.replace("12345", "0").replace("12381.218503", "-nan"));
        assert!(
            matches!(error, Err(PgbenchError::NoTransactions)),
            "{error:?}"
        );
    }

    #[test]
    fn older_versions_do_not_tell_how_long_they_connect() {
        let load = parse(&OUTPUT.replace("initial connection time", "other time")).unwrap();
        assert_eq!(load.connecting, Duration::ZERO);
    }

    #[test]
    fn the_time_to_connect_comes_on_top() {
        let ms = Duration::from_millis;
        assert_eq!(time_option(ms(3000), ms(90)), 3);
        assert_eq!(time_option(ms(3000), ms(2600)), 6);
        // 0 would mean that there is no limit.
        assert_eq!(time_option(ms(100), ms(0)), 1);
    }

    #[test]
    fn a_load_is_cut_short_by_connecting() {
        let ms = Duration::from_millis;
        let load = |connecting| {
            Ok(Load {
                transactions: 1,
                transactions_per_sec: 1.0,
                connecting,
            })
        };
        assert_eq!(longer_to_connect(&load(ms(2400)), 4, ms(3000)), None);
        assert_eq!(
            longer_to_connect(&load(ms(2600)), 4, ms(3000)),
            Some(ms(2600))
        );
        let none = Err(PgbenchError::NoTransactions);
        assert_eq!(longer_to_connect(&none, 4, ms(3000)), Some(ms(8000)));
        let failed = Err(PgbenchError::FailedTransactions(1));
        assert_eq!(longer_to_connect(&failed, 4, ms(3000)), None);
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
