//! What to do: the command line of `torture`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Subcommand, ValueEnum};
use pinpoint_servers::arguments::ClusterArgs;
use pinpoint_servers::options::{number, positive_duration};
use pinpoint_servers::target::{ENGINE, Setting, Target};

use crate::workload::identity::{FENCE_BASE, WAKER_LISTENERS, WATCHED_TABLES};

/// Sessions beside those of writers, listeners and position clients, and the companion that each
/// listener has: signaller, replication control, switching, monitor and the decoding one, and
/// those that change watched tables, and those that observe the stopped waker.
const MORE_SESSIONS: u32 = 5 + WATCHED_TABLES + 1 + WAKER_LISTENERS;

/// Check that listeners receive exactly what was committed, in commit order
///
/// Many writers insert rows and notify. Their commits are cancelled, terminated or
/// abandoned, while many listeners connect and disconnect. The notifications of each
/// listener are compared with the output of logical decoding. This needs the plugin
/// test_decoding of PostgreSQL's contrib. Exit code 0: no difference; 1: a
/// difference, a hang or a crash; 2: the run could not be made.
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
    /// The file contains everything that the checker needs. No server is started.
    /// Exit code 0: no difference; 1: a difference.
    Check {
        /// A file that --record has written
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// A run.
#[derive(Debug, Args)]
pub struct Plan {
    /// Duration of the run, in seconds or with a unit (10min)
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = positive_duration)]
    pub duration: Duration,

    /// Seed of the random choices [default: a random seed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Number of sessions that write
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = number(1..FENCE_BASE))]
    pub writers: u32,

    /// Number of sessions that listen
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = number(1..FENCE_BASE))]
    pub listeners: u32,

    /// Number of sessions that call pinpoint.changed_since() (with pg_pinpoint only)
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number(0..FENCE_BASE))]
    pub position_clients: u32,

    /// Number of channels
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number(1..FENCE_BASE))]
    pub channels: u32,

    /// Connect every second listener to a hot standby, which is paused, restarted and promoted
    #[arg(long)]
    pub standby: bool,

    /// With --standby: switch pinpoint.replicate, forge heartbeats; no listeners on the standby
    #[arg(long, requires = "standby")]
    pub switch_replication: bool,

    /// Stop the waker (SIGSTOP) at random moments, for up to three seconds
    #[arg(long)]
    pub stop_waker: bool,

    /// Let each listener share half of the channels
    #[arg(long)]
    pub sharing: bool,

    /// Plant a fault in pg_pinpoint; the torture must find it
    #[arg(long, value_enum, default_value_t = Fault::None)]
    pub fault: Fault,

    /// Report a step that takes longer as a hang
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = positive_duration)]
    pub timeout: Duration,

    /// Write everything that the checker sees to FILE, for `torture check` (last target only)
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
            (self.stop_waker, "--stop-waker"),
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
            // Of changes of watched tables.
            settings.push("max_prepared_transactions=10");
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
    /// No fault
    None,
    /// Publish in order of arrival (found as a difference)
    ArrivalOrder,
    /// Discard the signals that senders leave to the waker, and send no reminders (found as a hang)
    DropSignals,
    /// Advance the counter of positions before the places are set (found as a missed change)
    CounterFirst,
    /// Do not set the places of positions (found as a missed change)
    MissingPlace,
    /// Count transactions at publication (found as a missed change)
    CountLate,
}
