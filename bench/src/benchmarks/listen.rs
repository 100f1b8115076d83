//! `listen`: how fast sessions LISTEN, UNLISTEN and NOTIFY themselves, side by side.
//! `overhead`: what a server loses that does something else. Each workload is a script of
//! pgbench.
//!
//! The method of `listen` is that of the discussion of PostgreSQL's own
//! optimisation ("Optimize LISTEN/NOTIFY", pgsql-hackers, July 2025), where it was to
//! show that a map of channels does not make LISTEN a bottleneck.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, ValueEnum};
use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, number, numbers};
use serde::Serialize;

use super::options::{TimeArgs, named, points};
use crate::clients::pgbench::{self, Pgbench};
use crate::report::results::{Figure, Kind, Scale};
use crate::workload::load::Load;
use crate::workload::{Activity, Benchmark, Workload};

const TPS: &str = "transactions_per_sec";

/// Rows of the table that `overhead` selects from, which is like that of pgbench.
const ACCOUNTS: u32 = 100_000;

/// The workloads of `listen`.
pub const LISTEN: [Script; 6] = [
    Script::ListenUnique,
    Script::ListenCommon,
    Script::ListenUnlistenUnique,
    Script::ListenUnlistenCommon,
    Script::ListenNotifyUnique,
    Script::ListenNotifyCommon,
];

/// Those of `overhead`.
pub const OVERHEAD: [Script; 2] = [Script::SelectOnly, Script::SelectOnlyListening];

#[derive(Debug, clap::Args, Serialize)]
pub struct ListenArgs {
    /// Workloads to measure
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "NAME,NAME,...",
        value_delimiter = ',',
        default_value = "listen_unique,listen_common,listen_unlisten_unique,\
            listen_unlisten_common,listen_notify_unique,listen_notify_common",
        value_enum,
    )]
    workload: Vec<Script>,

    /// Numbers of connections
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1,2,4,8,16,32,1000",
        value_parser = numbers(1..=MAX_CONNECTIONS),
    )]
    connections: Numbers,

    /// Maximum number of threads of pgbench [default: number of cores]
    #[arg(long, value_name = "N", value_parser = number(1..=MAX_CONNECTIONS))]
    jobs: Option<u32>,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,
}

/// What a transaction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Script {
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
    /// SELECT, in sessions that have executed LISTEN once
    SelectOnlyListening,
}

/// Takes some of the scripts.
pub fn script_parser(scripts: &[Script]) -> impl TypedValueParser<Value = Script> + use<> {
    let values = scripts.iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(values)
        .map(|name| Script::from_str(&name, false).expect("it is one of the possible values"))
}

impl Script {
    /// The variable `listening` is 0 at the beginning, in each session.
    fn text(self) -> String {
        let select = format!(
            "\\set aid random(1, {ACCOUNTS})\n\
             SELECT abalance FROM accounts WHERE aid = :aid;"
        );
        let (unique, common) = ("{channel}{client}", "{channel}common");
        match self {
            Self::ListenUnique => format!("LISTEN {unique};"),
            Self::ListenCommon => format!("LISTEN {common};"),
            Self::ListenUnlistenUnique => format!("LISTEN {unique};\nUNLISTEN {unique};"),
            Self::ListenUnlistenCommon => format!("LISTEN {common};\nUNLISTEN {common};"),
            Self::ListenNotifyUnique => format!("LISTEN {unique};\nNOTIFY {unique};"),
            Self::ListenNotifyCommon => format!("LISTEN {common};\nNOTIFY {common};"),
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

impl ListenArgs {
    pub fn describe_listen(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let workloads = "pgbench executes a script of one or two statements: LISTEN; LISTEN and \
                         UNLISTEN; LISTEN and NOTIFY. Each statement is a transaction of \
                         PostgreSQL. pgbench counts each execution of the script as one \
                         transaction. unique: each session has a channel of its own. common: all \
                         sessions have the same channel. If a session already listens on a \
                         channel, LISTEN does nothing. listen_unique and listen_common measure \
                         this case, like their source (\"Optimize LISTEN/NOTIFY\", \
                         pgsql-hackers, July 2025, messages 3 and 8). pgbench reads the \
                         notifications of its sessions, and does not count them.";
        self.describe(about, workloads.to_owned())
    }

    pub fn describe_overhead(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let workloads = format!(
            "Each transaction of pgbench selects one row by its key, like its built-in script \
             select-only (pgbench -S), from a table of {ACCOUNTS} rows. select_only: the sessions do not \
             listen. select_only_listening: each session has executed LISTEN once. There are no \
             notifications, so the ratio should be 1."
        );
        let mut benchmark = self.describe(about, workloads)?;
        benchmark.figures[0].scale = Scale::Linear;
        benchmark.setup = vec![
            format!(
                "CREATE TABLE accounts AS SELECT aid, 0 AS abalance, ' '::char(84) AS filler \
                 FROM generate_series(1, {ACCOUNTS}) AS aid"
            ),
            "ALTER TABLE accounts ADD PRIMARY KEY (aid)".to_owned(),
            "VACUUM ANALYZE accounts".to_owned(),
        ];
        Ok(benchmark)
    }

    fn describe(&self, about: Benchmark, workloads: String) -> anyhow::Result<Benchmark> {
        let options = [("connections", &self.connections)];
        let workload = |script, [clients]: [u32; 1]| self.workload(script, clients);
        Ok(Benchmark {
            method: vec![
                workloads,
                format!(
                    "A run takes {} s after {} s that are not measured, in the same sessions. \
                     Transactions per second are those that pgbench reports, without the time that \
                     it takes to connect. A transaction that fails is an error.",
                    self.time.duration.as_secs_f64(),
                    self.time.warmup.as_secs_f64()
                ),
            ],
            figures: vec![Figure::new(TPS, "transactions per second", Kind::Rate).drawn()],
            points: points(&about.axis, options, &named(&self.workload), workload)?,
            programs: vec![pgbench::PROGRAM],
            ..about
        })
    }

    fn workload(&self, script: Script, clients: u32) -> Workload {
        let pgbench = Pgbench {
            jobs: self.jobs,
            variables: &[("listening", "0")],
            ..self.time.pgbench(clients)
        };
        let load = Load::of_script("listen_", pgbench, TPS, Vec::new(), script.text());
        Workload::from(Activity::Load(load))
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::name;
    use super::*;
    use crate::workload::transaction::{Statement, render};

    #[test]
    fn scripts() {
        let text = |script: &Script| {
            let statement = Statement::Plain(script.text());
            let rendered = render(&[statement], "c_", ":client_id", "");
            format!("{}:\n{}\n", name(script), rendered[0])
        };
        let scripts: String = Script::value_variants().iter().map(text).collect();
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
        \set aid random(1, 100000)
        SELECT abalance FROM accounts WHERE aid = :aid;
        select_only_listening:
        \if :listening = 0
        LISTEN c_common;
        \set listening 1
        \endif
        \set aid random(1, 100000)
        SELECT abalance FROM accounts WHERE aid = :aid;
        ");
    }
}
