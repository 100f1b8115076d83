//! The benchmarks `commit` and `notify`: throughput under load.
//!
//! pgbench makes the load. Listeners in this program read every notification
//! of it, and are held to the number of transactions that pgbench reports. A
//! probe, one session that sends at fixed times, tells how long a notification
//! is on its way meanwhile.
//!
//! ```text
//!  workload ──► pgbench ──► server ──► listener ──┐ arrivals
//!     │                       ▲                   ▼
//!     └───────► probe ────────┘                measure ──► results
//!                 └───────── when it was sent ────▲
//! ```

mod args;
mod listener;
mod measure;
mod probe;
mod results;
mod workload;

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

pub use self::args::{CommitArgs, NotifyArgs, QUICK_COMMIT, QUICK_NOTIFY};
pub use self::workload::{Form, Workload};
use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::pgbench::Protocol;
use crate::results::{Axis, Figure, Point, Scale, Values};
use crate::server::Server;
use crate::target::{Setting, Target};

/// The probe, and the session that prepares each load.
const MORE_SESSIONS: u32 = 2;

/// A backlog of more than this fraction of a load is worth a warning.
const BACKLOG: f64 = 0.05;

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub workload: Workload,
    /// Numbers of sessions that make the load, ascending.
    pub clients: Vec<u32>,
    pub listeners: u32,
    /// Of one load. pgbench knows whole seconds only.
    #[serde(serialize_with = "as_seconds")]
    pub duration: Duration,
    #[serde(serialize_with = "as_seconds")]
    pub warmup: Duration,
    /// Runs for each number of clients and each target.
    pub runs: NonZeroU32,
    pub protocol: Protocol,
    /// commit_delay of all servers, in microseconds.
    pub commit_delay: Option<u32>,
    pub probes_per_sec: u32,
    /// For anything that takes no longer in a server that works.
    #[serde(serialize_with = "as_seconds")]
    pub timeout: Duration,
}

impl Benchmark for Plan {
    type State = ();

    fn name(&self) -> &'static str {
        match self.workload {
            Workload::Commit { .. } => "commit",
            Workload::Notify => "notify",
        }
    }

    fn question(&self) -> &'static str {
        match self.workload {
            Workload::Commit { .. } => "What does a notification add to a transaction that writes?",
            Workload::Notify => "How many notifications per second can many sessions send?",
        }
    }

    fn method(&self) -> Vec<String> {
        let load = match self.workload {
            Workload::Commit { form } => format!(
                "pgbench inserts rows, each in a transaction of its own that notifies ({form}). It \
                 is compared with the same transaction that has something else in the \
                 notification's place, which is as long and does nothing. In each run the two \
                 follow one another at once, in the other order in every second run."
            ),
            Workload::Notify => {
                "pgbench sends notifications and does nothing else, all on one channel.".to_owned()
            }
        };
        vec![
            load,
            format!(
                "A load is {} s of warm-up, and {} s that are measured. The targets take turns, \
                 run by run. Every notification has to arrive at each of the {} sessions that \
                 listen, and is counted there.",
                self.warmup.as_secs(),
                self.duration.as_secs(),
                self.listeners
            ),
            format!(
                "Meanwhile one more session, the probe, sends the same transaction {} times per \
                 second, at fixed times. The latency of its notification is taken from when \
                 COMMIT has returned, and from when the transaction was due: a server that makes \
                 the probe wait is not excused.",
                self.probes_per_sec
            ),
        ]
    }

    fn axis(&self) -> Axis {
        let name = self.workload.clients_name();
        Axis {
            name: name.to_owned(),
            label: name.to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        results::figures(self.workload.kinds())
    }

    fn points(&self) -> Vec<PointId> {
        self.clients.iter().copied().map(PointId::at).collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        (self.warmup + self.duration) * self.workload.kinds().len() as u32
    }

    fn sessions(&self) -> u32 {
        self.clients.last().copied().unwrap_or(0) + self.listeners + MORE_SESSIONS
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    fn configure(&self, mut target: Target) -> anyhow::Result<Target> {
        if let Some(delay) = self.commit_delay {
            let settings = [
                format!("commit_delay={delay}"),
                // Whether or not other transactions are active.
                "commit_siblings=0".to_owned(),
            ]
            .iter()
            .map(|setting| setting.parse())
            .collect::<Result<Vec<Setting>, _>>()?;
            target.settings.splice(0..0, settings);
        }
        Ok(target)
    }

    fn programs(&self) -> &'static [&'static str] {
        &["pgbench"]
    }

    fn needs_own_cluster(&self) -> Option<&'static str> {
        self.commit_delay
            .map(|_| "--commit-delay is a setting of the whole server")
    }

    fn warnings(&self, points: &[Point]) -> Vec<String> {
        let limit = self.duration.mul_f64(BACKLOG);
        let behind: Vec<String> = points
            .iter()
            .flat_map(|point| point.series.iter().map(move |series| (point, series)))
            .filter_map(|(point, series)| {
                let backlog = series.summary.get(results::BACKLOG_USEC)?.max;
                let backlog = Duration::from_micros(backlog as u64);
                (backlog > limit).then(|| {
                    format!(
                        "{} with {} {}, {:.1} s",
                        series.target,
                        point.x,
                        self.workload.clients_name(),
                        backlog.as_secs_f64()
                    )
                })
            })
            .collect();
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
        Ok(measure::set_up(self, server).await?)
    }

    async fn measure(
        &self,
        server: &Server,
        (): &mut (),
        point: &PointId,
        run: u32,
    ) -> anyhow::Result<Values> {
        let clients = u32::try_from(point.x)?;
        let mut kinds = self.workload.kinds().to_vec();
        if run.is_multiple_of(2) {
            kinds.reverse();
        }
        let mut loads = Vec::new();
        for kind in kinds {
            let load = measure::measure(self, kind, clients, server)
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
    use crate::results::Series;

    #[derive(Parser)]
    struct Notify {
        #[command(flatten)]
        args: NotifyArgs,
    }

    fn plan() -> Plan {
        Notify::parse_from(["notify", "--duration=2"]).args.plan()
    }

    fn point(backlog: f64) -> Point {
        let run = Values::from([(results::BACKLOG_USEC.to_owned(), backlog)]);
        Point {
            workload: String::new(),
            x: 64,
            series: vec![Series::of("stock".to_owned(), vec![run], None)],
        }
    }

    #[test]
    fn a_backlog_gets_a_warning() {
        assert_eq!(
            plan().warnings(&[point(125_000.0)]),
            [
                "a listener could not keep up, and was still reading after the load (stock with \
              64 senders, 0.1 s): the latencies are those of a growing backlog"
            ]
        );
    }

    #[test]
    fn a_short_one_gets_none() {
        assert_eq!(plan().warnings(&[point(99_000.0)]), [""; 0]);
    }
}
