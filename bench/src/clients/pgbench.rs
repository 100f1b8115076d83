//! pgbench, which makes the load where a benchmark needs many busy sessions.
//!
//! One process makes the warm-up and what is measured after it, so that it is
//! the sessions that are measured which are warm. What it reports every second
//! (`--progress`) tells where the warm-up has ended.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use futures_util::future::try_join;
use nix::sys::signal::Signal;
use pinpoint_servers::connection::within;
use pinpoint_servers::process::first_lines;
use pinpoint_servers::server::Server;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

pub const PROGRAM: &str = "pgbench";

const SCRIPT: &str = "pgbench.sql";

/// Sessions that can be asked for; also of the listeners that read along with a load.
pub const MAX_CLIENTS: u32 = 10_000;

/// What it takes to connect a session, where that is not known better.
const CONNECTION_TIME: Duration = Duration::from_millis(3);

/// What it takes to fill the tables, for each 100,000 rows, where nothing is fast.
const TIME_TO_FILL: Duration = Duration::from_secs(2);

/// How statements are sent, by pgbench's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// As text
    Simple,
    /// As prepared statements
    Prepared,
}

/// What pgbench reports of one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// All that were made, those of the warm-up included.
    pub transactions: u64,
    /// After the warm-up, and without the time that it takes to connect.
    pub transactions_per_sec: f64,
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
    /// Not measured, at the beginning.
    pub warmup: Duration,
    pub duration: Duration,
    /// For all that comes on top: to connect, and the last transactions.
    pub timeout: Duration,
}

impl Pgbench<'_> {
    /// Makes one load, and says when the warm-up is over. A load that is cut short,
    /// since it takes long to connect, is made again.
    pub async fn run(&self, server: &Server, mut on_warm: impl FnMut()) -> anyhow::Result<Load> {
        let mut connecting = CONNECTION_TIME * self.clients;
        let mut transactions = 0;
        loop {
            let time = self.warmup + self.duration + connecting;
            let seconds = (time.as_secs_f64().round() as u64).max(1);
            let output = self.load(server, seconds, &mut on_warm).await?;
            let (count, rate) = parse(&output, self.warmup)?;
            transactions += count;
            match rate {
                Some(transactions_per_sec)
                    if output.connecting + self.duration / 2 <= time - self.warmup =>
                {
                    return Ok(Load {
                        transactions,
                        transactions_per_sec,
                    });
                }
                _ if connecting < self.timeout => {
                    connecting = output.connecting.max(2 * connecting + self.duration);
                }
                _ => bail!(
                    "pgbench had no time for a transaction when it had connected: make the runs \
                     longer (--duration), or ask for fewer sessions"
                ),
            }
        }
    }

    /// Makes one load of `seconds`, connecting included.
    async fn load(
        &self,
        server: &Server,
        seconds: u64,
        on_warm: &mut impl FnMut(),
    ) -> anyhow::Result<Output> {
        let folder = server.folder();
        fs::write(folder.join(SCRIPT), self.script).with_context(|| {
            format!(
                "could not write to {}: make room there or name another place with --temp-dir",
                folder.display()
            )
        })?;
        let protocol = self.protocol.to_possible_value();
        let mut arguments = vec![
            "--no-vacuum".to_owned(),
            format!("--file={SCRIPT}"),
            format!(
                "--protocol={}",
                protocol.as_ref().map_or("", |p| p.get_name())
            ),
            format!("--client={}", self.clients),
            format!("--jobs={}", self.jobs),
            format!("--time={seconds}"),
            "--progress=1".to_owned(),
        ];
        for (name, value) in self.variables {
            arguments.push(format!("--define={name}={value}"));
        }
        let limit = Duration::from_secs(seconds) + self.timeout;
        execute(server, &arguments, limit, self.warmup, on_warm).await
    }
}

