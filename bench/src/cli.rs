//! The command line.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::load::{self, Form, Protocol, Workload};
use crate::pingpong::{Length, Plan};
use crate::target::{Setting, Target};
use crate::torture;

/// More listeners than PostgreSQL accepts connections (2^18 - 1, less its own
/// processes) cannot be asked for.
const MAX_IDLE: i64 = 250_000;

/// Of the sessions of pgbench, and of the listeners that read along.
const MAX_CLIENTS: i64 = 10_000;

/// More than one in a millisecond would be a load of its own.
const MAX_PROBES: i64 = 1000;

/// PostgreSQL's own limit, in microseconds.
const MAX_COMMIT_DELAY: i64 = 100_000;

/// Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.
///
/// Every subcommand makes throwaway clusters, takes its measurements on them in
/// turn, and removes them. No other cluster is touched. Started as root, the
/// servers run as the user `postgres`.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Pingpong(PingpongArgs),
    Commit(CommitArgs),
    Notify(NotifyArgs),
    Torture(TortureArgs),
}

/// Round trips per second between two sessions, while others listen on
/// channels of their own
///
/// Two sessions LISTEN on two channels, and each answers the other's
/// notification with a NOTIFY. This is measured for each number of further
/// sessions, which are connected and LISTEN, each on a channel of its own on
/// which nothing is ever sent.
#[derive(Debug, Args)]
pub struct PingpongArgs {
    /// Numbers of idle listeners to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "0,10,100,1000",
        value_parser = clap::value_parser!(u32).range(0..=MAX_IDLE),
        conflicts_with_all = ["idle_step", "max_idle"],
    )]
    idle: Vec<u32>,

    /// Instead of --idle: begin with none and grow by N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_IDLE))]
    idle_step: Option<u32>,

    /// With --idle-step: grow up to N idle listeners
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(0..=MAX_IDLE),
        requires = "idle_step",
    )]
    max_idle: u32,

    /// Make every run this long
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = positive_seconds)]
    duration: Duration,

    /// Instead of --duration: make every run N round trips long
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    round_trips: Option<NonZeroU64>,

    /// Go back and forth this long before each run, without measuring
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warmup: Duration,

    /// Runs for each number of idle listeners and each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

    /// Give up when one round trip, or one connection, takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub clusters: ClusterArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl PingpongArgs {
    pub fn plan(&self) -> Plan {
        let mut idle = match self.idle_step {
            Some(step) => (0..=self.max_idle).step_by(step as usize).collect(),
            None => self.idle.clone(),
        };
        // Listeners are only ever added, so that those of the row before stay.
        idle.sort_unstable();
        idle.dedup();

        Plan {
            idle,
            length: match self.round_trips {
                Some(count) => Length::RoundTrips(count),
                None => Length::Duration(self.duration),
            },
            warmup: self.warmup,
            runs: self.runs,
            timeout: self.timeout,
        }
    }
}

/// What a notification adds to a transaction that writes
///
/// pgbench inserts rows, once with a NOTIFY in each transaction and once with an
/// equally long statement that does nothing in its place. This is measured for
/// each number of writers, while listeners read all notifications. Also
/// measures how long a notification is on its way meanwhile.
#[derive(Debug, Args)]
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
    pub fn plan(&self) -> load::Plan {
        load::Plan {
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
#[derive(Debug, Args)]
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
    pub fn plan(&self) -> load::Plan {
        self.load.plan(Workload::Notify, &self.senders)
    }
}

/// What the benchmarks have in common that pgbench makes the load for.
#[derive(Debug, Args)]
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
    pub clusters: ClusterArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl LoadArgs {
    fn plan(&self, workload: Workload, clients: &[u32]) -> load::Plan {
        let mut clients = clients.to_vec();
        clients.sort_unstable();
        clients.dedup();

        load::Plan {
            workload,
            clients,
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

/// Does every listener receive exactly what was committed, in commit order?
///
/// Many writers insert rows and NOTIFY, and are cancelled, terminated and
/// abandoned in mid-commit, while many listeners come and go. What each of them
/// receives is compared with what logical decoding reports, which needs the
/// plugin test_decoding of PostgreSQL's contrib. Exit code 0: no difference; 1:
/// a difference, a hang or a crash, which is shown; 2: the run itself failed.
#[derive(Debug, Args)]
pub struct TortureArgs {
    /// Go on for this long
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    duration: Duration,

    /// Do what a run with this seed did [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Sessions that write
    #[arg(
        long,
        value_name = "N",
        default_value_t = 24,
        value_parser = clap::value_parser!(u32).range(1..i64::from(torture::FENCE_BASE)),
    )]
    writers: u32,

    /// Sessions that listen
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(1..i64::from(torture::FENCE_BASE)),
    )]
    listeners: u32,

    /// Channels that are written to
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..i64::from(torture::FENCE_BASE)),
    )]
    channels: u32,

    /// Plant a fault into pg_pinpoint, which the torture must find or bear
    #[arg(long, value_enum, default_value_t = Fault::None)]
    fault: Fault,

    /// Anything that takes longer is a hang
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub clusters: ClusterArgs,
}

