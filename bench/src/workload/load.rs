//! Throughput under load: pgbench makes it, listeners read every notification of it, and
//! a probe tells how long a notification is on its way meanwhile.
//!
//! ```text
//! transaction ──► pgbench ──┐            ┌──► listeners ─────────────────┐
//!       │                   ├──► server ─┤                               ├──► figures
//!       └───────► probe ────┘            └──► standby ──► listener, rows ┘
//! ```
//!
//! The listeners are held to the number of transactions that pgbench reports.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::{try_join, try_join_all};
use pinpoint_servers::connection::within;
use pinpoint_servers::server::Server;
use tokio::sync::{Notify, watch};

use super::listeners::{Delivery, Listeners, check};
use super::load_figures::{Outcome, values};
use super::probe::Probe;
use super::row_visibility::RowPoller;
use super::standby::Standby;
use super::transaction::{Transaction, render, with_channel};
use crate::clients::load_listeners::{LoadListeners, exchange};
use crate::clients::pgbench::{self, Pgbench, Protocol};
use crate::clients::processor_time;
use crate::clients::session::Sessions;
use crate::report::results::Values;

/// In the row and in the notification of each transaction of the load.
const PAYLOAD: &str = "0123456789abcdef0123456789abcdef";

/// For the time that is left to be told: what it takes to connect a session.
const CONNECTION_TIME: Duration = Duration::from_millis(3);

/// The probe, and the session that prepares each load.
const SESSIONS_OF_PROBE: u32 = 2;

/// The one that looks for rows, and two that control.
const SESSIONS_OF_STANDBY: u32 = 3;

/// A load, or several that follow one another in each run and are compared: in the other
/// order in every second run.
#[derive(Debug, Clone)]
pub struct Load {
    /// Stands for `{channel}` in all statements; on a running server with a prefix.
    pub channel: &'static str,
    /// Sessions of pgbench. With none of them the time just passes.
    pub clients: u32,
    /// Threads of pgbench, at most.
    pub jobs: Option<u32>,
    pub protocol: Protocol,
    /// Variables of the scripts, and their values at the beginning of each session.
    pub variables: &'static [(&'static str, &'static str)],
    pub warmup: Duration,
    pub duration: Duration,
    pub transactions: Vec<Transaction>,
    pub listeners: Vec<Listeners>,
    /// How often the probe sends.
    pub probe_period: Option<Duration>,
    /// Is there a standby, on which rows are looked for?
    pub has_standby: bool,
}

/// Executes statements in a session of their own.
pub async fn execute(
    server: &Server,
    statements: &[String],
    timeout: Duration,
) -> anyhow::Result<()> {
    if statements.is_empty() {
        return Ok(());
    }
    let execute = async {
        let client = server.connect().await?;
        client.batch_execute(&statements.join("; ")).await
    };
    let executed = within(timeout, "the preparation of a load", execute).await?;
    executed.context("could not prepare a load")
}

/// Listeners that are connected.
struct Connected {
    description: Listeners,
    /// What the server makes of what they ask for.
    delivery: Delivery,
    sessions: LoadListeners,
}

impl Load {
    pub fn sessions(&self) -> u32 {
        let listeners: u32 = self.listeners.iter().map(|listeners| listeners.count).sum();
        let probe = if self.probe_period.is_some() {
            SESSIONS_OF_PROBE
        } else {
            0
        };
        let standby = if self.has_standby {
            SESSIONS_OF_STANDBY
        } else {
            0
        };
        self.clients + listeners + probe + standby
    }

    pub fn run_time(&self) -> Duration {
        let listeners: u32 = self.listeners.iter().map(|listeners| listeners.count).sum();
        let load = self.warmup + self.duration + CONNECTION_TIME * (listeners + self.clients);
        load * self.transactions.len() as u32
    }

