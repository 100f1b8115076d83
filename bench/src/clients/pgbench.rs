//! pgbench, which makes the load where a benchmark needs many busy sessions.
//!
//! One process makes the warm-up and what is measured after it, so that it is
//! the sessions that are measured which are warm. What it reports every second
//! (`--progress`) tells where the warm-up has ended.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pinpoint_servers::cluster::cannot_write;
use pinpoint_servers::process::first_lines;
use pinpoint_servers::server::Server;

pub const PROGRAM: &str = "pgbench";

const SCRIPT: &str = "pgbench.sql";

/// Sessions that can be asked for; also of the listeners that read along with a load.
pub const MAX_CLIENTS: u32 = 10_000;

/// What it takes to connect a session, where that is not known better.
const CONNECTION_TIME: Duration = Duration::from_millis(5);

/// What pgbench reports of one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// All that were made, those of the warm-up included.
    pub transactions: u64,
    /// After the warm-up, and without the time that it takes to connect.
    pub transactions_per_sec: f64,
}

/// A load that pgbench is to make.
#[derive(Debug, Clone)]
pub struct Pgbench {
    /// Sessions.
    pub clients: u32,
    /// Threads, at most. By default as many as can run at a time.
    pub jobs: Option<u32>,
    /// Variables of the script, and their values at the beginning of each session.
    pub variables: &'static [(&'static str, &'static str)],
    /// Not measured, at the beginning.
    pub warmup: Duration,
    pub duration: Duration,
}

impl Pgbench {
    /// Makes one load, in which every session repeats the script, and says when the warm-up
    /// is over. A load that is cut short, since it takes long to connect, is made again.
    /// `timeout` is for all that comes on top: to connect, and the last transactions.
    pub async fn run(
        &self,
        server: &Server,
        script: &str,
        timeout: Duration,
        on_warm: impl Fn(),
    ) -> anyhow::Result<Load> {
        let folder = &server.folder;
        fs::write(folder.join(SCRIPT), script).with_context(|| cannot_write(folder))?;
        let mut connecting = CONNECTION_TIME * self.clients;
        let mut transactions = 0;
        loop {
            let time = self.warmup + self.duration + connecting;
            let seconds = (time.as_secs_f64().round() as u64).max(1);
            let output = self.load(server, seconds, timeout, &on_warm).await?;
            let (count, rate) = parse(&output, self.warmup, self.duration / 2)?;
            transactions += count;
            match rate {
                Some(transactions_per_sec) => {
                    return Ok(Load {
                        transactions,
                        transactions_per_sec,
                    });
                }
                _ if connecting < timeout => {
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
        timeout: Duration,
        on_warm: impl Fn(),
    ) -> anyhow::Result<Output> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let mut arguments = vec![
            "--no-vacuum".to_owned(),
            format!("--file={SCRIPT}"),
            format!("--client={}", self.clients),
            format!("--jobs={}", self.jobs.unwrap_or(cores).min(self.clients)),
            format!("--time={seconds}"),
            "--progress=1".to_owned(),
        ];
        for (name, value) in self.variables {
            arguments.push(format!("--define={name}={value}"));
        }

        let mut progress = Vec::new();
        let mut is_warm = self.warmup.is_zero();
        if is_warm {
            on_warm();
        }
        let on_line = |line: &str| {
            let Some(report) = parse_progress(line) else {
                return false;
            };
            progress.push(report);
            if !is_warm && is_after(report.0, self.warmup) {
                is_warm = true;
                on_warm();
            }
            true
        };
        let limit = Duration::from_secs(seconds) + timeout;
        let stdout = server.run_program(PROGRAM, &arguments, limit, on_line);
        let stdout = stdout.await?;
        let connecting = value(&stdout, "initial connection time =")
            .and_then(|text| text.parse::<f64>().ok())
            .and_then(|milliseconds| Duration::try_from_secs_f64(milliseconds / 1e3).ok())
            .unwrap_or_default();
        Ok(Output {
            stdout,
            progress,
            connecting,
        })
    }
}

/// What pgbench has printed.
#[derive(Debug)]
struct Output {
    stdout: String,
    /// Its reports of every second: when, and transactions per second since the
    /// one before.
    progress: Vec<(f64, f64)>,
    /// The time that it took to connect; zero if it does not tell (PostgreSQL 13 and older).
    connecting: Duration,
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
/// second after the warm-up, if there were any, and it took at least as long as `least`. A rate
/// of less time is of no use, because reports come a little early or late.
fn parse(output: &Output, warmup: Duration, least: Duration) -> anyhow::Result<(u64, Option<f64>)> {
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
    let is_something = count >= 0.5 && time > 0.0 && time >= least.as_secs_f64();
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
            let found = parse(&output, Duration::from_secs(seconds), Duration::ZERO).unwrap();
            assert_eq!(found, (8000, rate));
        }
        let warmup = Duration::from_secs(2); // of 4 seconds
        for (least, is_enough) in [(1.9, true), (2.1, false)] {
            let found = parse(&output, warmup, Duration::from_secs_f64(least)).unwrap();
            assert_eq!(found.1.is_some(), is_enough);
        }
    }

    #[test]
    fn failed_transactions_spoil_the_figures() {
        let stdout = STDOUT.replace("failed transactions: 0 ", "failed transactions: 7 ");
        let error = parse(&output(&stdout, &[]), Duration::ZERO, Duration::ZERO).unwrap_err();
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
            let error = parse(&output(stdout, &[]), Duration::ZERO, Duration::ZERO).unwrap_err();
            assert!(error.to_string().contains("no figures"), "{error}");
        }
    }

    #[test]
    fn sessions_that_take_too_long_to_connect() {
        let stdout = STDOUT.replace("8000", "0").replace("2000.0", "-nan");
        let found = parse(&output(&stdout, &[]), Duration::ZERO, Duration::ZERO).unwrap();
        assert_eq!(found, (0, None));
    }
}
