//! One run: all sessions start, their reports are checked in rounds, all sessions end,
//! and nothing may be left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use pinpoint_servers::cluster::Cluster;
use pinpoint_servers::connection::connect;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

use crate::OnProgress;
use crate::checker::Checker;
use crate::checker::difference::Difference;
use crate::checker::finding::Finding;
use crate::checker::listener_check::Counts;
use crate::checker::record::{Decoded, Header, Record};
use crate::checker::record_file::{FORMAT, Recorder};
use crate::options::{Fault, Plan};
use crate::sessions::connection::{execute, within};
use crate::sessions::decoded_commits::{Decoding, write_marker};
use crate::sessions::replication::Replication;
use crate::sessions::run_state::Shared;
use crate::sessions::standby_state::Standby;
use crate::sessions::tally::Tally;
use crate::sessions::{
    disturbance, listener, position_client, schema, standby, switching, waker, watched, writer,
};
use crate::workload::Workload;
use crate::workload::identity::WATCHED_TABLES;

/// Between two comparisons of what was received with what was decoded.
const ROUND_INTERVAL: Duration = Duration::from_millis(200);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// For a look at the sessions of a server that may be stuck, and for a notification that may
/// only be late.
const LOOK_DEADLINE: Duration = Duration::from_secs(30);

/// What one sees then, the first without the engine, too.
const LOOKS: [&str; 3] = [
    "SELECT format('PID %s, %s, %s, waits for %s: %s', pid, backend_type, \
         coalesce(state, 'no state'), \
         coalesce(wait_event_type || ' ' || wait_event, 'nothing'), \
         left(query, 80)) \
     FROM pg_stat_activity \
     WHERE backend_type IN ('client backend', 'walsender', 'walreceiver', 'startup') \
         AND pid <> pg_backend_pid() \
     ORDER BY pid",
    "SELECT format('received up to %s, replayed up to %s, replay is %s', \
         pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), pg_get_wal_replay_pause_state()) \
     WHERE pg_is_in_recovery()",
    "SELECT format('PID %s listens, is %s, has %s to read, delivered %s', pid, state, \
         backlog_batches, notifications) \
     FROM pinpoint.stat_listeners \
     ORDER BY pid",
];

const CHECKER: &str = "the checker";

/// What a run that passed has done.
#[derive(Debug, Serialize)]
pub struct Summary {
    checked: Counts,
    done: Tally,
}

/// Tortures the server of the cluster. A `Finding` among the causes of the error
/// tells that the server did not pass.
pub async fn run(
    plan: &Plan,
    seed: u64,
    cluster: &mut Cluster,
    standby: Option<Arc<Mutex<Cluster>>>,
    on_progress: OnProgress<'_>,
) -> anyhow::Result<Summary> {
    let mut inspection = prepare(plan, seed, cluster, standby.as_deref()).await?;
    let mut workers = start_sessions(plan, &inspection, standby.as_ref());
    let result = inspection.watch(plan, &mut workers, on_progress).await;
    if let Err(error) = result {
        let error = inspection.look_closer(error, cluster).await;
        // Whoever shares the standby lets go of it.
        workers.shutdown().await;
        let error = match &standby {
            Some(standby) => ended_or(&mut *standby.lock().await, error).await,
            None => error,
        };
        inspection.finish_recording()?;
        return Err(error);
    }
    inspection.finish_recording()?;
    let summary = Summary {
        checked: inspection.checker.counts(),
        done: inspection.shared.tally().clone(),
    };
    let has_engine = inspection.has_engine;
    drop(inspection);
    on_progress(plan.duration, "waiting for the sessions to go".to_owned());
    ensure_nothing_is_left(cluster, has_engine, plan.timeout).await?;
    if let Some(standby) = &standby {
        ensure_nothing_is_left(&*standby.lock().await, has_engine, plan.timeout).await?;
    }
    Ok(summary)
}