    /// Makes the loads of a run, and returns all figures that can be made of them.
    pub async fn run(
        &self,
        server: &Server,
        standby: Option<&Standby>,
        sessions: &Sessions,
        run: u32,
        timeout: Duration,
    ) -> anyhow::Result<Values> {
        let mut transactions: Vec<&Transaction> = self.transactions.iter().collect();
        if run.is_multiple_of(2) {
            transactions.reverse();
        }
        let mut values = Values::new();
        for transaction in transactions {
            let load = self.load(transaction, server, standby, sessions, timeout);
            let load = load.await;
            values.extend(load.with_context(|| format!("{} load", transaction.name))?);
            let gone = sessions.wait_for_others_to_go();
            within(timeout, "the end of all sessions", gone).await??;
        }
        if let (Some(notify), Some(plain)) = (values.get("notify_tps"), values.get("plain_tps")) {
            values.insert("notify_to_plain".to_owned(), notify / plain);
        }
        Ok(values)
    }

    /// Makes one load, and checks that every notification of it has arrived.
    async fn load(
        &self,
        transaction: &Transaction,
        server: &Server,
        standby: Option<&Standby>,
        sessions: &Sessions,
        timeout: Duration,
    ) -> anyhow::Result<Values> {
        let channel = server.channel(self.channel);
        let prepare: Vec<String> = transaction
            .prepare
            .iter()
            .map(|statement| with_channel(statement, &channel))
            .collect();
        execute(server, &prepare, timeout).await?;
        within(timeout, "a checkpoint", server.checkpoint()).await??;
        if let Some(standby) = standby {
            within(timeout, "the replay of the preparation", standby.catch_up()).await??;
        }
        let connecting = self.connect(server, standby, &channel);
        let listeners = within(timeout, "the connections of the listeners", connecting).await??;
        let outcome = self
            .record(transaction, server, standby, sessions, listeners, timeout)
            .await?;
        Ok(values(transaction, &self.listeners, &outcome))
    }

    async fn connect(
        &self,
        server: &Server,
        standby: Option<&Standby>,
        channel: &str,
    ) -> anyhow::Result<Vec<Connected>> {
        let mut connected = Vec::new();
        for &description in &self.listeners {
            let (delivery, mut config) = description.delivery.on(server, channel).await?;
            let mut count = description.count;
            if let (true, Some(standby)) = (description.on_standby, standby) {
                config = standby.config();
                count = if standby.replicates { count } else { 0 };
            }
            let listen = description.statements(channel);
            connected.push(Connected {
                description,
                delivery,
                sessions: LoadListeners::start(count, &config, &listen).await?,
            });
        }
        Ok(connected)
    }

