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
use crate::cli::values::{MAX_CONNECTIONS, ascending, positive_seconds};
use crate::pgbench::{Pgbench, Protocol};
use crate::results::{Axis, Better, Figure, Scale, Values};
use crate::server::Server;

/// Threads of pgbench if the command line does not say, unless there are fewer connections.
const JOBS: u32 = 32;

/// For the time that is left to be told: what a connection adds to a run.
const CONNECTION_TIME: Duration = Duration::from_millis(6);

const TPS: &str = "transactions_per_sec";

/// For `all --quick`.
pub const QUICK: &[&str] = &[
    "--connections=8,64",
    "--duration=1",
    "--warmup=0",
    "--runs=1",
];

/// Transactions per second that LISTEN, UNLISTEN and NOTIFY
///
/// pgbench executes LISTEN, LISTEN and UNLISTEN, or LISTEN and NOTIFY, again and again. Each
/// session does so either on a channel of its own (unique), or all on the same one (common). This
/// is measured for each number of connections.
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

    /// Numbers of connections to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,1000",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    connections: Vec<u32>,

    /// Threads of pgbench, or as many as connections if there are fewer of them
    #[arg(
        long,
        value_name = "N",
        default_value_t = JOBS,
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    jobs: u32,

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

    /// Give up when connecting, or the last transaction of every session, takes longer
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        let asked_for = |workload: &Workload| self.workload.contains(workload);
        Plan {
            workloads: Workload::value_variants()
                .iter()
                .copied()
                .filter(asked_for)
                .collect(),
            connections: ascending(self.connections.clone()),
            jobs: self.jobs,
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

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    workloads: Vec<Workload>,
    /// Ascending.
    connections: Vec<u32>,
    /// Threads of pgbench, at most.
    jobs: u32,
    #[serde(serialize_with = "as_seconds")]
    duration: Duration,
    #[serde(serialize_with = "as_seconds")]
    warmup: Duration,
    runs: NonZeroU32,
    #[serde(serialize_with = "as_seconds")]
    timeout: Duration,
}

impl Plan {
    fn workload(&self, point: &PointId) -> Option<Workload> {
        let mut workloads = self.workloads.iter().copied();
        workloads.find(|workload| workload.to_string() == point.workload)
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
                "A run takes {} s after {} s that are not measured. Transactions per second are \
                 those that pgbench reports, without the time that it takes to connect. pgbench \
                 reads the notifications that its sessions get, and does not count them: here \
                 nothing checks that they arrive, which the other benchmarks do. A transaction \
                 that fails is an error.",
                self.duration.as_secs(),
                self.warmup.as_secs()
            ),
        ];
        method.push(format!(
            "pgbench has as many threads as connections, but no more than {}. With more threads \
             than the machine has cores they compete with the server.",
            self.jobs
        ));
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
            name: "connections".to_owned(),
            label: "connections".to_owned(),
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
        self.workloads
            .iter()
            .flat_map(|workload| {
                let connections = self.connections.iter();
                connections.map(move |&count| PointId::of_workload(workload, count))
            })
            .collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        let connections = self.connections.iter().sum::<u32>() / self.connections.len() as u32;
        self.warmup + self.duration + CONNECTION_TIME * connections
    }

    fn sessions(&self) -> u32 {
        self.connections.last().copied().unwrap_or(0)
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
        let workload = self
            .workload(point)
            .expect("every point is of a workload of the plan");
        let clients = u32::try_from(point.x)?;
        let pgbench = Pgbench {
            script: &workload.script(&server.channel("listen_")),
            clients,
            jobs: clients.min(self.jobs),
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
    fn every_workload_with_every_number_of_connections() {
        let plan = Plan {
            workloads: vec![Workload::Unique, Workload::NotifyCommon],
            connections: vec![1, 1000],
            jobs: 4,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            runs: NonZeroU32::MIN,
            timeout: Duration::from_secs(1),
        };
        let points: Vec<_> = plan
            .points()
            .iter()
            .map(|point| (plan.workload(point), point.x))
            .collect();
        let [first, second] = [Workload::Unique, Workload::NotifyCommon].map(Some);
        assert_eq!(
            points,
            [(first, 1), (first, 1000), (second, 1), (second, 1000)]
        );
        assert_eq!(plan.sessions(), 1000);
    }
}
