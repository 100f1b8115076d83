//! The benchmarks `commit` and `notify`: throughput under load.
//!
//! pgbench makes the load. Listeners in this program read every notification
//! of it, and are held to the number of transactions that pgbench reports. A
//! probe, one session that sends at fixed times, tells how long a notification
//! is on its way meanwhile.
//!
//! ```text
//!  workload ──► pgbench ──► server ──► listener ──┐ arrivals
//!     │                       ▲                   ▼
//!     └───────► probe ────────┘                measure ──► results
//!                 └───────── when it was sent ────▲
//! ```

mod listener;
mod measure;
mod pgbench;
mod probe;
mod results;
mod workload;

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::anyhow;
use serde::Serialize;

pub use self::pgbench::{Pgbench, Protocol};
#[cfg(test)]
pub(crate) use self::results::tests;
pub use self::results::{Delivery, Load, Point, Ratio, Run, Series};
pub use self::workload::{Form, Kind, Workload};
use crate::cluster::Clusters;
use crate::pingpong::as_seconds;
use crate::progress::Progress;
use crate::target::{Setting, SettingError, Target};

/// The probe, and the session that prepares each load.
const MORE_SESSIONS: u32 = 2;

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub workload: Workload,
    /// Numbers of sessions that make the load, ascending.
    pub clients: Vec<u32>,
    pub listeners: u32,
    /// Of one load. pgbench knows whole seconds only.
    #[serde(serialize_with = "as_seconds")]
    pub duration: Duration,
    #[serde(serialize_with = "as_seconds")]
    pub warmup: Duration,
    /// Runs for each number of clients and each target.
    pub runs: NonZeroU32,
    pub protocol: Protocol,
    /// commit_delay of all servers, in microseconds.
    pub commit_delay: Option<u32>,
    pub probes_per_sec: u32,
    /// For anything that takes no longer in a server that works.
    #[serde(serialize_with = "as_seconds")]
    pub timeout: Duration,
}

impl Plan {
    /// Sessions at a time.
    pub fn sessions(&self) -> u32 {
        self.clients.last().copied().unwrap_or(0) + self.listeners + MORE_SESSIONS
    }

    /// Gives a target the settings that the plan asks for. Its own come after them.
    pub fn prepare(&self, mut target: Target) -> Result<Target, SettingError> {
        if let Some(delay) = self.commit_delay {
            let settings = [
                format!("commit_delay={delay}"),
                // Whether or not other transactions are active.
                "commit_siblings=0".to_owned(),
            ]
            .iter()
            .map(|setting| setting.parse())
            .collect::<Result<Vec<Setting>, _>>()?;
            target.settings.splice(0..0, settings);
        }
        Ok(target)
    }
}

/// How many loads `run` will make for `targets` targets.
pub fn count_loads(plan: &Plan, targets: usize) -> u64 {
    let loads = plan.clients.len() * plan.workload.kinds().len() * targets;
    loads as u64 * u64::from(plan.runs.get())
}

/// Measures all targets as planned, with the pgbench of each.
///
/// Within a run the targets take turns, and the two kinds of a target follow one
/// another at once, in the other order in every second run: whatever disturbs
/// the machine for a while disturbs all that is compared.
pub async fn run(
    plan: &Plan,
    clusters: &mut Clusters,
    pgbenches: &[Pgbench],
    progress: &Progress,
) -> anyhow::Result<Vec<Point>> {
    for cluster in clusters.iter_mut() {
        let name = cluster.target().name.clone();
        progress.announce(format!("{name}: preparing"));
        if let Err(error) = measure::set_up(plan, cluster).await {
            return Err(cluster.explain(error.into()).await);
        }
    }

    let mut points = Vec::new();
    for &clients in &plan.clients {
        let mut targets: Vec<(String, Vec<Run>)> = clusters
            .iter()
            .map(|cluster| (cluster.target().name.clone(), Vec::new()))
            .collect();
        for number in 1..=plan.runs.get() {
            for ((cluster, pgbench), (name, runs)) in
                clusters.iter_mut().zip(pgbenches).zip(&mut targets)
            {
                let mut kinds = plan.workload.kinds().to_vec();
                if number % 2 == 0 {
                    kinds.reverse();
                }
                let mut loads = Vec::new();
                for kind in kinds {
                    let clients_name = plan.workload.clients_name();
                    progress.announce(format!(
                        "{name}: {kind}, {clients} {clients_name}, run {number} of {}",
                        plan.runs
                    ));
                    match measure::measure(plan, kind, clients, cluster, pgbench).await {
                        Ok(load) => loads.push((kind, load)),
                        Err(error) => {
                            let error = anyhow!(error)
                                .context(format!("with {clients} {clients_name} ({kind})"));
                            return Err(cluster.explain(error).await);
                        }
                    }
                    progress.advance();
                }
                runs.push(Run::of(loads));
            }
        }
        points.push(Point::new(clients, targets));
    }
    Ok(points)
}
