//! What to do: the command line of `torture`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Subcommand, ValueEnum};
use pinpoint_servers::arguments::ClusterArgs;
use pinpoint_servers::options::{number, positive_duration};
use pinpoint_servers::target::{ENGINE, Setting, Target};

use crate::workload::identity::FENCE_BASE;

/// Sessions beside those of writers, listeners and position clients, and the companion that each
/// listener has: signaller, replication control, monitor and the decoding one.
const MORE_SESSIONS: u32 = 4;

/// Does every listener receive exactly what was committed, in commit order?
///
/// Many writers insert rows and NOTIFY, and are cancelled, terminated and
/// abandoned in mid-commit, while many listeners come and go. What each of them
/// receives is compared with what logical decoding reports, which needs the
/// plugin test_decoding of PostgreSQL's contrib. Exit code 0: no difference; 1:
/// a difference, a hang or a crash, which is shown; 2: the run itself failed.
///
/// Example: pinpoint-bench torture --duration 10min --record failure.jsonl
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TortureArgs {
    #[command(subcommand)]
    pub command: Option<TortureCommand>,

    #[command(flatten)]
    pub plan: Plan,
}

#[derive(Debug, Subcommand)]
pub enum TortureCommand {
    /// Check a recorded run again
    ///
    /// What the checker saw is in the file; no server is needed. Exit code 0: no
    /// difference; 1: a difference, which is shown.
    Check {
        /// What --record has written
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Write the least part of it that still shows the difference to OUT
        #[arg(long, value_name = "OUT")]
        shrink: Option<PathBuf>,
    },
}

/// A run.
#[derive(Debug, Args)]
pub struct Plan {
    /// Go on for this long, in seconds or as 10min
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = positive_duration)]
    pub duration: Duration,

    /// Do what a run with this seed did [default: a random one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Sessions that write
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = number(1..FENCE_BASE))]
    pub writers: u32,

    /// Sessions that listen
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = number(1..FENCE_BASE))]
    pub listeners: u32,

    /// Sessions that ask which channels have changed since a position (with pg_pinpoint only)
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number(0..FENCE_BASE))]
    pub position_clients: u32,

    /// Channels that are written to
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number(1..FENCE_BASE))]
    pub channels: u32,

    /// Have every second listener on a hot standby, which is paused, restarted and promoted
    #[arg(long)]
    pub standby: bool,

    /// Let listeners share half of their channels, so that each notification goes to a few
    #[arg(long)]
    pub sharing: bool,

    /// Plant a fault into pg_pinpoint, which the torture must find
    #[arg(long, value_enum, default_value_t = Fault::None)]
    pub fault: Fault,

    /// Anything that takes longer is a hang
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = positive_duration)]
    pub timeout: Duration,

    /// Write all that the checker sees to FILE, for "torture check" (of the last target)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    #[command(flatten)]
    pub clusters: ClusterArgs,
}

impl Plan {
    /// Sessions at a time.
    pub fn sessions(&self) -> u32 {
        self.writers + 2 * self.listeners + self.position_clients + MORE_SESSIONS
    }

    /// Gives a target the settings that the torture needs, and those that make it
    /// harder. The target's own come after them.
    pub fn prepare(&self, mut target: Target) -> anyhow::Result<Target> {
        // Without the extension its library leaves everything to PostgreSQL.
        let has_engine = target.has_engine();
        for (is_asked_for, option) in [
            (self.fault != Fault::None, "--fault"),
            (self.standby, "--standby"),
            (self.sharing, "--sharing"),
        ] {
            ensure!(
                !is_asked_for || has_engine,
                "{option} is for {ENGINE} only, and target \"{}\" does not have that: \
                 leave out {option}, or add preload={ENGINE},extension={ENGINE}",
                target.name
            );
        }
        target.settings.splice(0..0, self.settings(has_engine)?);
        Ok(target)
    }

    fn settings(&self, has_engine: bool) -> anyhow::Result<Vec<Setting>> {
        let fault = self.fault.to_possible_value();
        let fault = fault.map(|value| format!("pinpoint.debug_fault={}", value.get_name()));
        let mut settings = vec![
            "wal_level=logical",
            // The standby that decodes is slow at times, on purpose.
            "wal_sender_timeout=0",
            // Keep a commit that is written from being flushed, for a while.
            "commit_delay=1000",
            "commit_siblings=3",
            // Errors are part of the plan. What ends a server is logged all the same.
            "log_min_messages=log",
        ];
        if has_engine {
            settings.push("pinpoint.heartbeat_interval=100ms");
        }
        if self.standby {
            settings.push("pinpoint.replicate=on");
        }
        settings.extend(fault.as_deref().filter(|_| self.fault != Fault::None));
        settings.into_iter().map(str::parse).collect()
    }
}

/// Values of pinpoint.debug_fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Fault {
    None,
    /// Publish in order of arrival: a difference is to be found
    ArrivalOrder,
    /// Drop the signals that are left to the waker: a hang is to be found
    DropSignals,
    /// Advance the counter of positions before the places: a change is not reported
    CounterFirst,
    /// Do not set the places of positions: a change is not reported
    MissingPlace,
    /// Count transactions for positions when they are published: a change is not reported
    CountLate,
}
