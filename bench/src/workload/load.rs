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
use super::transaction::{Statement, Transaction, render, with_channel};
use crate::clients::load_listeners::{LoadListeners, exchange};
use crate::clients::pgbench::{self, Pgbench};
use crate::clients::session::Sessions;
use crate::report::results::Values;

/// In the row and in the notification of each transaction of the load.
const PAYLOAD: &str = "0123456789abcdef0123456789abcdef";

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
    /// With no sessions the time just passes.
    pub pgbench: Pgbench,
    pub transactions: Vec<Transaction>,
    pub listeners: Vec<Listeners>,
    /// How often the probe sends.
    pub probe_period: Option<Duration>,
}

/// Where a load is made.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub server: &'a Server,
    pub standby: Option<&'a Standby>,
    pub sessions: &'a Sessions<'a>,
    pub timeout: Duration,
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
        for statement in statements {
            client.batch_execute(statement).await?;
        }
        anyhow::Ok(())
    };
    let executed = within(timeout, "the preparation of a load", execute).await?;
    executed.context("could not prepare a load")
}

impl Load {
    /// A load of pgbench that nobody listens to. `rate` is the figure with its transactions
    /// per second.
    pub fn of_script(
        channel: &'static str,
        pgbench: Pgbench,
        rate: &'static str,
        prepare: Vec<String>,
        script: String,
    ) -> Self {
        Self {
            channel,
            pgbench,
            transactions: vec![Transaction {
                name: "pgbench",
                rate,
                prepare,
                script: vec![Statement::Plain(script)],
                probe: Vec::new(),
                notifies: false,
            }],
            listeners: Vec::new(),
            probe_period: None,
        }
    }

    pub fn sessions(&self) -> u32 {
        let has_standby = self.listeners.iter().any(|listeners| listeners.on_standby);
        let own = [
            (self.probe_period.is_some(), SESSIONS_OF_PROBE),
            (has_standby, SESSIONS_OF_STANDBY),
        ];
        let own = own.into_iter().filter(|(has, _)| *has);
        let listeners = self.listeners.iter().map(|listeners| listeners.count);
        self.pgbench.clients
            + listeners
                .chain(own.map(|(_, sessions)| sessions))
                .sum::<u32>()
    }

    /// Makes the loads of a run, and returns all figures that can be made of them.
    pub async fn run(&self, place: Place<'_>, run: u32) -> anyhow::Result<Values> {
        let mut transactions: Vec<&Transaction> = self.transactions.iter().collect();
        if run.is_multiple_of(2) {
            transactions.reverse();
        }
        let mut values = Values::new();
        for transaction in transactions {
            let one = OneLoad {
                load: self,
                transaction,
                channel: place.server.channel(self.channel),
                place,
            };
            let made = one.make().await;
            values.extend(made.with_context(|| format!("{} load", transaction.name))?);
            let gone = place.sessions.wait_for_others_to_go();
            within(place.timeout, "the end of all sessions", gone).await??;
        }
        if let (Some(notify), Some(plain)) = (values.get("notify_tps"), values.get("plain_tps")) {
            values.insert("notify_to_plain".to_owned(), notify / plain);
        }
        Ok(values)
    }
}

/// Listeners that are connected.
struct Connected {
    description: Listeners,
    /// What the server makes of what they ask for.
    delivery: Delivery,
    sessions: LoadListeners,
}

/// One of the loads of a run.
struct OneLoad<'a> {
    load: &'a Load,
    transaction: &'a Transaction,
    /// As it is called on the server.
    channel: String,
    place: Place<'a>,
}

impl OneLoad<'_> {
    /// Makes it, and checks that every notification of it has arrived.
    async fn make(&self) -> anyhow::Result<Values> {
        let (server, standby) = (self.place.server, self.place.standby);
        let timeout = self.place.timeout;
        let prepare = self.transaction.prepare.iter();
        let prepare: Vec<String> = prepare
            .map(|statement| with_channel(statement, &self.channel))
            .collect();
        execute(server, &prepare, timeout).await?;
        within(timeout, "a checkpoint", server.checkpoint()).await??;
        if let Some(standby) = standby {
            within(timeout, "the replay of the preparation", standby.catch_up()).await??;
        }
        let connecting = self.connect();
        let listeners = within(timeout, "the connections of the listeners", connecting).await??;
        let outcome = self.record(listeners).await?;
        Ok(values(self.transaction, &self.load.listeners, &outcome))
    }

    async fn connect(&self) -> anyhow::Result<Vec<Connected>> {
        let mut connected = Vec::new();
        for &description in &self.load.listeners {
            let delivery = description.delivery.on(self.place.server, &self.channel);
            let (delivery, mut config) = delivery.await?;
            let mut count = description.count;
            if let (true, Some(standby)) = (description.on_standby, self.place.standby) {
                config = standby.config();
                count = if standby.replicates { count } else { 0 };
            }
            let listen = description.statements(&self.channel);
            let sessions = LoadListeners::start(count, &config, &listen, self.place.timeout);
            connected.push(Connected {
                description,
                delivery,
                sessions: sessions.await?,
            });
        }
        Ok(connected)
    }

    async fn record(&self, mut listeners: Vec<Connected>) -> anyhow::Result<Outcome> {
        let (server, standby) = (self.place.server, self.place.standby);
        let timeout = self.place.timeout;
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
                let load = self.pgbench(|| warm.notify_one()).await;
                load_end.set(Some(Instant::now()));
                // A load that was too short to get warm is over now.
                warm.notify_one();
                load
            };
            let probing = async {
                let Some(period) = self.load.probe_period else {
                    return Ok((Vec::new(), Instant::now()));
                };
                let client = within(timeout, "a connection", server.connect()).await??;
                let probe = Probe {
                    client: &client,
                    channel: &self.channel,
                    statements: &self.transaction.probe,
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
        let mut expected = (0, 0);
        if self.transaction.notifies {
            let transactions = load.map_or(0, |load| load.transactions);
            expected = (probes.len() as u32, transactions);
        }
        let (probes_sent, transactions) = expected;
        for (group, received) in listeners.iter().zip(&received) {
            let transactions = match group.description.gets_load {
                true => transactions,
                false => 0,
            };
            check(received, group.delivery, probes_sent, transactions)?;
        }
        Ok(Outcome {
            load,
            probes,
            fence,
            received,
            client_time: client_time(&listeners).await? - client_before,
            rows,
            wal_bytes,
        })
    }

    /// The load of all sessions of pgbench. Without any it is only the time that passes.
    async fn pgbench(&self, on_warm: impl Fn()) -> anyhow::Result<Option<pgbench::Load>> {
        let pgbench = &self.load.pgbench;
        if pgbench.clients == 0 {
            tokio::time::sleep(pgbench.warmup).await;
            on_warm();
            tokio::time::sleep(pgbench.duration).await;
            return Ok(None);
        }
        let script = &self.transaction.script;
        let script = render(script, &self.channel, ":client_id", PAYLOAD).join("\n") + "\n";
        let (server, timeout) = (self.place.server, self.place.timeout);
        Ok(Some(pgbench.run(server, &script, timeout, on_warm).await?))
    }
}

async fn client_time(listeners: &[Connected]) -> anyhow::Result<Duration> {
    let mut sum = Duration::ZERO;
    for group in listeners {
        sum += group.sessions.readers.processor_time().await?;
    }
    Ok(sum)
}
