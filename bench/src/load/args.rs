//! The command lines of `commit` and `notify`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Form, Plan, Workload};
use crate::cli::CommonArgs;
use crate::cli::values::{ascending, positive_seconds};
use crate::pgbench::{MAX_CLIENTS, Protocol};

/// More than one in a millisecond would be a load of its own.
const MAX_PROBES: i64 = 1000;

/// PostgreSQL's own limit, in microseconds.
const MAX_COMMIT_DELAY: i64 = 100_000;

/// For `all --quick`.
pub const QUICK_COMMIT: &[&str] = &["--writers=1,16", "--duration=1", "--runs=2"];
pub const QUICK_NOTIFY: &[&str] = &["--senders=1,32", "--duration=1", "--runs=2"];

/// What a notification adds to a transaction that writes
///
/// pgbench inserts rows, once with a NOTIFY in each transaction and once with an
/// equally long statement that does nothing in its place. This is measured for
/// each number of writers, while listeners read all notifications. Also
/// measures how long a notification is on its way meanwhile.
#[derive(Debug, clap::Args)]
pub struct CommitArgs {
    /// Numbers of sessions that write to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,4,16,64",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CLIENTS),
    )]
    writers: Vec<u32>,

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

    #[command(flatten)]
    pub load: LoadArgs,
}

impl CommitArgs {
    pub fn plan(&self) -> Plan {
        Plan {
            commit_delay: self.commit_delay,
            ..self
                .load
                .plan(Workload::Commit { form: self.form }, &self.writers)
        }
    }
}

/// Transactions per second that do nothing but NOTIFY
///
/// pgbench sends notifications, all of them on one channel, while listeners read
/// them. This is measured for each number of senders. Also measures how
/// long a notification is on its way meanwhile.
#[derive(Debug, clap::Args)]
pub struct NotifyArgs {
    /// Numbers of sessions that send to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CLIENTS),
    )]
    senders: Vec<u32>,

    #[command(flatten)]
    pub load: LoadArgs,
}

impl NotifyArgs {
    pub fn plan(&self) -> Plan {
        self.load.plan(Workload::Notify, &self.senders)
    }
}

/// What the benchmarks have in common that pgbench makes the load for.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Sessions that listen, and read everything that is sent
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=MAX_CLIENTS),
    )]
    listeners: u32,

    /// Make every load this long, in whole seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    duration: u32,

    /// Make the same load this long before each, without measuring, in whole seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    warmup: u32,

    /// Runs for each number of sessions and each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

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

    /// Give up when a connection or a transaction takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl LoadArgs {
    fn plan(&self, workload: Workload, clients: &[u32]) -> Plan {
        Plan {
            workload,
            clients: ascending(clients.to_vec()),
            listeners: self.listeners,
            duration: Duration::from_secs(self.duration.into()),
            warmup: Duration::from_secs(self.warmup.into()),
            runs: self.runs,
            protocol: self.protocol,
            commit_delay: None,
            probes_per_sec: self.probes,
            timeout: self.timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::benchmark::Benchmark;
    use crate::target::{Setting, Target};

    #[derive(Parser)]
    enum Subcommand {
        Commit(CommitArgs),
        Notify(NotifyArgs),
    }

    fn load_plan(arguments: &[&str]) -> Result<Plan, clap::Error> {
        let arguments = ["pinpoint-bench"].iter().chain(arguments);
        Ok(match Subcommand::try_parse_from(arguments)? {
            Subcommand::Commit(args) => args.plan(),
            Subcommand::Notify(args) => args.plan(),
        })
    }

    #[test]
    fn defaults_of_commit_and_notify() {
        let commit = Plan {
            workload: Workload::Commit {
                form: Form::Statement,
            },
            clients: vec![1, 4, 16, 64],
            listeners: 1,
            duration: Duration::from_secs(5),
            warmup: Duration::from_secs(1),
            runs: NonZeroU32::new(3).unwrap(),
            protocol: Protocol::Simple,
            commit_delay: None,
            probes_per_sec: 50,
            timeout: Duration::from_secs(60),
        };
        assert_eq!(load_plan(&["commit"]).unwrap(), commit);
        let notify = Plan {
            workload: Workload::Notify,
            clients: vec![1, 2, 4, 8, 16, 32, 64, 128],
            ..commit
        };
        assert_eq!(load_plan(&["notify"]).unwrap(), notify);
    }

    #[test]
    fn writers_are_sorted_and_made_unique() {
        let plan = load_plan(&["commit", "--writers", "8,2,8"]).unwrap();
        assert_eq!(plan.clients, [2, 8]);
    }

    #[test]
    fn a_commit_delay_is_set_unless_the_target_has_its_own() {
        let plan = load_plan(&["commit", "--commit-delay", "500"]).unwrap();
        let target: Target = "a=pg_config,commit_delay=7".parse().unwrap();
        let settings: Vec<String> = plan
            .configure(target)
            .unwrap()
            .settings
            .iter()
            .map(Setting::to_string)
            .collect();
        assert_eq!(
            settings,
            [
                "commit_delay = '500'",
                "commit_siblings = '0'",
                "commit_delay = '7'"
            ]
        );
    }

    #[test]
    fn contradictions_and_nonsense_are_refused_by_commit_and_notify() {
        for arguments in [
            &["commit", "--writers", "0"][..],
            &["commit", "--writers", ""],
            &["commit", "--writers", "1,,2"],
            &["commit", "--senders", "1"],
            &["commit", "--form", "rule"],
            &["commit", "--commit-delay", "100001"],
            &["commit", "--duration", "0"],
            &["commit", "--duration", "0.5"],
            &["notify", "--senders", "0"],
            &["notify", "--form", "trigger"],
            &["notify", "--commit-delay", "1"],
            &["notify", "--listeners", "0"],
            &["notify", "--protocol", "extended"],
            &["notify", "--probes", "0"],
            &["notify", "--warmup", "0.5"],
            &["notify", "--runs", "0"],
        ] {
            assert!(load_plan(arguments).is_err(), "accepted {arguments:?}");
        }
    }
}
