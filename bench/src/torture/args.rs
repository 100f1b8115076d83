//! The command line of `torture`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{FENCE_BASE, Plan};
use crate::cli::ClusterArgs;
use crate::cli::values::positive_seconds;

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
        value_parser = clap::value_parser!(u32).range(1..i64::from(FENCE_BASE)),
    )]
    writers: u32,

    /// Sessions that listen
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(1..i64::from(FENCE_BASE)),
    )]
    listeners: u32,

    /// Channels that are written to
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..i64::from(FENCE_BASE)),
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
    pub fn plan(&self, random: u64) -> Plan {
        Plan {
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
