//! `commit`, `notify` and `queue`: throughput under load. What a notification adds to a
//! transaction that writes, how many of them many sessions can send, and what it takes if
//! many listen on the channel, as the workers of a job queue do.

use std::time::Duration;

use clap::ArgAction;
use pinpoint_servers::options::{Numbers, number, numbers};
use serde::Serialize;

use super::options::{ProbeArgs, TimeArgs, latency_figures, named_if_several, points, unnamed};
use super::transaction::{CHANNEL, Form, LISTEN, NOTIFY_TPS, PLAIN_TPS, notification_alone};
use crate::clients::pgbench::{self, MAX_CLIENTS, Pgbench, Protocol};
use crate::report::results::{BACKLOG_USEC, Figure, Kind};
use crate::workload::listeners::{Delivery, Listeners};
use crate::workload::load::Load;
use crate::workload::transaction::Transaction;
use crate::workload::{Activity, Benchmark, Workload};

/// A backlog of more than this fraction of a load is worth a warning.
const BACKLOG: f64 = 0.05;

/// PostgreSQL's own limit, in microseconds.
const MAX_COMMIT_DELAY: u32 = 100_000;

/// Options of all three.
#[derive(Debug, clap::Args, Serialize)]
struct LoadArgs {
    /// Sessions that listen on the channel, and read everything that they get
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    listeners: Numbers,

    /// Set commit_delay of all servers, so that a fast disk looks like a slow one
    ///
    /// Every flush of WAL then takes this much longer (commit_siblings is 0).
    #[arg(long, value_name = "MICROSECONDS", value_parser = number(0..=MAX_COMMIT_DELAY))]
    commit_delay: Option<u32>,

    /// How pgbench sends its statements
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,

    #[command(flatten)]
    #[serde(flatten)]
    probe: ProbeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,
}

#[derive(Debug, clap::Args, Serialize)]
pub struct CommitArgs {
    /// Sessions that write
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "16",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    writers: Numbers,

    /// How the transactions notify
    #[arg(long, value_enum, default_value_t = Form::Statement)]
    form: Form,

    /// Workloads to measure: which listeners are to get a notification
    ///
    /// Listeners ask for it by a setting of their sessions; where the server does not
    /// know that, everybody gets everything.
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        value_enum,
        default_value = "broadcast"
    )]
    workload: Vec<Delivery>,

    #[command(flatten)]
    #[serde(flatten)]
    load: LoadArgs,
}

#[derive(Debug, clap::Args, Serialize)]
pub struct NotifyArgs {
    /// Sessions that send
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1,2,4,8,16,32,64,128",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    senders: Numbers,

    #[command(flatten)]
    #[serde(flatten)]
    load: LoadArgs,
}

impl CommitArgs {
    pub fn describe_queue(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let mut benchmark = self.describe(about)?;
        benchmark
            .method
            .extend(method_of_queue(self.writers.first()));
        benchmark.figures.extend(queue_figures());
        Ok(benchmark)
    }

    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let mut figures = vec![
            tps_figure(),
            Figure::new(
                PLAIN_TPS,
                "transactions per second, with something else in the notification's place",
                Kind::Rate,
            )
            .drawn(),
            Figure::new(
                "notify_to_plain",
                "the first divided by the second, run by run",
                Kind::Share,
            )
            .drawn(),
        ];
        figures.extend(delivery_figures());
        let load = format!(
            "pgbench inserts rows, each in a transaction of its own that notifies ({}). It \
             is compared with the same transaction that has something else in the \
             notification's place, which is as long and does nothing. In each run the two \
             follow one another at once, in the other order in every second run.",
            self.form
        );
        let transactions = [self.form.plain(), self.form.notifying("{channel}")];
        let workloads = named_if_several(&self.workload);
        let writers = ("writers", &self.writers);
        let mut benchmark = self
            .load
            .describe(about, writers, &workloads, &transactions)?;
        benchmark.method.insert(0, load);
        benchmark.figures = figures;
        benchmark.setup.statements = self.form.set_up();
        Ok(benchmark)
    }
}

impl NotifyArgs {
    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let senders = ("senders", &self.senders);
        let workloads = unnamed(Delivery::Broadcast);
        let transactions = [notification_alone()];
        let mut benchmark = self
            .load
            .describe(about, senders, &workloads, &transactions)?;
        let load = "pgbench sends notifications and does nothing else, all on one channel.";
        benchmark.method.insert(0, load.to_owned());
        benchmark.figures = vec![tps_figure()];
        benchmark.figures.extend(delivery_figures());
        Ok(benchmark)
    }
}

