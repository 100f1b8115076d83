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

use anyhow::{Context, ensure};
use futures_util::future::{try_join, try_join_all};
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;
use tokio::sync::{Notify, watch};
use tokio_postgres::Config;

use super::probe::{Probe, Sent};
use super::row_visibility::{RowPoller, Visible};
use super::standby::Standby;
use crate::clients::latency::Latencies;
use crate::clients::load_listeners::{LoadListeners, Received, exchange, listen_to_fence};
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

/// What the sessions of a load repeat.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// For errors.
    pub name: &'static str,
    /// The figure with the transactions per second.
    pub rate: &'static str,
    /// Executed before the load, so that all loads begin alike.
    pub prepare: Vec<String>,
    /// For pgbench.
    pub script: Vec<Statement>,
    /// The same for the probe, if there is one.
    pub probe: Vec<Statement>,
    /// Does each transaction send one notification?
    pub notifies: bool,
}

/// A statement, with `{channel}`, `{client}` and `{payload}` to be filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    Plain(String),
    /// A statement without a semicolon, made as long as another one by a comment.
    AsLongAs(&'static str, String),
}

/// Sessions that listen, and read everything that they get.
#[derive(Debug, Clone, Copy)]
pub struct Listeners {
    /// What the figures begin with that tell when the probes arrived, each from when it
    /// was due.
    pub figures: &'static str,
    pub count: u32,
    pub on_standby: bool,
    /// What they execute to listen.
    pub listen: &'static str,
    /// Whether they get the notifications of the load, and not those of the probe alone.
    pub gets_load: bool,
    pub delivery: Delivery,
}

/// Which listeners are to get a notification: what they ask the server for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Every listener gets every notification
    Broadcast,
    /// Identical ones that wait for a listener arrive once (pinpoint.fold)
    Folded,
    /// Each notification goes to a few of the listeners (pinpoint.shared_channels)
    Shared,
}

impl Delivery {
    /// The setting that a session asks with, and its value.
    fn setting(self, channel: &str) -> Option<(&'static str, String)> {
        match self {
            Self::Broadcast => None,
            Self::Folded => Some(("pinpoint.fold", "on".to_owned())),
            Self::Shared => Some(("pinpoint.shared_channels", channel.to_owned())),
        }
    }

    /// What this comes to on a server, and how a listener connects there. Where the
    /// setting is not known everybody gets everything.
    async fn on(self, server: &Server, channel: &str) -> anyhow::Result<(Self, Config)> {
        let mut config = server.config();
        let Some((name, value)) = self.setting(channel) else {
            return Ok((self, config));
        };
        let sql = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = $1)";
        let row = server.connect().await?.query_one(sql, &[&name]).await;
        let row = row.with_context(|| format!("could not ask whether there is {name}"))?;
        if !row.try_get::<_, bool>(0)? {
            return Ok((Self::Broadcast, config));
        }
        let options = config.get_options().unwrap_or_default();
        let options = format!("{options} -c {name}={value}");
        config.options(options.trim_start());
        Ok((self, config))
    }
}

/// Fills statements in.
pub fn render(statements: &[Statement], channel: &str, client: &str, payload: &str) -> Vec<String> {
    let fill = |text: &str| {
        with_channel(text, channel)
            .replace("{client}", client)
            .replace("{payload}", payload)
    };
    let statements = statements.iter().map(|statement| match statement {
        Statement::Plain(text) => fill(text),
        Statement::AsLongAs(text, other) => padded(text, fill(other).len()),
    });
    statements.collect()
}

fn with_channel(text: &str, channel: &str) -> String {
    text.replace("{channel}", channel)
}

