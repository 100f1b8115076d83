//! Replication of notifications is switched off and on, on both servers, and somebody
//! forges heartbeats.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use tokio_postgres::Client;

use crate::checker::finding::Finding;
use crate::sessions::connection::{execute, within};
use crate::sessions::run_state::Shared;
use crate::sessions::schema::forge_heartbeat;
use crate::workload::random_for;

const WHO: &str = "switching";

/// Number of the random sequence, beside those of `disturbance` and `standby`.
const OF_SWITCHING: u32 = 3;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Further ahead, a position is that of no server that anybody has seen.
const MAX_AHEAD: u32 = 5000;

#[derive(Debug, Clone, Copy)]
enum Server {
    Primary,
    Standby,
}

/// Until the run stops. Then both servers replicate.
pub async fn run(shared: Arc<Shared>) -> Result<(), Finding> {
    let mut rng = random_for(shared.workload.seed, 0, OF_SWITCHING);
    let primary = shared.connect(WHO).await?.client;
    while !shared.is_stopping() {
        pause(&mut rng).await;
        match rng.random_range(0..10) {
            0..6 => switch(&shared, &primary, &mut rng).await?,
            // A standby begins to replay at a checkpoint when it is started again.
            6 => {
                execute(&shared, WHO, &primary, "CHECKPOINT").await?;
            }
            7 => execute_on_standby(&shared, "CHECKPOINT").await?,
            _ => forge(&shared, &primary, &mut rng).await?,
        }
    }
    Ok(())
}

/// For so long that some clients have nothing else when they connect again.
async fn forge(shared: &Shared, primary: &Client, rng: &mut ChaCha8Rng) -> Result<(), Finding> {
    for _ in 0..rng.random_range(1..=30) {
        let sql = forge_heartbeat(rng.random_range(1..=MAX_AHEAD));
        execute(shared, WHO, primary, &sql).await?;
        shared.tally().forged += 1;
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..=40))).await;
    }
    Ok(())
}

/// Milliseconds or seconds.
async fn pause(rng: &mut ChaCha8Rng) {
    let milliseconds = match rng.random_range(0..3) {
        0 => rng.random_range(0..=5),
        1 => rng.random_range(5..=300),
        _ => rng.random_range(300..=1500),
    };
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Off and on again, in any order of the servers.
async fn switch(shared: &Shared, primary: &Client, rng: &mut ChaCha8Rng) -> Result<(), Finding> {
    let mut servers = vec![Server::Primary, Server::Standby];
    servers.retain(|_| rng.random_ratio(2, 3));
    for value in ["off", "on"] {
        servers.shuffle(rng);
        for server in &servers {
            let sql = [
                &format!("ALTER SYSTEM SET pinpoint.replicate = {value}"),
                "SELECT pg_reload_conf()",
            ];
            for sql in sql {
                match server {
                    Server::Primary => {
                        execute(shared, WHO, primary, sql).await?;
                    }
                    Server::Standby => execute_on_standby(shared, sql).await?,
                }
            }
            pause(rng).await;
        }
    }
    shared.tally().switches += 1;
    Ok(())
}

/// It may be shut down just now.
async fn execute_on_standby(shared: &Shared, sql: &str) -> Result<(), Finding> {
    let Some(standby) = &shared.standby else {
        return Ok(());
    };
    let until_it_is_there = async {
        while standby.execute(sql).await.is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    within(shared, WHO, sql, until_it_is_there).await
}
