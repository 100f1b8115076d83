//! The torture: does every listener receive exactly what was committed on its
//! channels, in commit order?
//!
//! Many writers insert rows and notify of them, in all the ways there are, and
//! are cancelled, terminated and abandoned in mid-commit. Many listeners come
//! and go. The oracle is PostgreSQL itself: with each notification goes a row,
//! in the same (sub)transaction, and logical decoding tells which of them
//! committed, and in which order.
//!
//! ```text
//! workload ──► sessions ──► checker ──► difference
//!              │            ▲
//!              └─ records ──┘
//! ```
//!
//! - `workload`: the transactions of each writer, as a function of the seed.
//! - `sessions`: writers, listeners, the decoded stream, and the disturbances. They
//!   record what they did and what they saw.
//! - `checker`: compares the records of the listeners with the decoded commits.
//! - `run`: starts and stops the sessions, and checks in rounds.
//!
//! The checker is a function of the records alone: `--record` writes them to a
//! file, and `check` reads them again.

mod checker;
mod options;
mod run;
mod sessions;
mod workload;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use pinpoint_servers::cluster::Cluster;
use pinpoint_servers::installation::Installation;
use pinpoint_servers::limits;
use pinpoint_servers::target::Target;
use pinpoint_servers::workspace::Workspace;
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::Mutex;

use crate::checker::finding::Finding;
use crate::checker::{Checker, record_file};
pub use crate::options::{Plan, TortureArgs, TortureCommand};

/// Is told how far a run is, and what is being done.
pub type OnProgress<'a> = &'a dyn Fn(Duration, String);

/// Tortures a server of each target, and prints what comes of it. Returns whether
/// all have passed.
pub async fn torture(plan: &Plan, on_progress: OnProgress<'_>) -> anyhow::Result<bool> {
    let seed = match plan.seed {
        Some(seed) => seed,
        None => SysRng.try_next_u32().context("no random seed")?.into(),
    };
    limits::allow_connections(plan.sessions().into())?;
    // There is nothing to compare.
    let default = |pg_config: &Path| vec![Target::pinpoint(pg_config)];
    for target in plan.clusters.targets_or(default) {
        let target = plan.prepare(target)?;
        let name = target.name.clone();
        println!("{name}: seed {seed}");
        on_progress(Duration::ZERO, format!("{name}: starting the server"));

        let started = Instant::now();
        let installation = Installation::of(&target)?;
        let workspace = Arc::new(Workspace::create(&plan.clusters.temp_dir()).await?);
        let mut cluster = Cluster::start(target, installation, &workspace, plan.sessions()).await?;
        let standby = if plan.standby {
            let standby = cluster.start_standby().await?;
            Some(Arc::new(Mutex::new(standby)))
        } else {
            None
        };
        let result = run::run(plan, seed, &mut cluster, standby.clone(), on_progress).await;
        drop(standby);
        drop(cluster);
        drop(workspace);
        match result.map_err(anyhow::Error::downcast::<Finding>) {
            Ok(summary) => {
                let summary = serde_json::to_string_pretty(&summary)?;
                println!("{summary}\n{name}: passed");
            }
            Err(Ok(finding)) => {
                let finding = finding.to_string();
                // Once more at the end, as a long log may be cut off.
                println!(
                    "{finding}\n\n{name}: FAILED after {:.1} s, with seed {seed}: {}",
                    started.elapsed().as_secs_f64(),
                    finding.lines().next().unwrap_or_default()
                );
                return Ok(false);
            }
            Err(Err(error)) => return Err(error),
        }
    }
    Ok(true)
}

/// Checks a recorded run again, and prints what comes of it. Returns whether it
/// has passed.
pub fn check(file: &Path) -> anyhow::Result<bool> {
    let (header, records) = record_file::read(file)?;
    let name = file.display();
    let count = records.len();
    let mut checker = Checker::new(header.workload, header.listeners, header.timeout);
    let mut records = records.into_iter();
    while let Some(record) = records.next() {
        if let Err(mut difference) = checker.apply(record) {
            difference.is_late |= records.any(|record| difference.is_arrival_of_missing(&record));
            println!("{difference}\n\n{name}: FAILED");
            return Ok(false);
        }
    }
    println!(
        "{count} records, {} notifications received\n{name}: passed",
        checker.counts().notifications
    );
    Ok(true)
}
