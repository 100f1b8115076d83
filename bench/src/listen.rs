//! The benchmark `listen`: how fast sessions LISTEN, UNLISTEN and NOTIFY
//! themselves, side by side. pgbench does it.
//!
//! The method is that of the discussion of PostgreSQL's own optimisation
//! ("Optimize LISTEN/NOTIFY", pgsql-hackers, July 2025), where it was to show
//! that a map of channels does not make LISTEN a bottleneck.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::cli::CommonArgs;
use crate::cli::values::positive_seconds;

use crate::pgbench::{Pgbench, Protocol};
use crate::results::{Axis, Better, Figure, Scale, Values};
use crate::server::Server;

/// PostgreSQL accepts no more connections (2^18 - 1, less its own processes).
const MAX_CONNECTIONS: i64 = 250_000;

/// For the time that is left to be told: what it takes to connect.
const CONNECTION_TIME: Duration = Duration::from_millis(3);

const TPS: &str = "transactions_per_sec";

/// For `all --quick`.
pub const QUICK: &[&str] = &[
    "--jobs=8",
    "--connections=100",
    "--duration=1",
    "--warmup=0",
    "--runs=1",
];

/// Transactions per second that LISTEN, UNLISTEN and NOTIFY
///
/// pgbench executes LISTEN, LISTEN and UNLISTEN, or LISTEN and NOTIFY, again and again. Each
/// session does so either on a channel of its own (unique), or all on the same one (common). This
/// is measured for each number of pgbench's threads, with as many connections as threads, and
/// with a fixed number of connections.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the sessions do
    #[arg(
        long,
        value_name = "NAME,NAME,...",
        value_delimiter = ',',
        value_enum,
        default_values_t = Workload::value_variants().iter().copied(),
    )]
    workload: Vec<Workload>,

    /// Numbers of pgbench's threads to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    jobs: Vec<u32>,

    /// Connections, when there are not as many as threads; 0 to leave this out
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(0..=MAX_CONNECTIONS),
    )]
    connections: u32,

    /// Make every run this long, in whole seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    duration: u32,

    /// Do the same this long before each run, without measuring, in whole seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    warmup: u32,

    /// Runs at each point, for each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

    /// Give up when connecting or a transaction takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        let mut jobs = self.jobs.clone();
        jobs.sort_unstable();
        jobs.dedup();
        let asked_for = |workload: &Workload| self.workload.contains(workload);
        Plan {
            workloads: Workload::value_variants()
                .iter()
                .copied()
                .filter(asked_for)
                .collect(),
            jobs,
            connections: self.connections,
            duration: Duration::from_secs(self.duration.into()),
            warmup: Duration::from_secs(self.warmup.into()),
            runs: self.runs,
            timeout: self.timeout,
        }
    }
}

/// What a transaction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(into = "String")]
pub enum Workload {
    /// LISTEN, each session on a channel of its own
    #[value(name = "listen_unique")]
    Unique,
    /// LISTEN, all sessions on one channel
    #[value(name = "listen_common")]
    Common,
    /// LISTEN and UNLISTEN, each session on a channel of its own
    #[value(name = "listen_unlisten_unique")]
    UnlistenUnique,
    /// LISTEN and UNLISTEN, all sessions on one channel
    #[value(name = "listen_unlisten_common")]
    UnlistenCommon,
    /// LISTEN and NOTIFY, each session on a channel of its own
    #[value(name = "listen_notify_unique")]
    NotifyUnique,
    /// LISTEN and NOTIFY, all sessions on one channel
    #[value(name = "listen_notify_common")]
    NotifyCommon,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no variant is left out");
        f.write_str(value.get_name())
    }
}

impl From<Workload> for String {
    fn from(workload: Workload) -> Self {
        workload.to_string()
    }
}

impl Workload {
    /// As a script of pgbench. What the channel is called begins with `prefix`.
    fn script(self, prefix: &str) -> String {
        let (unique, second) = match self {
            Self::Unique => (true, None),
            Self::Common => (false, None),
            Self::UnlistenUnique => (true, Some("UNLISTEN")),
            Self::UnlistenCommon => (false, Some("UNLISTEN")),
            Self::NotifyUnique => (true, Some("NOTIFY")),
            Self::NotifyCommon => (false, Some("NOTIFY")),
        };
        let channel = if unique { ":client_id" } else { "common" };
        std::iter::once("LISTEN")
            .chain(second)
            .map(|statement| format!("{statement} {prefix}{channel};\n"))
            .collect()
    }
}

/// How many sessions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connections {
    AsManyAsJobs,
    Fixed(u32),
}

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    workloads: Vec<Workload>,
    /// Numbers of pgbench's threads, ascending.
    jobs: Vec<u32>,
    /// In those measurements in which there are not as many as threads; 0 for none of them.
    connections: u32,
    #[serde(serialize_with = "as_seconds")]
    duration: Duration,
    #[serde(serialize_with = "as_seconds")]
    warmup: Duration,
    runs: NonZeroU32,
    #[serde(serialize_with = "as_seconds")]
    timeout: Duration,
}

impl Plan {
    /// The curves, by their names.
    fn curves(&self) -> impl Iterator<Item = (String, Workload, Connections)> {
        let fixed = (self.connections > 0).then_some(Connections::Fixed(self.connections));
        [Connections::AsManyAsJobs]
            .into_iter()
            .chain(fixed)
            .flat_map(|connections| {
                self.workloads.iter().map(move |&workload| {
                    let name = match connections {
                        Connections::AsManyAsJobs => workload.to_string(),
                        Connections::Fixed(count) => format!("{workload}_{count}"),
                    };
                    (name, workload, connections)
                })
            })
    }
}

