//! How fast sessions LISTEN, UNLISTEN and NOTIFY themselves, side by side
//! (`listen`), and what a server loses that does something else (`overhead`). pgbench
//! does it, by a script for each workload.
//!
//! The method of `listen` is that of the discussion of PostgreSQL's own
//! optimisation ("Optimize LISTEN/NOTIFY", pgsql-hackers, July 2025), where it was to
//! show that a map of channels does not make LISTEN a bottleneck.

use std::time::Duration;

use clap::ValueEnum;
use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, numbers};
use pinpoint_servers::server::Server;
use serde::Serialize;

use crate::clients::pgbench::{self, Pgbench, Protocol};
use crate::report::results::{Axis, Figure, Kind, Scale, Values};
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::{CommonArgs, TimeArgs};

/// Rows of pgbench_accounts for each unit of the scale.
const ACCOUNTS: u32 = 100_000;

/// For the time that is left to be told: what a connection adds to a run.
const CONNECTION_TIME: Duration = Duration::from_millis(6);

const TPS: &str = "transactions_per_sec";

/// Transactions per second that LISTEN, UNLISTEN and NOTIFY, or look up a row
///
/// pgbench executes LISTEN, LISTEN and UNLISTEN, or LISTEN and NOTIFY, again and again. Each
/// session does so either on a channel of its own (unique), or all on the same one (common). The
/// workloads whose names begin with select look up one row by its key, as pgbench -S does.
///
/// Example: pinpoint-bench listen --workload listen_notify_unique --connections 8,64
#[derive(Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub struct ListenArgs {
    /// What the sessions do
    #[arg(
        long,
        value_name = "NAME,NAME,...",
        default_value = "listen_unique,listen_common,listen_unlisten_unique,\
            listen_unlisten_common,listen_notify_unique,listen_notify_common",
        value_parser = workloads,
    )]
    workload: Workloads,

    /// Numbers of connections to measure with
    #[arg(
        long,
        alias = "clients",
        value_name = "N,N,...",
        default_value = "1,2,4,8,16,32,1000",
        value_parser = numbers(1..=MAX_CONNECTIONS),
    )]
    connections: Numbers,

    /// Threads of pgbench, at most [default: as many as the machine has cores]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)),
    )]
    jobs: Option<u32>,

    /// How pgbench looks up rows (a channel cannot be a parameter)
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,

    /// Size of the table that rows are looked up in, in 100,000 rows
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    scale: u32,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

/// In the order in which they are measured, each once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Workloads(Vec<Workload>);

fn workloads(text: &str) -> Result<Workloads, String> {
    let parse = |name: &str| {
        Workload::from_str(name, false).map_err(|_| {
            let known = Workload::value_variants().iter().map(|w| w.name());
            let known: Vec<&str> = known.collect();
            format!(
                "there is no workload \"{name}\": name some of {}",
                known.join(", ")
            )
        })
    };
    let mut workloads = text
        .split(',')
        .map(|name| parse(name.trim()))
        .collect::<Result<Vec<Workload>, _>>()?;
    workloads.sort_unstable();
    workloads.dedup();
    Ok(Workloads(workloads))
}

/// What a transaction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum Workload {
    /// LISTEN, each session on a channel of its own
    ListenUnique,
    /// LISTEN, all sessions on one channel
    ListenCommon,
    /// LISTEN and UNLISTEN, each session on a channel of its own
    ListenUnlistenUnique,
    /// LISTEN and UNLISTEN, all sessions on one channel
    ListenUnlistenCommon,
    /// LISTEN and NOTIFY, each session on a channel of its own
    ListenNotifyUnique,
    /// LISTEN and NOTIFY, all sessions on one channel
    ListenNotifyCommon,
    /// SELECT, in sessions that have never executed LISTEN
    SelectOnly,
    /// SELECT, in sessions each of which has executed LISTEN once
    SelectOnlyListening,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::ListenUnique => "listen_unique",
            Self::ListenCommon => "listen_common",
            Self::ListenUnlistenUnique => "listen_unlisten_unique",
            Self::ListenUnlistenCommon => "listen_unlisten_common",
            Self::ListenNotifyUnique => "listen_notify_unique",
            Self::ListenNotifyCommon => "listen_notify_common",
            Self::SelectOnly => "select_only",
            Self::SelectOnlyListening => "select_only_listening",
        }
    }

    fn selects(self) -> bool {
        matches!(self, Self::SelectOnly | Self::SelectOnlyListening)
    }

    /// As a script of pgbench. What the channel is called begins with `prefix`. The
    /// variable `listening` is 0 at the beginning, in each session.
    fn script(self, prefix: &str, scale: u32) -> String {
        let unique = format!("{prefix}:client_id");
        let common = format!("{prefix}common");
        let rows = u64::from(ACCOUNTS) * u64::from(scale);
        let select = format!(
            "\\set aid random(1, {rows})\n\
             SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
        );
        match self {
            Self::ListenUnique => format!("LISTEN {unique};\n"),
            Self::ListenCommon => format!("LISTEN {common};\n"),
            Self::ListenUnlistenUnique => format!("LISTEN {unique};\nUNLISTEN {unique};\n"),
            Self::ListenUnlistenCommon => format!("LISTEN {common};\nUNLISTEN {common};\n"),
            Self::ListenNotifyUnique => format!("LISTEN {unique};\nNOTIFY {unique};\n"),
            Self::ListenNotifyCommon => format!("LISTEN {common};\nNOTIFY {common};\n"),
            Self::SelectOnly => select,
            Self::SelectOnlyListening => format!(
                "\\if :listening = 0\n\
                 LISTEN {common};\n\
                 \\set listening 1\n\
                 \\endif\n\
                 {select}"
            ),
        }
    }
}

