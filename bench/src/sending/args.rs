//! The command lines of `channels`, `listeners` and `idle`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Plan;
use crate::cli::CommonArgs;
use crate::cli::values::{MAX_CONNECTIONS, ascending, positive_seconds};

/// A transaction with more notifications fills PostgreSQL's queue.
const MAX_CHANNELS: i64 = 1_000_000;

/// For `all --quick`.
pub const QUICK_CHANNELS: &[&str] = &[
    "--channels=1,100,1000,10000",
    "--transactions=10",
    "--warmup=2",
    "--runs=2",
];
pub const QUICK_LISTENERS: &[&str] = &[
    "--listeners=1,10,100",
    "--transactions=5",
    "--warmup=1",
    "--runs=2",
];
pub const QUICK_IDLE: &[&str] = &[
    "--idle=0,100,500",
    "--transactions=10",
    "--warmup=2",
    "--runs=2",
];

/// The number that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Varied {
    Channels,
    Listeners,
    Idle,
}

impl Varied {
    pub fn subcommand(self) -> &'static str {
        match self {
            Self::Channels => "channels",
            Self::Listeners => "listeners",
            Self::Idle => "idle",
        }
    }
}

/// How long a sender waits, against the number of channels it notifies
///
/// A transaction sends one notification to each of N channels. Measured is the time of its
/// COMMIT, once with a sender that listens on these channels itself, and once with another
/// session that does.
#[derive(Debug, clap::Args)]
pub struct ChannelsArgs {
    /// Numbers of channels to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,10,100,1000,2000,3000,4000,5000,6000,7000,8000,9000,10000",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CHANNELS),
    )]
    channels: Vec<u32>,

    #[command(flatten)]
    pub sending: SendingArgs,
}

impl ChannelsArgs {
    pub fn plan(&self) -> Plan {
        Plan {
            channels: ascending(self.channels.clone()),
            ..self.sending.plan(Varied::Channels)
        }
    }
}

/// How long a sender waits, against the number of sessions that listen
///
/// A transaction sends one notification to each of 1,000 channels, and N sessions listen on all
/// of them. Measured is the time of its COMMIT.
#[derive(Debug, clap::Args)]
pub struct ListenersArgs {
    /// Numbers of listeners to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,10,50,100,200",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    listeners: Vec<u32>,

    /// Channels that a transaction notifies
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=MAX_CHANNELS),
    )]
    channels: u32,

    #[command(flatten)]
    pub sending: SendingArgs,
}

impl ListenersArgs {
    pub fn plan(&self) -> Plan {
        Plan {
            channels: vec![self.channels],
            listeners: ascending(self.listeners.clone()),
            ..self.sending.plan(Varied::Listeners)
        }
    }
}

/// How long a sender waits, against the number of sessions that are connected and do not listen
///
/// A transaction sends one notification to each of 1,000 channels, while N sessions are
/// connected that have never executed LISTEN. Measured is the time of its COMMIT.
#[derive(Debug, clap::Args)]
pub struct IdleArgs {
    /// Numbers of idle sessions to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "0,50,100,200,300,400,500",
        value_parser = clap::value_parser!(u32).range(0..=MAX_CONNECTIONS),
    )]
    idle: Vec<u32>,

    /// Channels that a transaction notifies
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=MAX_CHANNELS),
    )]
    channels: u32,

    #[command(flatten)]
    pub sending: SendingArgs,
}

impl IdleArgs {
    pub fn plan(&self) -> Plan {
        Plan {
            channels: vec![self.channels],
            idle: ascending(self.idle.clone()),
            ..self.sending.plan(Varied::Idle)
        }
    }
}

/// What the three have in common.
#[derive(Debug, clap::Args)]
pub struct SendingArgs {
    /// Make every run N transactions long
    #[arg(long, value_name = "N", default_value = "20")]
    transactions: NonZeroU32,

    /// Make N transactions before each run, without measuring
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,

    /// Runs at each point, for each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

    /// Give up when a connection or a transaction takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl SendingArgs {
    /// With one listener, and nobody idle.
    fn plan(&self, varied: Varied) -> Plan {
        Plan {
            varied,
            channels: Vec::new(),
            listeners: vec![1],
            idle: vec![0],
            transactions: self.transactions,
            warmup: self.warmup,
            runs: self.runs,
            timeout: self.timeout,
        }
    }
}