/// Makes all that the sessions work on, and what checks their reports.
async fn prepare(
    plan: &Plan,
    seed: u64,
    cluster: &Cluster,
    standby: Option<&Mutex<Cluster>>,
) -> anyhow::Result<Inspection> {
    let monitor = cluster.connect().await?;
    if plan.fault != Fault::None {
        monitor
            .query_one("SHOW pinpoint.debug_fault", &[])
            .await
            .context("no fault can be planted: the server was built without assertions")?;
    }
    set_up(plan, &monitor)
        .await
        .context("could not make what the torture works on")?;
    let replication = Replication::start(&cluster.socket()).await?;
    let workload = Workload {
        seed,
        channels: plan.channels,
    };
    let signaller = cluster.connect().await?;
    let of_standby = match standby {
        Some(standby) => Some(Standby::new(standby.lock().await.config())),
        None => None,
    };
    let (sender, records) = mpsc::unbounded_channel();
    let config = cluster.config();
    let shared = Shared::new(config, of_standby, workload, plan, signaller, sender);
    let (sender, decoded) = mpsc::unbounded_channel();
    let mut oracle = JoinSet::new();
    oracle.spawn(replication.run(Arc::clone(&shared.confirmations), sender));
    // Before anybody begins: what fails from then on is looked at more closely.
    let has_engine: bool = monitor
        .query_one("SELECT to_regclass('pinpoint.stat_queue') IS NOT NULL", &[])
        .await?
        .try_get(0)?;
    if has_engine {
        monitor.batch_execute(&schema::watch_tables()).await?;
    }
    let header = Header {
        format: FORMAT,
        workload,
        listeners: plan.listeners,
        timeout: plan.timeout,
    };
    let recorder = plan.record.as_deref();
    let recorder = recorder.map(|path| Recorder::create(path, &header));
    Ok(Inspection {
        checker: Checker::new(workload, plan.listeners, plan.timeout),
        recorder: recorder.transpose()?,
        shared: Arc::new(shared),
        monitor,
        records,
        position_clients: if has_engine { plan.position_clients } else { 0 },
        decoded,
        oracle,
        rounds: 0,
        has_engine,
    })
}

/// Starts all sessions but those of the inspection.
fn start_sessions(
    plan: &Plan,
    inspection: &Inspection,
    standby: Option<&Arc<Mutex<Cluster>>>,
) -> JoinSet<Result<(), Finding>> {
    let shared = || Arc::clone(&inspection.shared);
    let mut workers = JoinSet::new();
    for writer in 0..plan.writers {
        workers.spawn(writer::run(shared(), writer));
    }
    for listener in 0..plan.listeners {
        workers.spawn(listener::run(shared(), listener));
    }
    workers.spawn(disturbance::terminate_listeners(shared(), plan.listeners));
    workers.spawn(disturbance::replicate_synchronously(shared()));
    if let Some(standby) = standby {
        let standby = Arc::clone(standby);
        workers.spawn(standby::run(shared(), standby, plan.duration));
    }
    if plan.stop_waker {
        workers.spawn(waker::run(shared()));
    }
    if plan.switch_replication {
        workers.spawn(switching::run(shared()));
    }
    if inspection.has_engine {
        for table in 0..WATCHED_TABLES {
            workers.spawn(watched::run(shared(), table));
        }
    }
    for client in 0..inspection.position_clients {
        workers.spawn(position_client::run(shared(), client, plan.listeners));
    }
    workers
}

/// That the server has ended explains an error better, unless that is a difference.
async fn ended_or(cluster: &mut Cluster, error: anyhow::Error) -> anyhow::Error {
    if matches!(error.downcast_ref(), Some(Finding::Difference(_))) {
        return error;
    }
    match cluster.end().await {
        Some(end) => Finding::Failure(end).into(),
        None => error,
    }
}