impl LoadArgs {
    /// A benchmark without figures, and without what its transactions do. `clients` is the
    /// option that names the sessions of pgbench.
    fn describe(
        &self,
        about: Benchmark,
        clients: (&str, &Numbers),
        workloads: &[(String, Delivery)],
        transactions: &[Transaction],
    ) -> anyhow::Result<Benchmark> {
        let mut settings = Vec::new();
        if let Some(delay) = self.commit_delay {
            settings.push(format!("commit_delay={delay}").parse()?);
            // Whether or not other transactions are active.
            settings.push("commit_siblings=0".parse()?);
        }
        let TimeArgs { warmup, duration } = self.time;
        let workload = |delivery, [clients, listeners]: [u32; 2]| {
            Workload::from(Activity::Load(Load {
                channel: CHANNEL,
                pgbench: Pgbench {
                    clients,
                    jobs: None,
                    protocol: self.protocol,
                    variables: &[],
                    warmup,
                    duration,
                },
                transactions: transactions.to_vec(),
                listeners: vec![Listeners {
                    figures: "from_due",
                    count: listeners,
                    on_standby: false,
                    listen: LISTEN,
                    gets_load: true,
                    delivery,
                }],
                probe_period: Some(self.probe.period()),
            }))
        };
        let options = [clients, ("listeners", &self.listeners)];
        Ok(Benchmark {
            method: vec![
                format!(
                    "A load is {} s of warm-up, and {} s that are measured, of the same sessions. \
                     Every notification has to arrive at each of the sessions that listen ({}), \
                     and is counted there.",
                    warmup.as_secs_f64(),
                    duration.as_secs_f64(),
                    self.listeners
                ),
                format!(
                    "Meanwhile one more session, the probe, sends the same transaction {} times \
                     per second, at fixed times. The latency of its notification is taken from \
                     when COMMIT has returned, and from when the transaction was due: a server \
                     that makes the probe wait is not excused.",
                    self.probe.probes
                ),
            ],
            points: points(&about.axis, options, workloads, workload)?,
            programs: vec![pgbench::PROGRAM],
            settings,
            needs_own_cluster: self
                .commit_delay
                .map(|_| "--commit-delay is a setting of the whole server"),
            backlog_limit: Some(Duration::from_secs_f64(duration.as_secs_f64() * BACKLOG)),
            ..about
        })
    }
}

/// What has to be said of many listeners.
fn method_of_queue(writers: u32) -> [String; 2] {
    [
        format!(
            "This is the shape of a job queue: {writers} sessions write, and all listeners are on \
             one channel. broadcast: every listener gets every notification. folded: they \
             set pinpoint.fold, so that identical notifications that wait for a listener \
             arrive there once. shared: they set pinpoint.shared_channels, so that each \
             notification goes to a few of them. A server that does not know these settings \
             does the same in all three."
        ),
        "Apart from the servers' work for the writers stands what it takes to listen: \
         processor time divided by the number of transactions, of the server processes of \
         the listeners, and of the threads of this program that read them, which is the \
         same work for all servers. On a machine with few cores they take it from the \
         writers."
            .to_owned(),
    ]
}

fn tps_figure() -> Figure {
    let label = "transactions per second, with their notification";
    Figure::new(NOTIFY_TPS, label, Kind::Rate).drawn()
}

/// How the notifications of a load arrived.
fn delivery_figures() -> Vec<Figure> {
    let from_due = "latency of a notification from when it was due";
    let mut figures = latency_figures("from_due", from_due).to_vec();
    figures.push(Figure::new(
        "from_commit_count",
        "notifications that the latency from COMMIT's return is of",
        Kind::Count,
    ));
    let from_commit = "latency of a notification from COMMIT's return";
    figures.extend(latency_figures("from_commit", from_commit));
    figures.push(Figure::new(
        BACKLOG_USEC,
        "time that a listener had still to read after the load (µs)",
        Kind::Time,
    ));
    figures
}

/// What there is to know of many listeners on one channel.
fn queue_figures() -> Vec<Figure> {
    let mut figures = vec![
        Figure::new(
            "listeners_server_usec",
            "processor time of the listeners' server processes, for each transaction (µs)",
            Kind::Time,
        )
        .drawn(),
        // This is of no server.
        Figure::new(
            "listeners_client_usec",
            "processor time that this program reads the listeners with, for each transaction (µs)",
            Kind::Count,
        )
        .drawn(),
        Figure::new(
            "deliveries_per_notification",
            "listeners that a notification arrives at, on average",
            Kind::Count,
        ),
    ];
    let first = "latency from when it was due, at its first listener";
    let [median, p99, _] = latency_figures("first_from_due", first);
    figures.extend([median, p99]);
    figures
}
