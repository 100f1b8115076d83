//! `commit`, `notify` and `queue`: throughput under load. What a notification adds to a
//! transaction that writes, how many of them many sessions can send, and what it takes if
//! many listen on the channel, as the workers of a job queue do.

use std::time::Duration;

use clap::ArgAction;
use pinpoint_servers::options::{Numbers, numbers};
use serde::Serialize;

use super::options::{
    PROBE_PERIOD, PROBES, TimeArgs, latency_figures, named_if_several, points, unnamed,
};
use super::transaction::{self, CHANNEL, LISTEN, NOTIFY_TPS, PLAIN_TPS, notification_alone};
use crate::clients::pgbench::{self, MAX_CLIENTS};
use crate::report::results::{BACKLOG_USEC, Figure, Kind};
use crate::workload::listeners::{Delivery, Listeners};
use crate::workload::load::Load;
use crate::workload::transaction::Transaction;
use crate::workload::{Activity, Benchmark, Workload};

/// A backlog of more than this fraction of a load is worth a warning.
const BACKLOG: f64 = 0.05;

/// Options of all three.
#[derive(Debug, clap::Args, Serialize)]
struct LoadArgs {
    /// Numbers of sessions that listen on the channel
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    listeners: Numbers,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,
}

#[derive(Debug, clap::Args, Serialize)]
pub struct CommitArgs {
    /// Numbers of sessions that write
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "16",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    writers: Numbers,

    /// Workloads to measure
    ///
    /// The workloads differ in a setting of the listeners' sessions. On a server without
    /// this setting, every listener receives every notification.
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
    /// Numbers of sessions that send
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
                "transactions per second, without a notification",
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
        let load = "pgbench inserts rows. Each transaction inserts one row and notifies, with the \
                    statement NOTIFY. It is compared with a transaction that contains a statement \
                    of the same length that does nothing, instead of the notification. Each run \
                    measures both, one after the other, and every second run in reverse order.";
        let transactions = [transaction::plain(), transaction::notifying("{channel}")];
        let workloads = named_if_several(&self.workload);
        let writers = ("writers", &self.writers);
        let mut benchmark = self
            .load
            .describe(about, writers, &workloads, &transactions)?;
        benchmark.method.insert(0, load.to_owned());
        benchmark.figures = figures;
        benchmark.setup = vec![transaction::TABLE.to_owned()];
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
        let TimeArgs { warmup, duration } = self.time;
        let workload = |delivery, [clients, listeners]: [u32; 2]| {
            Workload::from(Activity::Load(Load {
                channel: CHANNEL,
                pgbench: self.time.pgbench(clients),
                transactions: transactions.to_vec(),
                listeners: vec![Listeners {
                    figures: "from_due",
                    count: listeners,
                    on_standby: false,
                    listen: LISTEN,
                    gets_load: true,
                    delivery,
                }],
                probe_period: Some(PROBE_PERIOD),
            }))
        };
        let options = [clients, ("listeners", &self.listeners)];
        Ok(Benchmark {
            method: vec![
                format!(
                    "A load consists of a warm-up of {} s and {} s that are measured, in the \
                     same sessions. Each listening session ({}) must receive all notifications, \
                     and counts them.",
                    warmup.as_secs_f64(),
                    duration.as_secs_f64(),
                    self.listeners
                ),
                format!(
                    "Meanwhile a further session, the probe, executes the same transaction \
                     {PROBES} times per second, at fixed times. The latency of its notification \
                     is measured from the time at which the transaction was due, even if the \
                     probe had to wait."
                ),
            ],
            points: points(&about.axis, options, workloads, workload)?,
            programs: vec![pgbench::PROGRAM],
            backlog_limit: Some(Duration::from_secs_f64(duration.as_secs_f64() * BACKLOG)),
            ..about
        })
    }
}

/// What has to be said of many listeners.
fn method_of_queue(writers: u32) -> [String; 2] {
    [
        format!(
            "This is the workload of a job queue: {writers} sessions write, and all listeners \
             listen on one channel. broadcast: every listener receives every notification. \
             folded: the listeners set pinpoint.fold, so a listener receives identical unread \
             notifications once. shared: the listeners set pinpoint.shared_channels, so a few of \
             them receive each notification. The three workloads are the same on a server \
             without these settings."
        ),
        "Processor time per transaction is reported of the threads of this program that read \
         notifications. They do the same work for all servers. On a machine with few cores, this \
         time is not available to the writers."
            .to_owned(),
    ]
}

fn tps_figure() -> Figure {
    let label = "transactions per second, with a notification";
    Figure::new(NOTIFY_TPS, label, Kind::Rate).drawn()
}

/// How the notifications of a load arrived.
fn delivery_figures() -> Vec<Figure> {
    let from_due = "latency of a notification from when it was due";
    let mut figures = latency_figures("from_due", from_due).to_vec();
    figures.push(Figure::new(
        BACKLOG_USEC,
        "time for which a listener still reads after the load (µs)",
        Kind::Time,
    ));
    figures
}

/// What there is to know of many listeners on one channel.
fn queue_figures() -> Vec<Figure> {
    let mut figures = vec![
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