    async fn record(
        &self,
        transaction: &Transaction,
        server: &Server,
        standby: Option<&Standby>,
        sessions: &Sessions,
        mut listeners: Vec<Connected>,
        timeout: Duration,
    ) -> anyhow::Result<Outcome> {
        let channel = server.channel(self.channel);
        let processes = server_processes(server, sessions, &listeners, &channel).await?;
        let server_before = processor_time(&processes);
        let client_before = client_time(&listeners).await?;
        let (sent, sent_by_now) = watch::channel(0);
        let (mut rows, mut wal_before) = (None, 0);
        if let Some(standby) = standby {
            let poller = RowPoller::start(standby.config(), sent_by_now);
            rows = Some(within(timeout, "a connection", poller).await??);
            wal_before = standby.wal_bytes().await?;
        }

        let sending = async {
            // The poller ends when this is dropped, and all rows have been seen.
            let sent = sent;
            let load_end = Cell::new(None);
            let warm = Notify::new();
            let load = async {
                let load = self.pgbench(transaction, server, &channel, timeout, || {
                    warm.notify_one();
                });
                let load = load.await;
                load_end.set(Some(Instant::now()));
                // A load that was too short to get warm is over now.
                warm.notify_one();
                load
            };
            let probing = async {
                let Some(period) = self.probe_period else {
                    return Ok((Vec::new(), Instant::now()));
                };
                let client = within(timeout, "a connection", server.connect()).await??;
                let probe = Probe {
                    client: &client,
                    channel: &channel,
                    statements: &transaction.probe,
                    period,
                    timeout,
                };
                warm.notified().await;
                let on_send = |number| {
                    sent.send_replace(number + 1);
                };
                probe.run(&load_end, on_send).await
            };
            try_join(load, probing).await
        };
        let receiving = async {
            let received = listeners.iter_mut().map(|group| group.sessions.receive());
            let visible = async {
                match &mut rows {
                    Some(rows) => Ok(Some(rows.visible().await?)),
                    None => Ok(None),
                }
            };
            try_join(try_join_all(received), visible).await
        };
        let ((load, (probes, fence)), (received, rows)) =
            exchange(sending, receiving, timeout).await?;

        let mut wal_bytes = None;
        if let Some(standby) = standby {
            wal_bytes = Some(standby.wal_bytes().await? - wal_before);
            within(timeout, "the replay of the rest", standby.catch_up()).await??;
        }
        let (probes_sent, transactions) = match transaction.notifies {
            true => (
                probes.len() as u32,
                load.map_or(0, |load| load.transactions),
            ),
            false => (0, 0),
        };
        for (group, received) in listeners.iter().zip(&received) {
            let transactions = match group.description.gets_load {
                true => transactions,
                false => 0,
            };
            check(received, group.delivery, probes_sent, transactions)?;
        }
        let server_time = processor_time(&processes).zip(server_before);
        Ok(Outcome {
            load,
            probes,
            fence,
            received,
            server_time: server_time.map(|(after, before)| after.saturating_sub(before)),
            client_time: client_time(&listeners).await? - client_before,
            rows,
            wal_bytes,
        })
    }

    /// The load of all sessions of pgbench. Without any it is only the time that passes.
    async fn pgbench(
        &self,
        transaction: &Transaction,
        server: &Server,
        channel: &str,
        timeout: Duration,
        on_warm: impl Fn(),
    ) -> anyhow::Result<Option<pgbench::Load>> {
        if self.clients == 0 {
            tokio::time::sleep(self.warmup).await;
            on_warm();
            tokio::time::sleep(self.duration).await;
            return Ok(None);
        }
        let script = render(&transaction.script, channel, ":client_id", PAYLOAD);
        let jobs = pgbench::jobs(self.clients);
        let pgbench = Pgbench {
            script: &(script.join("\n") + "\n"),
            variables: self.variables,
            clients: self.clients,
            jobs: self.jobs.map_or(jobs, |most| most.min(self.clients)),
            protocol: self.protocol,
            warmup: self.warmup,
            duration: self.duration,
            timeout,
        };
        Ok(Some(pgbench.run(server, on_warm).await?))
    }
}

/// The server processes of the listeners, if they are on this machine.
async fn server_processes(
    server: &Server,
    sessions: &Sessions,
    listeners: &[Connected],
    channel: &str,
) -> anyhow::Result<Vec<i32>> {
    let mut processes = Vec::new();
    if server.is_own() {
        for group in listeners
            .iter()
            .filter(|group| !group.description.on_standby)
        {
            let listen = group.description.statements(channel);
            processes.extend(sessions.processes_of(&listen).await?);
        }
    }
    Ok(processes)
}

/// Of all these processes, if there are any, and it can be seen.
fn processor_time(processes: &[i32]) -> Option<Duration> {
    let times = processes.iter().map(|&pid| processor_time::of_process(pid));
    let time: Option<Duration> = times.sum();
    time.filter(|_| !processes.is_empty())
}

async fn client_time(listeners: &[Connected]) -> anyhow::Result<Duration> {
    let mut sum = Duration::ZERO;
    for group in listeners {
        sum += group.sessions.processor_time().await?;
    }
    Ok(sum)
}
