//! What happens to the server and to the listeners meanwhile.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::checker::finding::Finding;
use crate::sessions::connection::{Connected, execute};
use crate::sessions::replication::STANDBY;
use crate::sessions::run_state::Shared;
use crate::workload::random_for;
use crate::workload::unit_of_work::{Disturbance, DisturbanceKind};

/// Number of the random sequence of each, beside those of the listeners.
const OF_TERMINATIONS: u32 = 0;
const OF_REPLICATION: u32 = 1;

fn milliseconds(rng: &mut ChaCha8Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.random_range(from..=to))
}

/// Gets the disturbance of a commit under way. It may come so late that it hits what the
/// session does next.
pub fn disturb(
    shared: &Arc<Shared>,
    connected: &Connected,
    disturbance: Disturbance,
) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    let driver = connected.driver.clone();
    let pid = connected.pid;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(disturbance.delay_ms)).await;
        match disturbance.kind {
            DisturbanceKind::Cancel => {
                shared.tally().cancelled += 1;
                shared.cancel(pid).await;
            }
            DisturbanceKind::Terminate => {
                shared.tally().terminated += 1;
                shared.terminate(pid).await;
            }
            DisturbanceKind::Abandon => {
                shared.tally().abandoned += 1;
                shared.end(pid);
                driver.abort();
            }
        }
    })
}

/// Terminates a listener every now and then.
pub async fn terminate_listeners(shared: Arc<Shared>, listeners: u32) -> Result<(), Finding> {
    let mut rng = random_for(shared.workload.seed, 0, OF_TERMINATIONS);
    while !shared.is_stopping() && listeners > 0 {
        tokio::time::sleep(milliseconds(&mut rng, 100, 1000)).await;
        let listener = rng.random_range(0..listeners);
        if let Some(pid) = shared.listener(listener)
            && !shared.stays(listener)
        {
            let standby = shared.standby_of(listener);
            shared.terminate_on(standby, pid).await;
            shared.tally().terminated_listeners += 1;
        }
    }
    Ok(())
}

/// Makes commits wait for a standby, and not, in turn. The standby is the one
/// that decodes; while it confirms nothing, commits stand still where they are
/// written but not yet visible.
pub async fn replicate_synchronously(shared: Arc<Shared>) -> Result<(), Finding> {
    let mut rng = random_for(shared.workload.seed, 0, OF_REPLICATION);
    let control = shared.connect("replication control").await?.client;
    while !shared.is_stopping() {
        set_standby(&shared, &control, STANDBY).await?;
        for _ in 0..rng.random_range(2..=5) {
            tokio::time::sleep(milliseconds(&mut rng, 20, 200)).await;
            shared.confirmations.hold_back(true);
            tokio::time::sleep(milliseconds(&mut rng, 5, 120)).await;
            shared.confirmations.hold_back(false);
        }
        set_standby(&shared, &control, "").await?;
        tokio::time::sleep(milliseconds(&mut rng, 200, 1200)).await;
    }
    Ok(())
}

async fn set_standby(shared: &Shared, control: &Client, standby: &str) -> Result<(), Finding> {
    let who = "replication control";
    for sql in [
        &format!("ALTER SYSTEM SET synchronous_standby_names = '{standby}'"),
        "SELECT pg_reload_conf()",
    ] {
        execute(shared, who, control, sql).await?;
    }
    Ok(())
}
