//! What happens to a standby: its replay is paused, it is shut down and started again,
//! and in the end it is promoted, with listeners connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinpoint_servers::cluster::{Cluster, Shutdown};
use rand::RngExt;
use tokio::sync::Mutex;

use crate::checker::finding::Finding;
use crate::sessions::connection::{self, first_value, within};
use crate::sessions::run_state::Shared;
use crate::sessions::standby_state::Standby;
use crate::workload::random_for;

const WHO: &str = "standby control";

/// Number of the random sequence, beside those of `disturbance`.
const OF_STANDBY: u32 = 2;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// It is restarted in these ways in turn.
const SHUTDOWNS: [Shutdown; 2] = [Shutdown::Fast, Shutdown::Immediate];

/// A run does not end before it has been restarted that often.
pub fn restarts(shared: &Shared) -> u64 {
    match shared.switches_replication {
        // At any time before and after a switch.
        true => 5,
        false => SHUTDOWNS.len() as u64,
    }
}

/// Until all is done: the standby is promoted when the run stops.
pub async fn run(
    shared: Arc<Shared>,
    cluster: Arc<Mutex<Cluster>>,
    duration: Duration,
) -> Result<(), Finding> {
    let Some(standby) = &shared.standby else {
        return Ok(());
    };
    let started = Instant::now();
    let restarts = restarts(&shared) as u32;
    let mut shutdowns = (1..=restarts)
        .zip(SHUTDOWNS.into_iter().cycle())
        .map(|(part, how)| (started + duration * part / (restarts + 1), how))
        .peekable();
    let mut rng = random_for(shared.workload.seed, 0, OF_STANDBY);
    while !shared.is_stopping() {
        let mut milliseconds =
            |from, to| Duration::from_millis(rng.random_range::<u64, _>(from..=to));
        tokio::time::sleep(milliseconds(100, 1500)).await;
        if let Some((_, how)) = shutdowns.next_if(|&(when, _)| Instant::now() >= when) {
            standby.add_stop();
            let restarted = cluster.lock().await.restart(how).await;
            restarted.map_err(|error| Finding::Failure(format!("{error:#}")))?;
            standby.add_stop();
            shared.tally().restarts += 1;
        }
        execute(&shared, standby, "SELECT pg_wal_replay_pause()").await?;
        tokio::time::sleep(milliseconds(20, 1500)).await;
        execute(&shared, standby, "SELECT pg_wal_replay_resume()").await?;
        shared.tally().pauses += 1;
    }
    promote(&shared, standby).await
}

/// What was sent since replay was paused is replayed during the promotion.
async fn promote(shared: &Arc<Shared>, standby: &Standby) -> Result<(), Finding> {
    let wait_for_step = async |step| {
        while !standby.have_all_taken(step) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let what = "the listeners to do nothing more";
    within(shared, WHO, what, wait_for_step(0)).await?;
    execute(shared, standby, "SELECT pg_wal_replay_pause()").await?;
    let sql = "SELECT pg_get_wal_replay_pause_state() = 'paused'";
    wait_until_true(shared, standby, sql).await?;
    standby.hold();
    let what = "the listeners to send their last notifications";
    within(shared, WHO, what, wait_for_step(1)).await?;

    let primary = shared.connect(WHO).await?.client;
    let sql = "SELECT pg_current_wal_flush_lsn()";
    let answer = connection::execute(shared, WHO, &primary, sql).await?;
    let flushed = first_value(&answer).unwrap_or_default();
    let sql = format!("SELECT pg_last_wal_receive_lsn() >= '{flushed}'");
    wait_until_true(shared, standby, &sql).await?;
    execute(shared, standby, "SELECT pg_promote()").await?;
    wait_until_true(shared, standby, "SELECT NOT pg_is_in_recovery()").await?;
    standby.set_promoted();
    Ok(())
}

async fn execute(shared: &Shared, standby: &Standby, sql: &str) -> Result<String, Finding> {
    let answer = within(shared, WHO, sql, standby.execute(sql)).await?;
    let answer = answer.map_err(|error| Finding::unexpected_error(WHO, sql, &error))?;
    Ok(first_value(&answer).unwrap_or_default().to_owned())
}

async fn wait_until_true(shared: &Shared, standby: &Standby, sql: &str) -> Result<(), Finding> {
    let deadline = Instant::now() + shared.timeout;
    while execute(shared, standby, sql).await? != "t" {
        if Instant::now() >= deadline {
            return Err(Finding::hang(WHO, sql, shared.timeout));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
