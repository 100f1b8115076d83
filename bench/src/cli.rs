//! The command line.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::pingpong::{Length, Plan};
use crate::target::{Setting, Target};

/// More listeners than PostgreSQL accepts connections (2^18 - 1, less its own
/// processes) cannot be asked for.
const MAX_IDLE: i64 = 250_000;

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
        let Command::Pingpong(args) = Cli::try_parse_from(command.iter().chain(arguments))?.command;
        Ok(args)
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