/// A statement with its semicolon, made `length` bytes long by a comment.
fn padded(statement: &str, length: usize) -> String {
    let filling = length.saturating_sub(statement.len() + " /**/;".len());
    format!("{statement} /*{}*/;", "-".repeat(filling))
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

/// What happened in a load.
struct Outcome {
    /// Of pgbench, if it had sessions.
    load: Option<pgbench::Load>,
    probes: Vec<Sent>,
    /// When the fence was committed.
    fence: Instant,
    /// For each of the groups of listeners.
    received: Vec<Vec<Received>>,
    /// Processor time of the listeners' server processes, where it can be seen.
    server_time: Option<Duration>,
    /// That of this program's threads which read the listeners.
    client_time: Duration,
    rows: Option<Visible>,
    wal_bytes: Option<u64>,
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
            let listen = listen(&description, channel);
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

/// What a listener executes.
fn listen(listeners: &Listeners, channel: &str) -> String {
    let listen = with_channel(listeners.listen, channel);
    format!("{listen}; {}", listen_to_fence(channel))
}

/// The server processes of the listeners, if they are on this machine.
async fn server_processes(
    server: &Server,
    sessions: &Sessions,
    listeners: &[Connected],
    channel: &str,
) -> anyhow::Result<Vec<i32>> {
    let mut processes = Vec::new();
    if let Server::Own(_) = server {
        for group in listeners
            .iter()
            .filter(|group| !group.description.on_standby)
        {
            let listen = listen(&group.description, channel);
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

/// Everything that was sent must have been received, once: by every listener, or,
/// where they share the channel, by one of them at least. What was folded may have
/// arrived as little as once.
fn check(
    received: &[Received],
    delivery: Delivery,
    probes: u32,
    transactions: u64,
) -> anyhow::Result<()> {
    if received.is_empty() {
        return Ok(());
    }
    for Received { probes: got, .. } in received {
        let (got, last) = (got.len(), got.last().map(|&(number, _)| number));
        ensure!(
            last.is_none_or(|number| number < probes),
            "a listener received a probe that was not sent: the server invented it"
        );
        ensure!(
            delivery == Delivery::Shared || got == probes as usize,
            "a listener received {got} of the {probes} probes: the server lost or invented some"
        );
    }
    let mut somewhere = vec![false; probes as usize];
    for (number, _) in received.iter().flat_map(|received| &received.probes) {
        somewhere[*number as usize] = true;
    }
    let nowhere = somewhere.iter().filter(|arrived| !**arrived).count();
    ensure!(
        nowhere == 0,
        "{nowhere} of the {probes} probes arrived at no listener"
    );

    let least = match delivery {
        Delivery::Broadcast => transactions,
        Delivery::Folded => transactions.min(1),
        Delivery::Shared => 0,
    };
    for Received { load, .. } in received {
        ensure!(
            (least..=transactions).contains(load),
            "a listener received {load} notifications of the load, but {transactions} transactions \
             have sent one: the server lost or invented some"
        );
    }
    let all: u64 = received.iter().map(|received| received.load).sum();
    ensure!(
        delivery != Delivery::Shared || all >= transactions,
        "all listeners together received {all} notifications of the load, but {transactions} \
         transactions have sent one: the server lost some"
    );
    Ok(())
}

/// The figures of a load. A benchmark reports those that it names.
fn values(transaction: &Transaction, listeners: &[Listeners], outcome: &Outcome) -> Values {
    let mut values = Values::new();
    let mut set = |name: &str, value: f64| values.insert(name.to_owned(), value);
    let transactions = outcome.load.map_or(0, |load| load.transactions);
    if let Some(load) = outcome.load {
        set(transaction.rate, load.transactions_per_sec);
    }
    if !transaction.notifies {
        return values;
    }

    let probes = &outcome.probes;
    let received = outcome.received.iter().flatten();
    let of_each = |what: f64| what / transactions.max(1) as f64;
    let usec = |time: Duration| of_each(time.as_secs_f64() * 1e6);
    if let Some(time) = outcome.server_time {
        set("listeners_server_usec", usec(time));
    }
    set("listeners_client_usec", usec(outcome.client_time));
    let deliveries: u64 = received.clone().map(|received| received.load).sum();
    set("deliveries_per_notification", of_each(deliveries as f64));
    let backlog = received.map(|received| received.fence.saturating_duration_since(outcome.fence));
    let backlog = backlog.max().unwrap_or_default();
    set("backlog_usec", backlog.as_micros() as f64);
    set("probes", probes.len() as f64);
    if let Some(bytes) = outcome.wal_bytes.filter(|_| outcome.load.is_some()) {
        let transactions = transactions + probes.len() as u64;
        let per_transaction = bytes as f64 / transactions as f64;
        set("wal_bytes_per_transaction", per_transaction);
    }

    let mut from_due = Vec::new();
    for (group, received) in listeners.iter().zip(&outcome.received) {
        let latencies = latencies_from_due(received, probes);
        values.extend(latencies.figures(group.figures));
        from_due.push((group.figures, latencies));
    }
    if let Some(received) = outcome.received.first() {
        let latencies = latencies_from_commit(received, probes);
        values.insert("from_commit_count".to_owned(), latencies.count() as f64);
        values.extend(latencies.figures("from_commit"));
        values.extend(first_latencies_from_due(received, probes).figures("first_from_due"));
    }
    if let Some(rows) = &outcome.rows {
        let standby = from_due.iter().find(|(figures, _)| *figures == "standby");
        values.extend(row_values(
            rows,
            probes,
            standby.map(|(_, latencies)| latencies),
        ));
    }
    values
}

/// When the rows of the probe became visible on the standby, and how much longer the
/// notifications took.
fn row_values(rows: &Visible, probes: &[Sent], standby: Option<&Latencies>) -> Values {
    let mut visible = Latencies::new();
    for (sent, seen) in probes.iter().zip(&rows.seen) {
        visible.record(seen.saturating_duration_since(sent.due));
    }
    let mut values = Values::new();
    values.extend(visible.figures("row_visible"));
    let question = rows.questions.at_quantile(0.50);
    values.extend(question.map(|usec| ("question_p50_usec".to_owned(), usec as f64)));
    for (name, quantile) in [
        ("standby_to_row_visible", 0.50),
        ("standby_to_row_visible_p99", 0.99),
    ] {
        let standby = standby.and_then(|latencies| latencies.at_quantile(quantile));
        let pair = standby.zip(visible.at_quantile(quantile));
        values.extend(pair.map(|(standby, row)| (name.to_owned(), standby as f64 / row as f64)));
    }
    values
}

/// Of all probes at all listeners that they arrived at, from when each was due.
fn latencies_from_due(received: &[Received], probes: &[Sent]) -> Latencies {
    let mut latencies = Latencies::new();
    for &(number, arrived) in received.iter().flat_map(|received| &received.probes) {
        latencies.record(arrived.saturating_duration_since(probes[number as usize].due));
    }
    latencies
}

/// The same at the first listener of each probe.
fn first_latencies_from_due(received: &[Received], probes: &[Sent]) -> Latencies {
    let mut first: Vec<Option<Instant>> = vec![None; probes.len()];
    for &(number, arrived) in received.iter().flat_map(|received| &received.probes) {
        let first = &mut first[number as usize];
        *first = Some(first.map_or(arrived, |first| first.min(arrived)));
    }
    let mut latencies = Latencies::new();
    for (sent, arrived) in probes.iter().zip(first) {
        if let Some(arrived) = arrived {
            latencies.record(arrived.saturating_duration_since(sent.due));
        }
    }
    latencies
}

/// Of the probes that were committed under load, from when their sender knew of it. A
/// notification that arrives before that took no time from there.
fn latencies_from_commit(received: &[Received], probes: &[Sent]) -> Latencies {
    let mut latencies = Latencies::new();
    for &(number, arrived) in received.iter().flat_map(|received| &received.probes) {
        let sent = &probes[number as usize];
        if sent.under_load {
            latencies.record(arrived.saturating_duration_since(sent.committed));
        }
    }
    latencies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::latency::tests::of;

    const MS: Duration = Duration::from_millis(1);

    fn probes(start: Instant) -> Vec<Sent> {
        let sent = |due, committed, under_load| Sent {
            due: start + due * MS,
            committed: start + committed * MS,
            under_load,
        };
        vec![sent(10, 12, true), sent(20, 25, true), sent(30, 40, false)]
    }

    fn received(start: Instant, probes: &[(u32, u32)], load: u64) -> Received {
        Received {
            probes: probes.iter().map(|&(n, ms)| (n, start + ms * MS)).collect(),
            fence: start + 300 * MS,
            load,
        }
    }

    fn transaction(notifies: bool) -> Transaction {
        Transaction {
            name: "notify",
            rate: "notify_tps",
            prepare: Vec::new(),
            script: Vec::new(),
            probe: Vec::new(),
            notifies,
        }
    }

    fn group(figures: &'static str) -> Listeners {
        Listeners {
            figures,
            count: 2,
            on_standby: false,
            listen: "LISTEN {channel}",
            gets_load: true,
            delivery: Delivery::Broadcast,
        }
    }

    fn outcome(start: Instant, received: Vec<Vec<Received>>) -> Outcome {
        Outcome {
            load: Some(pgbench::Load {
                transactions: 5,
                transactions_per_sec: 300.0,
            }),
            probes: probes(start),
            fence: start + 50 * MS,
            received,
            server_time: Some(Duration::from_micros(50)),
            client_time: Duration::from_micros(20),
            rows: None,
            wal_bytes: None,
        }
    }

    #[track_caller]
    fn assert_values(values: &Values, expected: &[(&str, f64)]) {
        for (name, value) in expected {
            // Latencies are kept to three digits.
            let difference = (values[*name] - value).abs() / value;
            assert!(difference < 2e-3, "{name} in {values:?}");
        }
    }

    #[test]
    fn latencies_from_commit_and_from_due() {
        let start = Instant::now();
        let received = [
            // The second probe overtakes the report of its commit.
            received(start, &[(0, 15), (1, 24), (2, 41)], 0),
            received(start, &[(1, 22)], 0),
        ];
        let probes = probes(start);
        let from_commit = latencies_from_commit(&received, &probes);
        assert_eq!(from_commit, of([3000, 0, 0]));
        let from_due = latencies_from_due(&received, &probes);
        assert_eq!(from_due, of([5000, 4000, 11_000, 2000]));
        let first = first_latencies_from_due(&received, &probes);
        assert_eq!(first, of([5000, 2000, 11_000]));
    }

    #[test]
    fn figures_of_a_load() {
        let start = Instant::now();
        let received = vec![vec![
            received(start, &[(0, 15), (1, 24), (2, 41)], 5),
            received(start, &[(0, 16), (1, 22), (2, 42)], 5),
        ]];
        let outcome = outcome(start, received);
        let values_of = values(&transaction(true), &[group("from_due")], &outcome);
        assert_values(
            &values_of,
            &[
                ("notify_tps", 300.0),
                ("backlog_usec", 250_000.0),
                ("listeners_server_usec", 10.0),
                ("listeners_client_usec", 4.0),
                ("deliveries_per_notification", 2.0),
                ("from_commit_count", 4.0),
                ("from_due_max_usec", 12_000.0),
                ("first_from_due_p50_usec", 5000.0),
            ],
        );
        // Nothing is delivered of a load that does not notify.
        let values_of = values(&transaction(false), &[group("from_due")], &outcome);
        assert_eq!(values_of, [("notify_tps".to_owned(), 300.0)].into());
    }

    #[test]
    fn figures_of_a_standby() {
        let start = Instant::now();
        let on_standby = vec![received(start, &[(0, 13), (1, 23), (2, 38)], 0)];
        let mut outcome = outcome(start, vec![Vec::new(), on_standby]);
        outcome.wal_bytes = Some(2000);
        outcome.rows = Some(Visible {
            seen: [14, 22, 40].map(|ms| start + ms * MS).into(),
            questions: of([60, 70, 500]),
        });
        let groups = [group("primary"), group("standby")];
        let values_of = values(&transaction(true), &groups, &outcome);
        assert_values(
            &values_of,
            &[
                ("wal_bytes_per_transaction", 250.0),
                ("standby_p50_usec", 3000.0),
                ("row_visible_p50_usec", 4000.0),
                ("standby_to_row_visible", 0.75),
                ("standby_to_row_visible_p99", 0.8),
                ("probes", 3.0),
                ("question_p50_usec", 70.0),
            ],
        );
        // Without writers, and where no notification comes, these are not there.
        outcome.load = None;
        outcome.received[1].clear();
        let values_of = values(&transaction(true), &groups, &outcome);
        for name in [
            "notify_tps",
            "wal_bytes_per_transaction",
            "standby_p50_usec",
        ] {
            assert!(!values_of.contains_key(name), "{name}");
        }
        assert!(!values_of.contains_key("standby_to_row_visible"));
    }

    #[test]
    fn what_is_lost_is_an_error() {
        use Delivery::{Broadcast, Folded, Shared};

        let start = Instant::now();
        let all = &[(0, 1), (1, 2), (2, 3)][..];
        let check = |delivery, probes, transactions, listeners: &[(&[(u32, u32)], u64)]| {
            let listeners = listeners.iter();
            let received: Vec<Received> = listeners
                .map(|&(probes, load)| received(start, probes, load))
                .collect();
            check(&received, delivery, probes, transactions).is_ok()
        };
        // Nothing is sent by a plain load.
        for delivery in [Broadcast, Folded, Shared] {
            assert!(check(delivery, 0, 0, &[(&[], 0), (&[], 0)]));
            assert!(!check(delivery, 0, 0, &[(&[], 1)]));
            assert!(!check(delivery, 0, 0, &[(&all[..1], 0)]));
            assert!(check(delivery, 3, 7, &[(all, 7), (all, 7)]));
            assert!(!check(delivery, 3, 7, &[(all, 7), (all, 8)]));
            assert!(!check(delivery, 3, 7, &[(&all[..2], 7), (&all[..2], 7)]));
            assert!(!check(delivery, 2, 7, &[(all, 7)]));
        }
        // Some are not for all.
        for (delivery, listeners, expected) in [
            (Broadcast, [(all, 6), (all, 7)], false),
            (Broadcast, [(&all[1..], 7), (all, 7)], false),
            (Folded, [(all, 1), (all, 7)], true),
            (Folded, [(all, 0), (all, 7)], false),
            (Folded, [(&all[1..], 7), (all, 7)], false),
            (Shared, [(&all[1..], 0), (&all[..1], 7)], true),
            (Shared, [(all, 3), (&[][..], 4)], true),
            (Shared, [(all, 3), (&[][..], 3)], false),
        ] {
            assert_eq!(check(delivery, 3, 7, &listeners), expected, "{delivery:?}");
        }
    }
}
