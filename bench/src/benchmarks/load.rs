//! Throughput under load: what a notification adds to a transaction that writes
//! (`commit`), how many of them many sessions can send (`notify`), and what it takes if
//! many listen on the channel, as the workers of a job queue do (`queue`).
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

pub mod form;
pub mod listener;
mod measure;
pub mod probe;
mod results;
mod workload;

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ArgAction;
use pinpoint_servers::options::{Numbers, numbers};
use pinpoint_servers::server::Server;
use serde::Serialize;

use self::form::Form;
use self::measure::Scene;
use self::probe::ProbeArgs;
use self::workload::Workload;
use crate::clients::pgbench::{self, MAX_CLIENTS, Protocol};
use crate::report::number;
use crate::report::results::{Axis, Point, Scale, Values};
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::{CommonArgs, TimeArgs};

/// The probe, the session that prepares each load, and the one that looks at all others.
const MORE_SESSIONS: u32 = 3;

/// For the time that is left to be told: what it takes to connect a listener.
const CONNECTION_TIME: Duration = Duration::from_millis(3);

/// A backlog of more than this fraction of a load is worth a warning.
const BACKLOG: f64 = 0.05;

/// PostgreSQL's own limit, in microseconds.
const MAX_COMMIT_DELAY: i64 = 100_000;

/// What a notification adds to a transaction that writes
///
/// pgbench inserts rows, once with a NOTIFY in each transaction and once with an
/// equally long statement that does nothing in its place, or sends notifications and
/// nothing else (--form alone). This is measured for each number of sessions, while
/// listeners read all notifications; or for each number of listeners, if --listeners
/// has several. Also measures how long a notification is on its way meanwhile.
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

    /// Sessions that listen on the channel, and read everything that they get
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    listeners: Numbers,

    /// Who is to get a notification [default: broadcast]
    ///
    /// Listeners ask for it by a setting of their sessions; where the server does not
    /// know that, everybody gets everything.
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        value_enum,
    )]
    workload: Vec<Workload>,

    /// How pgbench sends its statements
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,

    #[command(flatten)]
    #[serde(flatten)]
    probe: ProbeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

impl CommitArgs {
    /// Is it about the number of listeners?
    fn is_queue(&self) -> bool {
        self.listeners.vary() || (!self.writers.vary() && !self.workload.is_empty())
    }

    fn workloads(&self) -> &[Workload] {
        match &self.workload[..] {
            [] => &[Workload::Broadcast],
            given => given,
        }
    }

    /// What varies from point to point.
    fn numbers(&self) -> (&Numbers, &'static str) {
        match self.is_queue() {
            true => (&self.listeners, "listeners"),
            false => (&self.writers, self.form.clients_name()),
        }
    }

    fn points(&self) -> Vec<PointId> {
        let (numbers, _) = self.numbers();
        let at = |x| {
            let of = move |workload| PointId::of_workload(workload, x);
            self.workloads().iter().map(of)
        };
        match self.workloads().len() {
            1 => numbers.iter().map(PointId::at).collect(),
            _ => numbers.iter().flat_map(at).collect(),
        }
    }

    fn scene(&self, point: &PointId) -> Scene {
        let of_point = |numbers: &Numbers, varies| match varies {
            true => point.x,
            false => numbers.first(),
        };
        // If there is only one workload, its points do not name it.
        let mut workloads = self.workloads().iter();
        let named = workloads.find(|workload| workload.to_string() == point.workload);
        Scene {
            writers: of_point(&self.writers, !self.is_queue()),
            listeners: of_point(&self.listeners, self.is_queue()),
            workload: *named.unwrap_or(&self.workloads()[0]),
        }
    }

