//! The command line of `pingpong`.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use super::{Length, Plan};
use crate::cli::CommonArgs;
use crate::cli::values::{MAX_CONNECTIONS, ascending, positive_seconds, seconds};

/// For `all --quick`.
pub const QUICK: &[&str] = &[
    "--idle=0,100,1000",
    "--duration=1",
    "--warmup=0.5",
    "--runs=2",
];

/// Round trips per second between two sessions, while others listen on
/// channels of their own
///
/// Two sessions LISTEN on two channels, and each answers the other's
/// notification with a NOTIFY. This is measured for each number of further
/// sessions, which are connected and LISTEN, each on a channel of its own on
/// which nothing is ever sent.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of idle listeners to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "0,10,100,1000",
        value_parser = clap::value_parser!(u32).range(0..=MAX_CONNECTIONS),
        conflicts_with_all = ["idle_step", "max_idle"],
    )]
    idle: Vec<u32>,

    /// Instead of --idle: begin with none and grow by N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS))]
    idle_step: Option<u32>,

    /// With --idle-step: grow up to N idle listeners
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(0..=MAX_CONNECTIONS),
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
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        let idle = match self.idle_step {
            Some(step) => (0..=self.max_idle).step_by(step as usize).collect(),
            None => self.idle.clone(),
        };
        Plan {
            idle: ascending(idle),
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Pingpong {
        #[command(flatten)]
        args: Args,
    }

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        let arguments = ["pingpong"].iter().chain(arguments);
        Ok(Pingpong::try_parse_from(arguments)?.args)
    }

    fn plan(arguments: &[&str]) -> Plan {
        parse(arguments).expect("valid arguments").plan()
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
}