/// What pgbench has printed.
#[derive(Debug, Default)]
struct Output {
    stdout: String,
    /// Its reports of every second: when, and transactions per second since the
    /// one before.
    progress: Vec<(f64, f64)>,
    /// The time that it took to connect; zero if it does not tell (PostgreSQL 13 and older).
    connecting: Duration,
}

/// Makes the tables of pgbench's own scripts, with 100,000 rows times `scale` in
/// pgbench_accounts.
pub async fn initialise(server: &Server, scale: u32, timeout: Duration) -> anyhow::Result<()> {
    let arguments = [
        "--initialize".to_owned(),
        "--quiet".to_owned(),
        format!("--scale={scale}"),
    ];
    let limit = TIME_TO_FILL * scale + timeout;
    execute(server, &arguments, limit, Duration::ZERO, &mut || ()).await?;
    Ok(())
}

/// Runs pgbench to its end, and says when the warm-up is over.
async fn execute(
    server: &Server,
    arguments: &[String],
    limit: Duration,
    warmup: Duration,
    on_warm: &mut impl FnMut(),
) -> anyhow::Result<Output> {
    let mut command = Command::new(server.program(PROGRAM)?);
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = server.start_program(command, Signal::SIGTERM)?;
    let (stdout, stderr) = process.take_output();
    let mut stdout = stdout.context("pgbench has no output")?;
    let mut lines = BufReader::new(stderr.context("pgbench has no output")?).lines();

    let mut output = Output::default();
    let mut errors = String::new();
    let mut is_warm = warmup.is_zero();
    if is_warm {
        on_warm();
    }
    let read = async {
        let read_errors = async {
            while let Some(line) = lines.next_line().await? {
                match parse_progress(&line) {
                    Some(report) => {
                        output.progress.push(report);
                        if !is_warm && is_after(report.0, warmup) {
                            is_warm = true;
                            on_warm();
                        }
                    }
                    None => errors = errors.clone() + &line + "\n",
                }
            }
            Ok(())
        };
        try_join(stdout.read_to_string(&mut output.stdout), read_errors).await?;
        process.wait().await
    };
    let status = within(limit, "pgbench", read)
        .await?
        .context("could not read what pgbench prints")?;
    ensure!(
        status.success(),
        "pgbench failed ({status}); mend what it complains of:\n{}",
        first_lines(&errors)
    );
    let connecting = value(&output.stdout, "initial connection time =");
    output.connecting = connecting
        .and_then(|text| text.parse::<f64>().ok())
        .and_then(|milliseconds| Duration::try_from_secs_f64(milliseconds / 1e3).ok())
        .unwrap_or_default();
    Ok(output)
}

/// Threads of pgbench: no more than can run at a time.
pub fn jobs(clients: u32) -> u32 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    clients.min(u32::try_from(cores).unwrap_or(u32::MAX))
}

/// `progress: 2.0 s, 12345.6 tps, lat 0.081 ms stddev 0.021, 0 failed`
fn parse_progress(line: &str) -> Option<(f64, f64)> {
    let (time, rest) = line.strip_prefix("progress: ")?.split_once(" s, ")?;
    let (tps, _) = rest.split_once(" tps")?;
    Some((time.parse().ok()?, tps.parse().ok()?))
}

/// Reports come a little early or late.
fn is_after(time: f64, warmup: Duration) -> bool {
    time > warmup.as_secs_f64() - 0.1
}

/// What follows a name at the beginning of a line.
fn value<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = output.lines().filter_map(|line| line.strip_prefix(name));
    lines.next()?.split_whitespace().next()
}