impl Benchmark for ListenArgs {
    type State = ();

    fn describe(&self) -> anyhow::Result<Description> {
        let workloads = &self.workload.0;
        let is_overhead = workloads.iter().all(|workload| workload.selects());
        let mut method = Vec::new();
        if workloads.iter().any(|workload| !workload.selects()) {
            method.push(
                "pgbench executes a script of one or two statements, each a transaction of its \
                 own in PostgreSQL and both together one transaction in pgbench's count: LISTEN; \
                 LISTEN and UNLISTEN; LISTEN and NOTIFY. unique: each session on a channel of its \
                 own. common: all on one channel. A LISTEN on a channel on which the session \
                 listens already does nothing in PostgreSQL; that is what listen_unique and \
                 listen_common measure, as their source does (\"Optimize LISTEN/NOTIFY\", \
                 pgsql-hackers, July 2025, messages 3 and 8). pgbench reads the notifications that \
                 its sessions get, and does not count them."
                    .to_owned(),
            );
        }
        if workloads.iter().any(|workload| workload.selects()) {
            method.push(format!(
                "pgbench looks up one row by its key in each transaction, as its own script \
                 select-only (pgbench -S) does, in a table of {} rows. select_only: the sessions \
                 do not listen. select_only_listening: each has executed LISTEN once. Nothing is \
                 notified, so the ratio should be 1.",
                u64::from(ACCOUNTS) * u64::from(self.scale)
            ));
        }
        method.push(format!(
            "A run takes {} s after {} s that are not measured, in the same sessions. Transactions \
             per second are those that pgbench reports, without the time that it takes to \
             connect. A transaction that fails is an error.",
            self.time.duration.as_secs_f64(),
            self.time.warmup.as_secs_f64()
        ));
        let connections = &self.connections;
        let average = connections.iter().sum::<u32>() / connections.iter().count() as u32;
        let points = workloads.iter().flat_map(|workload| {
            let at = |count| PointId::of_workload(workload.name(), count);
            connections.iter().map(at)
        });
        Ok(Description {
            name: if is_overhead { "overhead" } else { "listen" },
            question: if is_overhead {
                "What does the library cost a server that does something else?"
            } else {
                "How many times per second can many sessions LISTEN, UNLISTEN and NOTIFY \
                 themselves?"
            },
            method,
            axis: Axis::new("connections", "connections", Scale::Logarithmic),
            figures: vec![
                Figure::new(TPS, "transactions per second", Kind::Rate)
                    .on_scale(if is_overhead {
                        Scale::Linear
                    } else {
                        Scale::Logarithmic
                    })
                    .drawn(),
            ],
            points: points.collect(),
            run_time: self.time.warmup + self.time.duration + CONNECTION_TIME * average,
            sessions: connections.last(),
            programs: &[pgbench::PROGRAM],
            settings: Vec::new(),
            needs_own_cluster: None,
        })
    }

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<()> {
        if self.workload.0.iter().any(|workload| workload.selects()) {
            pgbench::initialise(server, self.scale, self.common.runs.timeout).await?;
        }
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        (): &mut (),
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let mut workloads = self.workload.0.iter();
        let workload = workloads
            .find(|workload| workload.name() == point.workload)
            .expect("every point is of a workload of the plan");
        let pgbench = Pgbench {
            script: &workload.script(&server.channel("listen_"), self.scale),
            variables: &[("listening", "0")],
            clients: point.x,
            jobs: self
                .jobs
                .map_or(pgbench::jobs(point.x), |jobs| jobs.min(point.x)),
            protocol: if workload.selects() {
                self.protocol
            } else {
                Protocol::Simple
            },
            warmup: self.time.warmup,
            duration: self.time.duration,
            timeout: self.common.runs.timeout,
        };
        let load = pgbench.run(server, || ()).await?;
        Ok([(TPS.to_owned(), load.transactions_per_sec)].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts() {
        let scripts: String = Workload::value_variants()
            .iter()
            .map(|workload| format!("{}:\n{}", workload.name(), workload.script("c_", 3)))
            .collect();
        insta::assert_snapshot!(scripts, @r"
        listen_unique:
        LISTEN c_:client_id;
        listen_common:
        LISTEN c_common;
        listen_unlisten_unique:
        LISTEN c_:client_id;
        UNLISTEN c_:client_id;
        listen_unlisten_common:
        LISTEN c_common;
        UNLISTEN c_common;
        listen_notify_unique:
        LISTEN c_:client_id;
        NOTIFY c_:client_id;
        listen_notify_common:
        LISTEN c_common;
        NOTIFY c_common;
        select_only:
        \set aid random(1, 300000)
        SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
        select_only_listening:
        \if :listening = 0
        LISTEN c_common;
        \set listening 1
        \endif
        \set aid random(1, 300000)
        SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
        ");
    }

    #[test]
    fn workloads_have_one_order() {
        let parsed = workloads("select_only, listen_unique,select_only").unwrap();
        assert_eq!(parsed.0, [Workload::ListenUnique, Workload::SelectOnly]);
        assert!(
            workloads("listen_twice")
                .unwrap_err()
                .contains("listen_unique")
        );
        for workload in Workload::value_variants() {
            assert_eq!(workloads(workload.name()).unwrap().0, [*workload]);
        }
    }
}