impl TortureArgs {
    /// `random` is the seed if none was asked for.
    pub fn plan(&self, random: u64) -> torture::Plan {
        torture::Plan {
            seed: self.seed.unwrap_or(random),
            duration: self.duration,
            writers: self.writers,
            listeners: self.listeners,
            channels: self.channels,
            fault: match self.fault {
                Fault::None => None,
                Fault::ArrivalOrder => Some("arrival_order"),
                Fault::Lookup => Some("lookup"),
            },
            timeout: self.timeout,
        }
    }
}

/// Values of pinpoint.debug_fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    None,
    /// Publish in order of arrival: a difference is to be found
    #[value(name = "arrival_order")]
    ArrivalOrder,
    /// Fail to read the channel map after commit: every listener is woken, and nothing lost
    Lookup,
}

/// Which servers to measure, and how they are set up.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers")]
pub struct ClusterArgs {
    /// pg_config of the PostgreSQL to measure, once stock and once with pg_pinpoint
    #[arg(
        long,
        value_name = "PATH",
        default_value = "pg_config",
        conflicts_with = "target"
    )]
    pg_config: PathBuf,

    /// Instead of --pg-config: a server to measure; the first is the baseline (repeatable)
    ///
    /// NAME=PG_CONFIG may be followed by `preload=LIBRARY` (for
    /// shared_preload_libraries), `extension=EXTENSION` (for CREATE EXTENSION)
    /// and settings of postgresql.conf as `NAME=VALUE`, each any number of times,
    /// with commas between them.
    #[arg(
        long,
        value_name = "NAME=PG_CONFIG[,preload=LIBRARY][,extension=EXTENSION][,SETTING=VALUE]..."
    )]
    target: Vec<Target>,

    /// A setting of postgresql.conf for all targets (repeatable)
    ///
    /// Without it the servers run with PostgreSQL's own defaults, fsync included.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<Setting>,

    /// Where to make the throwaway clusters [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
}

impl ClusterArgs {
    /// The targets, the baseline first, with the settings for all of them before their own.
    pub fn targets(&self) -> Vec<Target> {
        self.targets_or(vec![
            Target::stock(&self.pg_config),
            Target::pinpoint(&self.pg_config),
        ])
    }

    /// The same where there is nothing to compare: with pg_pinpoint only, unless
    /// the command line says otherwise.
    pub fn targets_to_test(&self) -> Vec<Target> {
        self.targets_or(vec![Target::pinpoint(&self.pg_config)])
    }

    fn targets_or(&self, default: Vec<Target>) -> Vec<Target> {
        let mut targets = if self.target.is_empty() {
            default
        } else {
            self.target.clone()
        };
        for target in &mut targets {
            target.settings.splice(0..0, self.setting.iter().cloned());
        }
        targets
    }