/// What pgbench prints at its end: how many transactions there were, and how many per
/// second after the warm-up, if there were any.
fn parse(output: &Output, warmup: Duration) -> anyhow::Result<(u64, Option<f64>)> {
    let text = &output.stdout;
    let unknown = || {
        format!(
            "pgbench reports no figures that could be understood:\n{}",
            first_lines(text)
        )
    };
    // PostgreSQL 14 and older do not count failures: there the session ends.
    let failed = value(text, "number of failed transactions:").unwrap_or("0");
    let failed: u64 = failed.parse().ok().with_context(unknown)?;
    ensure!(
        failed == 0,
        "{failed} transactions of pgbench failed, so that its figures are of no use"
    );
    let transactions = value(text, "number of transactions actually processed:");
    let transactions: u64 = transactions
        .and_then(|text| text.parse().ok())
        .with_context(unknown)?;
    if transactions == 0 {
        return Ok((0, None));
    }
    let tps = value(text, "tps =").and_then(|text| text.parse().ok());
    let tps = tps.filter(|tps: &f64| *tps > 0.0).with_context(unknown)?;

    let (mut before, mut from) = (0.0, 0.0);
    if !warmup.is_zero() {
        let reports = &output.progress;
        let Some(last) = reports.iter().position(|(time, _)| is_after(*time, warmup)) else {
            return Ok((transactions, None));
        };
        for (time, tps) in &reports[..=last] {
            before += tps * (time - from);
            from = *time;
        }
    }
    let (count, time) = (
        transactions as f64 - before,
        transactions as f64 / tps - from,
    );
    // Reports are rounded.
    let is_something = count >= 0.5 && time > 0.0;
    Ok((transactions, is_something.then_some(count / time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STDOUT: &str = "\
pgbench (15.20 (Debian 15.20-0+deb12u1))
transaction type: pgbench.sql
maximum number of tries: 1
duration: 4 s
number of transactions actually processed: 8000
number of failed transactions: 0 (0.000%)
latency average = 0.161 ms
initial connection time = 3.411 ms
tps = 2000.000000 (without initial connection time)
";

    fn output(stdout: &str, progress: &[&str]) -> Output {
        Output {
            stdout: stdout.to_owned(),
            progress: progress.iter().filter_map(|l| parse_progress(l)).collect(),
            connecting: Duration::ZERO,
        }
    }

    #[test]
    fn what_is_measured_begins_after_the_warm_up() {
        let progress = [
            "progress: 1.0 s, 500.0 tps, lat 0.081 ms stddev 0.021, 0 failed",
            "pgbench: error: something",
            "progress: 2.0 s, 1500.0 tps, lat 0.081 ms stddev 0.021, 0 failed",
        ];
        let output = output(STDOUT, &progress);
        for (seconds, rate) in [
            (0, Some(2000.0)),
            (1, Some(2500.0)),
            (2, Some(3000.0)),
            (3, None),
        ] {
            let found = parse(&output, Duration::from_secs(seconds)).unwrap();
            assert_eq!(found, (8000, rate));
        }
    }

    #[test]
    fn failed_transactions_spoil_the_figures() {
        let stdout = STDOUT.replace("failed transactions: 0 ", "failed transactions: 7 ");
        let error = parse(&output(&stdout, &[]), Duration::ZERO).unwrap_err();
        assert!(error.to_string().starts_with("7 transactions of pgbench"));
    }

    #[test]
    fn output_that_cannot_be_understood() {
        for stdout in [
            "",
            "pgbench: no\n",
            &STDOUT.replace("tps =", "tpm ="),
            &STDOUT.replace("8000", "many"),
            &STDOUT.replace("transactions: 0 ", "transactions: some "),
            // Nothing to make a ratio of.
            &STDOUT.replace("2000.0", "-nan"),
            &STDOUT.replace("2000.0", "0.0"),
        ] {
            let error = parse(&output(stdout, &[]), Duration::ZERO).unwrap_err();
            assert!(error.to_string().contains("no figures"), "{error}");
        }
    }

    #[test]
    fn sessions_that_take_too_long_to_connect() {
        let stdout = STDOUT.replace("8000", "0").replace("2000.0", "-nan");
        let found = parse(&output(&stdout, &[]), Duration::ZERO).unwrap();
        assert_eq!(found, (0, None));
    }
}
