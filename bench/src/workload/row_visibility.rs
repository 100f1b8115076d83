//! A session on the standby that looks for the rows of the probe: how long PostgreSQL
//! itself takes to show them there.

use std::time::Instant;

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config};

use super::probe::PROBER;
use crate::clients::latency::Latencies;
use crate::clients::load_listeners::probe_payload;
use crate::clients::reader::{self, ReaderThread};

/// Makes an index on the rows of the probe, by which they are found however many the
/// load has written. Those of the load are not in it.
pub fn index() -> String {
    format!("CREATE INDEX ON written (payload) WHERE client = {PROBER}")
}

/// When the rows became visible.
#[derive(Debug)]
pub struct Visible {
    /// When each row was seen first, by the numbers of the probes.
    pub seen: Vec<Instant>,
    /// How long each question took: no row can be seen more exactly than that.
    pub questions: Latencies,
}

/// The session, with a thread of its own.
#[derive(Debug)]
pub struct RowPoller {
    visible: JoinHandle<anyhow::Result<Visible>>,
    _thread: ReaderThread,
}

impl RowPoller {
    /// Connects. `sent` is how many probes have been sent, or are being sent; all of them
    /// have when it is closed.
    pub async fn start(config: Config, sent: watch::Receiver<u32>) -> anyhow::Result<Self> {
        let thread = ReaderThread::start()?;
        let connecting = thread.spawn(async move { reader::connect(&config, |_| ()).await });
        let client = connecting.await??;
        Ok(Self {
            visible: thread.spawn(look(client, sent)),
            _thread: thread,
        })
    }

    /// Waits until all have been seen.
    pub async fn visible(&mut self) -> anyhow::Result<Visible> {
        let visible = (&mut self.visible).await?;
        visible.context("the session that looks for the rows on the standby failed")
    }
}

/// Asks as long as there is a row to be seen, without a pause.
async fn look(client: Client, mut sent: watch::Receiver<u32>) -> anyhow::Result<Visible> {
    // The table is empty when the query is planned.
    client.batch_execute("SET enable_seqscan = off").await?;
    let sql =
        format!("SELECT EXISTS (SELECT FROM written WHERE client = {PROBER} AND payload = $1)");
    let query = client.prepare(&sql).await?;
    let mut visible = Visible {
        seen: Vec::new(),
        questions: Latencies::new(),
    };
    for number in 0.. {
        if sent.wait_for(|&sent| sent > number).await.is_err() {
            break;
        }
        let payload = probe_payload(number);
        loop {
            let asked = Instant::now();
            let is_there = client.query_one(&query, &[&payload]).await?.try_get(0)?;
            let answered = Instant::now();
            visible.questions.record(answered - asked);
            if is_there {
                visible.seen.push(answered);
                break;
            }
        }
    }
    Ok(visible)
}