    fn name(&self) -> &'static str {
        match self.form {
            _ if self.is_queue() => "queue",
            Form::Alone => "notify",
            _ => "commit",
        }
    }

    fn question(&self) -> &'static str {
        match self.form {
            _ if self.is_queue() => {
                "How many transactions per second can notify a channel that many listen on?"
            }
            Form::Alone => "How many notifications per second can many sessions send?",
            _ => "What does a notification add to a transaction that writes?",
        }
    }

    /// What has to be said of many listeners.
    fn method_of_queue(&self) -> Vec<String> {
        vec![
            format!(
                "This is the shape of a job queue: {} sessions write, and all listeners are on \
                 one channel. broadcast: every listener gets every notification. folded: they \
                 set pinpoint.fold, so that identical notifications that wait for a listener \
                 arrive there once. shared: they set pinpoint.shared_channels, so that each \
                 notification goes to a few of them. A server that does not know these settings \
                 does the same in all three.",
                self.writers
            ),
            "Apart from the servers' work for the writers stands what it takes to listen: \
             processor time divided by the number of transactions, of the server processes of \
             the listeners, and of the threads of this program that read them, which is the \
             same work for all servers. On a machine with few cores they take it from the \
             writers."
                .to_owned(),
        ]
    }
}

impl Benchmark for CommitArgs {
    type State = ();

    fn describe(&self) -> anyhow::Result<Description> {
        ensure!(
            !(self.writers.vary() && self.listeners.vary()),
            "of --writers and --listeners only one can have several numbers"
        );
        let (_, label) = self.numbers();
        let points = self.points();
        let listeners = points.iter().map(|point| self.scene(point).listeners);
        let connecting = CONNECTION_TIME * (listeners.sum::<u32>() / points.len() as u32);
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
        let mut method = vec![
            load,
            format!(
                "A load is {} s of warm-up, and {} s that are measured, of the same sessions. \
                 Every notification has to arrive at each of the sessions that listen ({}), and \
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
                self.probe.probes
            ),
        ];
        if self.is_queue() {
            method.extend(self.method_of_queue());
        }
        Ok(Description {
            name: self.name(),
            question: self.question(),
            method,
            axis: Axis::new(label, label, Scale::Logarithmic),
            figures: results::figures(self.form.kinds(), self.is_queue()),
            points,
            run_time: (self.time.warmup + self.time.duration + connecting)
                * self.form.kinds().len() as u32,
            sessions: self.writers.last() + self.listeners.last() + MORE_SESSIONS,
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
        let (_, label) = self.numbers();
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
                        "{} with {} {label}, {:.1} s",
                        series.target,
                        number::whole(point.x as f64),
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
            let load = measure::measure(self, kind, self.scene(point), server)
                .await
                .with_context(|| format!("{kind} load"))?;
            loads.push((kind, load));
        }
        Ok(results::values(loads, self.is_queue()))
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

    fn parse(arguments: &[&str]) -> CommitArgs {
        Commit::parse_from(["commit"].iter().chain(arguments)).args
    }

    #[test]
    fn writers_or_listeners_are_varied() {
        use Workload::{Broadcast, Folded, Shared};

        for (arguments, name, expected) in [
            (
                &["--writers=1,4", "--listeners=3"][..],
                "commit",
                &[(1, 3, Broadcast), (4, 3, Broadcast)][..],
            ),
            (
                &["--writers=1,4", "--workload=shared"],
                "commit",
                &[(1, 1, Shared), (4, 1, Shared)],
            ),
            (&["--writers=4"], "commit", &[(4, 1, Broadcast)]),
            (
                &["--writers=4", "--listeners=2,9", "--workload=folded,shared"],
                "queue",
                &[
                    (4, 2, Folded),
                    (4, 2, Shared),
                    (4, 9, Folded),
                    (4, 9, Shared),
                ],
            ),
            (
                &["--writers=4", "--listeners=9", "--workload=folded"],
                "queue",
                &[(4, 9, Folded)],
            ),
        ] {
            let args = parse(arguments);
            let description = args.describe().unwrap();
            assert_eq!(description.name, name);
            let scenes = description.points.iter().map(|point| args.scene(point));
            let scenes: Vec<_> = scenes
                .map(|scene| (scene.writers, scene.listeners, scene.workload))
                .collect();
            assert_eq!(scenes, expected);
        }
        let error = parse(&["--writers=1,2", "--listeners=1,2"]).describe();
        assert!(error.unwrap_err().to_string().contains("only one can have"));
    }

    #[test]
    fn a_backlog_gets_a_warning() {
        let args = parse(&["--form=alone", "--duration=2"]);
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
