//! Throughput under load: what a notification adds to a transaction that writes
//! (`commit`), and how many of them many sessions can send (`notify`).
//!
//! pgbench makes the load. Listeners in this program read every notification
//! of it, and are held to the number of transactions that pgbench reports. A
//! probe, one session that sends at fixed times, tells how long a notification
//! is on its way meanwhile.
//!
//! ```text
//!   form ─────► pgbench ──► server ──► listener ──┐ arrivals
//!     │                       ▲                   ▼
//!     └───────► probe ────────┘                measure ──► results
//!                 └───────── when it was sent ────▲
//! ```

mod form;
mod listener;
mod measure;
mod probe;
mod results;

use std::time::Duration;

use anyhow::Context;
use pinpoint_servers::options::{Numbers, numbers};
use pinpoint_servers::server::Server;
use serde::Serialize;

use self::form::Form;
use crate::clients::pgbench::{self, MAX_CLIENTS, Protocol};
use crate::report::number;
use crate::report::results::{Axis, Point, Scale, Values};
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::{CommonArgs, TimeArgs};

/// The probe, and the session that prepares each load.
const MORE_SESSIONS: u32 = 2;

/// A backlog of more than this fraction of a load is worth a warning.
const BACKLOG: f64 = 0.05;

/// More than one in a millisecond would be a load of its own.
const MAX_PROBES: i64 = 1000;

/// PostgreSQL's own limit, in microseconds.
const MAX_COMMIT_DELAY: i64 = 100_000;

/// What a notification adds to a transaction that writes
///
/// pgbench inserts rows, once with a NOTIFY in each transaction and once with an
/// equally long statement that does nothing in its place, or sends notifications and
/// nothing else (--form alone). This is measured for each number of sessions, while
/// listeners read all notifications. Also measures how long a notification is on its
/// way meanwhile.
///
/// Example: pinpoint-bench commit --writers 1,16 --duration 10s
#[derive(Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub struct CommitArgs {
    /// Numbers of sessions that write to measure with
    #[arg(
        long,
        alias = "senders",
        value_name = "N,N,...",
        default_value = "1,4,16,64",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    writers: Numbers,

    /// How the transactions notify
    #[arg(long, value_enum, default_value_t = Form::Statement)]
    form: Form,

    /// Set commit_delay of all servers, so that a fast disk looks like a slow one
    ///
    /// Every flush of WAL then takes this much longer (commit_siblings is 0).
    #[arg(
        long,
        value_name = "MICROSECONDS",
        value_parser = clap::value_parser!(u32).range(0..=MAX_COMMIT_DELAY),
    )]
    commit_delay: Option<u32>,

    /// Sessions that listen, and read everything that is sent
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLIENTS)),
    )]
    listeners: u32,

    /// How pgbench sends its statements
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,

    /// Notifications per second whose time of arrival is measured
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..=MAX_PROBES),
    )]
    probes: u32,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

impl Benchmark for CommitArgs {
    type State = ();

    fn describe(&self) -> anyhow::Result<Description> {
        let clients = self.form.clients_name();
        let load = match self.form {
            Form::Alone => {
                "pgbench sends notifications and does nothing else, all on one channel.".to_owned()
            }
            form => format!(
                "pgbench inserts rows, each in a transaction of its own that notifies ({form}). It \
                 is compared with the same transaction that has something else in the \
                 notification's place, which is as long and does nothing. In each run the two \
                 follow one another at once, in the other order in every second run."
            ),
        };
        let mut settings = Vec::new();
        if let Some(delay) = self.commit_delay {
            settings.push(format!("commit_delay={delay}").parse()?);
            // Whether or not other transactions are active.
            settings.push("commit_siblings=0".parse()?);
        }
        Ok(Description {
            name: if self.form == Form::Alone {
                "notify"
            } else {
                "commit"
            },
            question: if self.form == Form::Alone {
                "How many notifications per second can many sessions send?"
            } else {
                "What does a notification add to a transaction that writes?"
            },
            method: vec![
                load,
                format!(
                    "A load is {} s of warm-up, and {} s that are measured, of the same sessions. \
                     Every notification has to arrive at each of the {} sessions that listen, and \
                     is counted there.",
                    self.time.warmup.as_secs_f64(),
                    self.time.duration.as_secs_f64(),
                    self.listeners
                ),
                format!(
                    "Meanwhile one more session, the probe, sends the same transaction {} times \
                     per second, at fixed times. The latency of its notification is taken from \
                     when COMMIT has returned, and from when the transaction was due: a server \
                     that makes the probe wait is not excused.",
                    self.probes
                ),
            ],
            axis: Axis::new(clients, clients, Scale::Logarithmic),
            figures: results::figures(self.form.kinds()),
            points: self.writers.iter().map(PointId::at).collect(),
            run_time: (self.time.warmup + self.time.duration) * self.form.kinds().len() as u32,
            sessions: self.writers.last() + self.listeners + MORE_SESSIONS,
            programs: &[pgbench::PROGRAM],
            settings,
            needs_own_cluster: self
                .commit_delay
                .map(|_| "--commit-delay is a setting of the whole server"),
        })
    }

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn warnings(&self, points: &[Point]) -> Vec<String> {
        let limit = self.time.duration.mul_f64(BACKLOG);
        let mut behind = Vec::new();
        for point in points {
            for series in &point.series {
                let Some(backlog) = series.summary.get(results::BACKLOG_USEC) else {
                    continue;
                };
                let backlog = Duration::from_micros(backlog.max as u64);
                if backlog > limit {
                    behind.push(format!(
                        "{} with {} {}, {:.1} s",
                        series.target,
                        number::whole(point.x as f64),
                        self.form.clients_name(),
                        backlog.as_secs_f64()
                    ));
                }
            }
        }
        if behind.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "a listener could not keep up, and was still reading after the load ({}): \
             the latencies are those of a growing backlog",
            behind.join("; ")
        )]
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<()> {
        measure::set_up(self, server).await
    }

    async fn measure(
        &self,
        server: &Server,
        (): &mut (),
        point: &PointId,
        run: u32,
    ) -> anyhow::Result<Values> {
        let mut kinds = self.form.kinds().to_vec();
        if run.is_multiple_of(2) {
            kinds.reverse();
        }
        let mut loads = Vec::new();
        for kind in kinds {
            let load = measure::measure(self, kind, point.x, server)
                .await
                .with_context(|| format!("{kind} load"))?;
            loads.push((kind, load));
        }
        Ok(results::values(loads))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::report::results::Series;

    #[derive(Parser)]
    struct Commit {
        #[command(flatten)]
        args: CommitArgs,
    }

    #[test]
    fn a_backlog_gets_a_warning() {
        let args = Commit::parse_from(["commit", "--form=alone", "--duration=2"]).args;
        let warnings = |backlog| {
            let run = Values::from([(results::BACKLOG_USEC.to_owned(), backlog)]);
            args.warnings(&[Point {
                workload: String::new(),
                x: 64,
                series: vec![Series::of("stock".to_owned(), vec![run], None)],
            }])
        };
        assert_eq!(
            warnings(125_000.0),
            [
                "a listener could not keep up, and was still reading after the load (stock with \
                 64 senders, 0.1 s): the latencies are those of a growing backlog"
            ]
        );
        assert_eq!(warnings(99_000.0), [""; 0]);
    }
}