async fn set_up(plan: &Plan, monitor: &Client) -> Result<(), tokio_postgres::Error> {
    monitor
        .batch_execute(&schema::create(plan.writers, plan.listeners))
        .await?;
    let sql = "SELECT pg_create_logical_replication_slot($1, 'test_decoding')";
    monitor.execute(sql, &[&schema::SLOT]).await?;
    // What this session writes must not wait for the standby that it controls.
    monitor
        .batch_execute(&format!(
            "SET synchronous_commit = local; {}",
            position_client::DO_NOT_WAIT_FOR_ME
        ))
        .await
}

/// Receives the reports of all sessions, and has them checked.
struct Inspection {
    checker: Checker<Workload>,
    recorder: Option<Recorder>,
    shared: Arc<Shared>,
    monitor: Client,
    /// Of the sessions.
    records: UnboundedReceiver<Record>,
    position_clients: u32,
    decoded: UnboundedReceiver<Decoding>,
    oracle: JoinSet<anyhow::Result<()>>,
    rounds: u64,
    has_engine: bool,
}

impl Inspection {
    /// Until all are done, or the first one fails.
    async fn watch(
        &mut self,
        plan: &Plan,
        workers: &mut JoinSet<Result<(), Finding>>,
        on_progress: OnProgress<'_>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut interval = tokio::time::interval(ROUND_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = workers.join_next() => match ended {
                    None => break,
                    Some(result) => {
                        result??;
                        if workers.len() <= self.position_clients as usize {
                            self.shared.set_quiet();
                        }
                    }
                },
                _ = interval.tick() => self.round().await?,
            }
            let elapsed = started.elapsed().min(plan.duration);
            if elapsed == plan.duration && !self.is_to_restart() {
                self.shared.stop();
            }
            let counts = self.checker.counts();
            let done = format!(
                "{} transactions, {} notifications checked",
                counts.committed, counts.notifications
            );
            on_progress(elapsed, done);
        }
        self.round().await
    }

    /// Whether the standby has not been restarted yet as often as it should be.
    fn is_to_restart(&self) -> bool {
        self.shared.standby.is_some()
            && self.shared.tally().restarts < standby::restarts(&self.shared)
    }

    /// Takes what is known by now, waits until everything that committed before
    /// has been decoded, and compares.
    async fn round(&mut self) -> anyhow::Result<()> {
        while let Ok(record) = self.records.try_recv() {
            self.apply(record)?;
        }

        self.rounds += 1;
        let sql = write_marker(self.rounds);
        execute(&self.shared, CHECKER, &self.monitor, &sql).await?;
        loop {
            let what = "the decoded stream to arrive";
            let decoding = within(&self.shared, CHECKER, what, self.decoded.recv()).await?;
            let at = self.shared.now();
            match decoding {
                Some(Decoding::Transaction(id, entries)) => {
                    self.apply(Record::Decoded(Decoded { id, entries, at }))?;
                }
                Some(Decoding::Introduction(introduction, lsn)) => {
                    self.apply(Record::Introduced {
                        introduction,
                        lsn,
                        at,
                    })?;
                }
                Some(Decoding::Marker(number)) if number == self.rounds => break,
                Some(Decoding::Marker(_)) => {}
                None => return Err(self.why_oracle_ended().await),
            }
        }
        self.apply(Record::Round(self.shared.now()))?;
        Ok(())
    }

    /// Records what the checker is told, and tells it.
    fn apply(&mut self, record: Record) -> anyhow::Result<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.add(&record)?;
        }
        Ok(self.checker.apply(record).map_err(Finding::from)?)
    }

    fn finish_recording(&mut self) -> anyhow::Result<()> {
        self.recorder.take().map_or(Ok(()), Recorder::finish)
    }

    /// What is missing may only be late: then it is out of order.
    async fn wait_for_missing(&mut self, mut difference: Box<Difference>) -> Finding {
        let deadline = tokio::time::Instant::now() + LOOK_DEADLINE;
        while difference.what.missing().is_some()
            && !difference.is_late
            && let Ok(Some(record)) = tokio::time::timeout_at(deadline, self.records.recv()).await
        {
            if let Some(recorder) = &mut self.recorder {
                // The difference counts for more than its record.
                let _ = recorder.add(&record);
            }
            difference.is_late = difference.is_arrival_of_missing(&record);
        }
        Finding::Difference(difference)
    }

    async fn why_oracle_ended(&mut self) -> anyhow::Error {
        match self.oracle.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
            _ => anyhow!("the decoded stream has ended"),
        }
    }

    /// What the sessions are doing.
    async fn look_at_sessions(&self, cluster: &Cluster) -> String {
        let looks = if self.has_engine {
            &LOOKS[..]
        } else {
            &LOOKS[..1]
        };
        let mut state = sessions("server", &cluster.config(), looks).await;
        if let Some(standby) = &self.shared.standby {
            state.push_str(&sessions("standby", &standby.config, looks).await);
        }
        state
    }

    /// Something went wrong: finds out more about it.
    async fn look_closer(&mut self, error: anyhow::Error, cluster: &mut Cluster) -> anyhow::Error {
        let error = match error.downcast::<Finding>() {
            Ok(Finding::Hang(text)) => {
                // What did not come may be explained by what did.
                if let Ok(Err(error)) = tokio::time::timeout(LOOK_DEADLINE, self.round()).await
                    && let Ok(Finding::Difference(difference)) = error.downcast()
                {
                    return self.wait_for_missing(difference).await.into();
                }
                let state = self.look_at_sessions(cluster).await;
                return Finding::Hang(format!("{text}{state}")).into();
            }
            Ok(Finding::Difference(difference)) => {
                return self.wait_for_missing(difference).await.into();
            }
            Ok(finding) => finding.into(),
            Err(error) => error,
        };
        ended_or(cluster, error).await
    }
}

