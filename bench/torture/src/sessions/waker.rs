//! The waker is stopped and continued. Notifications must arrive all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt;
use tokio_postgres::Client;

use crate::checker::finding::Finding;
use crate::sessions::connection::{Connected, execute, first_value, within};
use crate::sessions::run_state::Shared;
use crate::workload::identity::WAKER_LISTENERS;
use crate::workload::random_for;

const WHO: &str = "stopping the waker";

/// Number of the random sequence, beside those of `disturbance`, `standby` and `switching`.
const OF_WAKER: u32 = 4;

/// For a commit. If it takes longer, the waker may have been stopped while it had a lock.
const COMMIT_LIMIT: Duration = Duration::from_secs(2);

/// For the arrival of a notification. The server promises a fraction of a second.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(20);

/// Until the run stops. Then the waker runs.
pub async fn run(shared: Arc<Shared>) -> Result<(), Finding> {
    let mut rng = random_for(shared.workload.seed, 0, OF_WAKER);
    let mut probe = Probe::start(&shared).await?;
    while !shared.is_stopping() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..=500))).await;
        let Some(waker) = probe.find_waker(&shared).await? else {
            continue;
        };
        let end = Instant::now() + Duration::from_millis(rng.random_range(0..=3000));
        let mut stopped = Some(Stopped::new(waker));
        shared.tally().stopped_waker += 1;
        while stopped.is_some() && Instant::now() < end {
            probe.notify(&shared, &mut stopped).await?;
            if stopped.is_some() {
                probe.receive().await?;
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..=100))).await;
        }
        drop(stopped);
        probe.receive().await?;
    }
    Ok(())
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Self {
        // If it has ended, another one is found the next time.
        let _ = kill(pid, Signal::SIGSTOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Sessions that listen on a channel of their own, and the one that notifies it.
struct Probe {
    sender: Client,
    listeners: Vec<Connected>,
    /// Notifications that have not arrived yet, at each of them.
    missing: u32,
}

impl Probe {
    async fn start(shared: &Arc<Shared>) -> Result<Self, Finding> {
        let mut listeners = Vec::new();
        for _ in 0..WAKER_LISTENERS {
            let listener = shared.connect(WHO).await?;
            execute(shared, WHO, &listener.client, "LISTEN stopped_waker").await?;
            listeners.push(listener);
        }
        Ok(Self {
            sender: shared.connect(WHO).await?.client,
            listeners,
            missing: 0,
        })
    }

    async fn find_waker(&self, shared: &Shared) -> Result<Option<Pid>, Finding> {
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_pinpoint waker'";
        let answer = execute(shared, WHO, &self.sender, sql).await?;
        let pid = first_value(&answer).and_then(|pid| pid.parse().ok());
        Ok(pid.map(Pid::from_raw))
    }

    /// Notifies all listeners, in a transaction with a commit record. If that takes too long,
    /// lets the waker go on.
    async fn notify(
        &mut self,
        shared: &Shared,
        stopped: &mut Option<Stopped>,
    ) -> Result<(), Finding> {
        let sql = "SELECT pg_current_xact_id(), pg_notify('stopped_waker', '')";
        let commit = self.sender.simple_query(sql);
        tokio::pin!(commit);
        let answer = match tokio::time::timeout(COMMIT_LIMIT, &mut commit).await {
            Ok(answer) => answer,
            Err(_) => {
                *stopped = None;
                shared.tally().stopped_with_lock += 1;
                within(shared, WHO, sql, commit).await?
            }
        };
        answer.map_err(|error| Finding::unexpected_error(WHO, sql, &error))?;
        self.missing += 1;
        Ok(())
    }

    /// Waits until all that was sent has arrived.
    async fn receive(&mut self) -> Result<(), Finding> {
        for listener in &mut self.listeners {
            for _ in 0..self.missing {
                tokio::time::timeout(ARRIVAL_LIMIT, listener.notifications.recv())
                    .await
                    .map_err(|_| Finding::hang(WHO, "a notification", ARRIVAL_LIMIT))?
                    .ok_or_else(|| Finding::hang(WHO, "a connection", Duration::ZERO))?;
            }
        }
        self.missing = 0;
        Ok(())
    }
}