    pub fn temp_dir(&self) -> PathBuf {
        self.temp_dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

/// Where the results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Form of the results on standard output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Also write every single run to FILE, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Also write everything that was measured, and on what, to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// Tab-separated values, for programs
    Tsv,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn positive_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<PingpongArgs, clap::Error> {
        let command = ["pinpoint-bench", "pingpong"];
        match Cli::try_parse_from(command.iter().chain(arguments))?.command {
            Command::Pingpong(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    fn plan(arguments: &[&str]) -> Plan {
        parse(arguments).expect("valid arguments").plan()
    }

    #[test]
    fn the_command_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults() {
        assert_eq!(
            plan(&[]),
            Plan {
                idle: vec![0, 10, 100, 1000],
                length: Length::Duration(Duration::from_secs(3)),
                warmup: Duration::from_secs(1),
                runs: NonZeroU32::new(3).unwrap(),
                timeout: Duration::from_secs(60),
            }
        );
    }

    #[test]
    fn idle_counts_are_sorted_and_made_unique() {
        assert_eq!(plan(&["--idle", "100,0,100,7"]).idle, [0, 7, 100]);
    }

    #[test]
    fn idle_step_grows_up_to_the_maximum() {
        assert_eq!(
            plan(&["--idle-step", "100", "--max-idle", "250"]).idle,
            [0, 100, 200]
        );
        assert_eq!(plan(&["--idle-step", "500"]).idle, [0, 500, 1000]);
        assert_eq!(plan(&["--idle-step", "5", "--max-idle", "0"]).idle, [0]);
    }

    #[test]
    fn round_trips_replace_the_duration() {
        assert_eq!(
            plan(&["--round-trips", "10000"]).length,
            Length::RoundTrips(NonZeroU64::new(10_000).unwrap())
        );
    }

    #[test]
    fn fractions_of_seconds() {
        let plan = plan(&["--duration", "0.25", "--warmup", "0"]);
        assert_eq!(plan.length, Length::Duration(Duration::from_millis(250)));
        assert_eq!(plan.warmup, Duration::ZERO);
    }

    #[test]
    fn contradictions_and_nonsense_are_refused() {
        for arguments in [
            &["--round-trips", "5", "--duration", "1"][..],
            &["--idle", "1", "--idle-step", "1"],
            &["--idle", "1", "--max-idle", "1"],
            &["--max-idle", "1"],
            &["--idle-step", "0"],
            &["--idle", ""],
            &["--idle", "-1"],
            &["--idle", "1,,2"],
            &["--idle", "250001"],
            &["--round-trips", "0"],
            &["--runs", "0"],
            &["--duration", "0"],
            &["--duration", "-1"],
            &["--duration", "nan"],
            &["--duration", "inf"],
            &["--warmup", "soon"],
            &["--timeout", "0"],
            &["--format", "xml"],
            &["--setting", "fsync"],
            &["--target", "a"],
            &["--target", "a=pg_config", "--pg-config", "pg_config"],
        ] {
            assert!(parse(arguments).is_err(), "accepted {arguments:?}");
        }
    }

    /// The plan of `commit` or `notify`.
    fn load_plan(arguments: &[&str]) -> Result<load::Plan, clap::Error> {
        match Cli::try_parse_from(["pinpoint-bench"].iter().chain(arguments))?.command {
            Command::Commit(args) => Ok(args.plan()),
            Command::Notify(args) => Ok(args.plan()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_of_commit_and_notify() {
        let commit = load::Plan {
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
        let notify = load::Plan {
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
            .prepare(target)
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

    #[test]
    fn default_targets_are_stock_and_pinpoint_of_one_pg_config() {
        let targets = parse(&["--pg-config", "/opt/pg/bin/pg_config"])
            .unwrap()
            .clusters
            .targets();
        let names: Vec<_> = targets.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["stock", "pinpoint"]);
        for target in &targets {
            assert_eq!(target.pg_config, PathBuf::from("/opt/pg/bin/pg_config"));
        }
        assert!(targets[0].preload.is_empty() && targets[0].extensions.is_empty());
        assert_eq!(targets[1].preload, ["pg_pinpoint"]);
        assert_eq!(targets[1].extensions, ["pg_pinpoint"]);
    }

    #[test]
    fn a_targets_own_settings_come_after_those_for_all() {
        let targets = parse(&[
            "--setting",
            "fsync=off",
            "--target",
            "a=pg_config,fsync=on",
            "--target",
            "b=pg_config",
        ])
        .unwrap()
        .clusters
        .targets();
        let settings = |target: &Target| -> Vec<String> {
            target.settings.iter().map(Setting::to_string).collect()
        };
        assert_eq!(settings(&targets[0]), ["fsync = 'off'", "fsync = 'on'"]);
        assert_eq!(settings(&targets[1]), ["fsync = 'off'"]);
    }
}
