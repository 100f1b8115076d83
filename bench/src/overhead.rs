//! The benchmark `overhead`: what a server loses that has pg_pinpoint loaded
//! and does something else. It should be nothing.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::cli::CommonArgs;
use crate::cli::values::{ascending, positive_seconds};
use crate::pgbench::{self, Pgbench, Protocol};
use crate::results::{Axis, Better, Figure, Scale, Values};
use crate::server::Server;

/// Rows of pgbench_accounts for each unit of the scale.
const ACCOUNTS: u32 = 100_000;

const TPS: &str = "transactions_per_sec";

/// For `all --quick`.
pub const QUICK: &[&str] = &["--clients=1,8", "--duration=1", "--warmup=0", "--runs=4"];

/// Transactions per second of pgbench -S, where the library has nothing to do
///
/// Each transaction looks up one row by its key, as pgbench's own select-only script does; once in
/// sessions that do not listen, and once in sessions that have executed LISTEN before.
/// Nothing is notified.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whether the sessions listen
    #[arg(
        long,
        value_name = "NAME,NAME,...",
        value_delimiter = ',',
        value_enum,
        default_values_t = Workload::value_variants().iter().copied(),
    )]
    workload: Vec<Workload>,

    /// Numbers of sessions to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,4,16",
        value_parser = clap::value_parser!(u32).range(1..=pgbench::MAX_CLIENTS),
    )]
    clients: Vec<u32>,

    /// Size of the table, in 100,000 rows
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    scale: u32,

    /// Make every run this long, in whole seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    duration: u32,

    /// Do the same this long before each run, without measuring, in whole seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    warmup: u32,

    /// Runs at each point, for each target
    #[arg(long, value_name = "N", default_value = "5")]
    runs: NonZeroU32,

    /// How pgbench sends its statements
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,

    /// Give up when a connection or a transaction takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        Plan {
            workloads: ascending(self.workload.clone()),
            clients: ascending(self.clients.clone()),
            scale: self.scale,
            duration: Duration::from_secs(self.duration.into()),
            warmup: Duration::from_secs(self.warmup.into()),
            runs: self.runs,
            protocol: self.protocol,
            timeout: self.timeout,
        }
    }
}

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    workloads: Vec<Workload>,
    /// Numbers of sessions, ascending.
    clients: Vec<u32>,
    scale: u32,
    #[serde(serialize_with = "as_seconds")]
    duration: Duration,
    #[serde(serialize_with = "as_seconds")]
    warmup: Duration,
    runs: NonZeroU32,
    protocol: Protocol,
    #[serde(serialize_with = "as_seconds")]
    timeout: Duration,
}

/// Whether the sessions listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// They have never executed LISTEN
    #[value(name = "select_only")]
    SelectOnly,
    /// Each has executed LISTEN, once
    #[value(name = "select_only_listening")]
    SelectOnlyListening,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SelectOnly => "select_only",
            Self::SelectOnlyListening => "select_only_listening",
        })
    }
}

impl Workload {
    fn of(point: &PointId) -> Self {
        if point.workload == Self::SelectOnlyListening.to_string() {
            Self::SelectOnlyListening
        } else {
            Self::SelectOnly
        }
    }

    /// As a script of pgbench. The variable `listening` is 0 at the beginning, in
    /// each session.
    fn script(self, scale: u32, channel: &str) -> String {
        let listen = match self {
            Self::SelectOnly => String::new(),
            Self::SelectOnlyListening => format!(
                "\\if :listening = 0\n\
                 LISTEN {channel};\n\
                 \\set listening 1\n\
                 \\endif\n"
            ),
        };
        let rows = u64::from(ACCOUNTS) * u64::from(scale);
        format!(
            "{listen}\
             \\set aid random(1, {rows})\n\
             SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
        )
    }
}

impl Benchmark for Plan {
    type State = ();

    fn name(&self) -> &'static str {
        "overhead"
    }

    fn question(&self) -> &'static str {
        "What does the library cost a server that does something else?"
    }

    fn method(&self) -> Vec<String> {
        vec![
            format!(
                "pgbench looks up one row by its key in each transaction, as its own script \
                 select-only (pgbench -S) does, in a table of {} rows. select_only: the sessions \
                 do not listen. select_only_listening: each has executed LISTEN once, before its \
                 first look-up. Nothing is notified.",
                u64::from(ACCOUNTS) * u64::from(self.scale)
            ),
            format!(
                "A run takes {} s after {} s that are not measured. Transactions per second are \
                 those that pgbench reports, without the time that it takes to connect. A \
                 transaction that fails is an error. pgbench has as many threads as sessions, but \
                 no more than the machine has cores.",
                self.duration.as_secs(),
                self.warmup.as_secs()
            ),
            "The ratio should be 1, within what the runs of one server differ by.".to_owned(),
        ]
    }

    fn axis(&self) -> Axis {
        Axis {
            name: "clients".to_owned(),
            label: "sessions".to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            name: TPS.to_owned(),
            label: "transactions per second".to_owned(),
            better: Better::Higher,
            scale: Scale::Linear,
            chart: true,
            is_ratio: false,
        }]
    }

    fn points(&self) -> Vec<PointId> {
        self.workloads
            .iter()
            .flat_map(|workload| {
                let clients = self.clients.iter();
                clients.map(move |&clients| PointId::of_workload(workload, clients))
            })
            .collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        self.warmup + self.duration
    }

    fn sessions(&self) -> u32 {
        self.clients.last().copied().unwrap_or(0)
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    fn programs(&self) -> &'static [&'static str] {
        &["pgbench"]
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<()> {
        Ok(pgbench::initialise(server, self.scale, self.timeout).await?)
    }

    async fn measure(
        &self,
        server: &Server,
        _state: &mut (),
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let clients = u32::try_from(point.x)?;
        let pgbench = Pgbench {
            script: &Workload::of(point).script(self.scale, &server.channel("overhead")),
            clients,
            jobs: pgbench::jobs(clients),
            protocol: self.protocol,
            variables: &[("listening", "0")],
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
        let select = "\\set aid random(1, 300000)\n\
                      SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n";
        assert_eq!(Workload::SelectOnly.script(3, "c"), select);
        assert_eq!(
            Workload::SelectOnlyListening.script(3, "c"),
            format!("\\if :listening = 0\nLISTEN c;\n\\set listening 1\n\\endif\n{select}")
        );
    }

    #[test]
    fn every_number_of_sessions_with_and_without_listen() {
        let workloads = [Workload::SelectOnly, Workload::SelectOnlyListening];
        let plan = Plan {
            workloads: workloads.to_vec(),
            clients: vec![1, 8],
            scale: 1,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            runs: NonZeroU32::MIN,
            protocol: Protocol::Simple,
            timeout: Duration::from_secs(1),
        };
        let points: Vec<_> = plan
            .points()
            .iter()
            .map(|point| (Workload::of(point), point.x))
            .collect();
        let [silent, listening] = workloads;
        assert_eq!(
            points,
            [(silent, 1), (silent, 8), (listening, 1), (listening, 8)]
        );
        assert_eq!(plan.sessions(), 8);
    }
}
