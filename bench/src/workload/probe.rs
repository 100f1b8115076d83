//! A session that sends at fixed times while the load goes on.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use pinpoint_servers::connection::within;
use tokio_postgres::Client;

use super::transaction::{Statement, render};
use crate::clients::load_listeners::{fence, probe_payload};

/// The timer of the event loop is no finer.
const TIMER: Duration = Duration::from_millis(1);

/// In the rows of the probe, where those of the load have the number of their session.
pub const PROBER: &str = "-1";

pub struct Probe<'a> {
    pub client: &'a Client,
    pub channel: &'a str,
    /// Its transaction.
    pub statements: &'a [Statement],
    pub period: Duration,
    pub timeout: Duration,
}

impl Probe<'_> {
    /// Sends a probe at every multiple of the period until the load has ended, as
    /// `load_end` will tell. A probe that is late because the one before took
    /// long is sent nevertheless, so that its waiting counts ("coordinated
    /// omission"). The fence comes last. `on_send` is told the number of each probe
    /// right before.
    ///
    /// Returns when each probe was due, and when the fence was committed.
    pub async fn run(
        &self,
        load_end: &Cell<Option<Instant>>,
        on_send: impl Fn(u32),
    ) -> anyhow::Result<(Vec<Instant>, Instant)> {
        let mut probes = Vec::new();
        let start = Instant::now();
        for number in 0.. {
            let due = start + self.period * number;
            sleep_until(due).await;
            if load_end.get().is_some_and(|end| end < due) {
                break;
            }
            on_send(number);
            let payload = probe_payload(number);
            let statements = render(self.statements, self.channel, PROBER, &payload);
            self.execute(&statements.join(" ")).await?;
            probes.push(due);
        }
        self.execute(&fence(self.channel)).await?;
        Ok((probes, Instant::now()))
    }

    async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let executed = within(self.timeout, "a probe", self.client.batch_execute(sql)).await?;
        executed.context("the session that sends the probes failed")
    }
}

/// Sleeps more exactly than the timer of the event loop does, which would add
/// about a millisecond to each latency. Nothing in this thread is as urgent.
async fn sleep_until(due: Instant) {
    tokio::time::sleep_until((due - TIMER).into()).await;
    thread::sleep(due.saturating_duration_since(Instant::now()));
}