impl Benchmark for Plan {
    type State = ();

    fn name(&self) -> &'static str {
        "listen"
    }

    fn question(&self) -> &'static str {
        "How many times per second can many sessions LISTEN, UNLISTEN and NOTIFY themselves?"
    }

    fn method(&self) -> Vec<String> {
        let mut method = vec![
            "pgbench executes a script of one or two statements, each a transaction of its own in \
             PostgreSQL and both together one transaction in pgbench's count: LISTEN; LISTEN and \
             UNLISTEN; LISTEN and NOTIFY. unique: each session on a channel of its own. common: \
             all on one channel. A LISTEN on a channel on which the session listens already does \
             nothing in PostgreSQL; that is what listen_unique and listen_common measure but for \
             the first transaction of each session, as their source does."
                .to_owned(),
            format!(
                "A run takes {:?} after {:?} that are not measured. Transactions per second are \
                 those that pgbench reports, without the time that it takes to connect. pgbench \
                 reads the notifications that its sessions get, and does not count them: here \
                 nothing checks that they arrive, which the other benchmarks do. A transaction \
                 that fails is an error.",
                self.duration, self.warmup
            ),
        ];
        method.push(match self.connections {
            0 => "There are as many connections as threads of pgbench.".to_owned(),
            count => format!(
                "There are as many connections as threads of pgbench, and {count} connections \
                 where the name ends with _{count}. With more threads than the machine has cores \
                 they compete with the server."
            ),
        });
        method.push(
            "The method is that of the discussion of PostgreSQL's own optimisation (\"Optimize \
             LISTEN/NOTIFY\", pgsql-hackers, July 2025, messages 3 and 8), listen_notify_common \
             excepted."
                .to_owned(),
        );
        method
    }

    fn axis(&self) -> Axis {
        Axis {
            name: "jobs".to_owned(),
            label: "threads of pgbench".to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            name: TPS.to_owned(),
            label: "transactions per second".to_owned(),
            better: Better::Higher,
            scale: Scale::Logarithmic,
            chart: true,
            is_ratio: false,
        }]
    }

    fn points(&self) -> Vec<PointId> {
        self.curves()
            .flat_map(|(name, _, connections)| {
                let sensible = self.jobs.iter().filter(move |&&jobs| match connections {
                    Connections::AsManyAsJobs => true,
                    // pgbench has no threads without a connection.
                    Connections::Fixed(count) => jobs <= count,
                });
                sensible.map(move |&jobs| PointId::of_workload(&name, jobs))
            })
            .collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        // Half of the runs have that many, and may have to connect twice.
        self.warmup + self.duration + CONNECTION_TIME * self.connections
    }

    fn sessions(&self) -> u32 {
        let most = self.jobs.last().copied().unwrap_or(0);
        most.max(self.connections)
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    fn programs(&self) -> &'static [&'static str] {
        &["pgbench"]
    }

    async fn set_up(&self, _server: &Server) -> anyhow::Result<()> {
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        _state: &mut (),
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let (_, workload, connections) = self
            .curves()
            .find(|(name, _, _)| *name == point.workload)
            .expect("every point is on a curve");
        let jobs = u32::try_from(point.x)?;
        let pgbench = Pgbench {
            script: &workload.script(&server.channel("listen_")),
            clients: match connections {
                Connections::AsManyAsJobs => jobs,
                Connections::Fixed(count) => count,
            },
            jobs,
            // A channel cannot be a parameter.
            protocol: Protocol::Simple,
            variables: &[],
            timeout: self.timeout,
        };
        let load = pgbench
            .run_after(server, self.warmup, self.duration)
            .await?;
        Ok([(TPS.to_owned(), load.transactions_per_sec)].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(jobs: &[u32], connections: u32) -> Plan {
        Plan {
            workloads: vec![Workload::Unique, Workload::NotifyCommon],
            jobs: jobs.to_vec(),
            connections,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            runs: NonZeroU32::MIN,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn scripts() {
        let scripts: Vec<String> = Workload::value_variants()
            .iter()
            .map(|workload| workload.script("c_"))
            .collect();
        assert_eq!(
            scripts,
            [
                "LISTEN c_:client_id;\n",
                "LISTEN c_common;\n",
                "LISTEN c_:client_id;\nUNLISTEN c_:client_id;\n",
                "LISTEN c_common;\nUNLISTEN c_common;\n",
                "LISTEN c_:client_id;\nNOTIFY c_:client_id;\n",
                "LISTEN c_common;\nNOTIFY c_common;\n",
            ]
        );
    }

    #[test]
    fn every_curve_has_as_many_connections_as_threads_or_a_fixed_number() {
        let points: Vec<(String, u64)> = plan(&[1, 8], 4)
            .points()
            .into_iter()
            .map(|point| (point.workload, point.x))
            .collect();
        let expected = [
            ("listen_unique", 1),
            ("listen_unique", 8),
            ("listen_notify_common", 1),
            ("listen_notify_common", 8),
            // Four connections keep no more than four threads busy.
            ("listen_unique_4", 1),
            ("listen_notify_common_4", 1),
        ]
        .map(|(name, x)| (name.to_owned(), x));
        assert_eq!(points, expected);
        assert_eq!(plan(&[1, 8], 0).points().len(), 4);
    }

    #[test]
    fn there_is_room_for_all_connections() {
        assert_eq!(plan(&[1, 8], 4).sessions(), 8);
        assert_eq!(plan(&[1, 8], 1000).sessions(), 1000);
    }
}