/// What the sessions of a server are doing, and whatever else the looks show: a paragraph.
async fn sessions(name: &str, config: &Config, looks: &[&str]) -> String {
    let look = async {
        let client = connect(config).await?;
        let mut lines = String::new();
        for sql in looks {
            for row in client.query(*sql, &[]).await? {
                lines.push_str("\n  ");
                lines.push_str(row.try_get(0)?);
            }
        }
        Ok::<_, tokio_postgres::Error>(lines)
    };
    match tokio::time::timeout(LOOK_DEADLINE, look).await {
        Ok(Ok(lines)) => format!("\n\nThe sessions of the {name}:{lines}"),
        _ => format!("\n\nThe {name} does not tell what its sessions are doing."),
    }
}

/// After the end of all sessions, nothing of them may be left.
async fn ensure_nothing_is_left(
    cluster: &Cluster,
    has_engine: bool,
    timeout: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let client = cluster.connect().await?;
    loop {
        let left = leftovers(&client, has_engine).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let left = left.join("; ");
            let text = format!("after the end of all sessions, something was left: {left}");
            return Err(Finding::Failure(text).into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// What there is that must go, in words.
async fn leftovers(
    client: &Client,
    has_engine: bool,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let mut sql = "SELECT format('session %s (%s, %s)', pid, state, wait_event) \
                   FROM pg_stat_activity \
                   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        .to_owned();
    if has_engine {
        sql.push_str(
            " UNION ALL \
              SELECT format('%s bytes used, %s batches in flight, %s held back, %s to be read', \
                  used_bytes, in_flight, held_back, batches) \
              FROM pinpoint.stat_queue \
              WHERE (used_bytes, in_flight, held_back, batches) <> (0, 0, 0, 0) \
              UNION ALL SELECT format('listener %s', pid) FROM pinpoint.stat_listeners \
              UNION ALL SELECT format('channel %s', channel) FROM pinpoint.stat_channels",
        );
    }
    let rows = client.query(&sql, &[]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}
