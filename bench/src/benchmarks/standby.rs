//! `standby`: how long a notification takes to a listener on a streaming standby, and
//! what it costs the sender that it travels there (`pinpoint.replicate`).

use std::path::Path;

use pinpoint_servers::cluster;
use pinpoint_servers::options::{Numbers, numbers};
use pinpoint_servers::target::{Setting, Target};
use serde::Serialize;

use super::options::{PROBE_PERIOD, PROBES, TimeArgs, latency_figures, points, unnamed};
use super::transaction::{self, CHANNEL};
use crate::clients::pgbench::{self, MAX_CLIENTS};
use crate::report::results::{Figure, Kind, Scale};
use crate::workload::listeners::{Delivery, Listeners};
use crate::workload::load::Load;
use crate::workload::standby::REPLICATE;
use crate::workload::transaction::Transaction;
use crate::workload::{Activity, Benchmark, Workload};

const PROBE_CHANNEL: &str = "{channel}_probe";
const LISTEN_TO_PROBE: &str = "LISTEN {channel}_probe";
const LISTEN_TO_ALL: &str = "LISTEN {channel}; LISTEN {channel}_probe";

const TPS: &str = "transactions_per_sec";

#[derive(Debug, clap::Args, Serialize)]
pub struct StandbyArgs {
    /// Numbers of sessions that write and notify, in addition to the probe
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "0,4,16,64",
        value_parser = numbers(0..=MAX_CLIENTS),
    )]
    writers: Numbers,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,
}

impl StandbyArgs {
    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let options = [("writers", &self.writers)];
        let workload = |(), [writers]: [u32; 1]| self.workload(writers);
        Ok(Benchmark {
            method: vec![
                "Each target has a streaming standby on the same machine. The default targets \
                 differ only in pinpoint.replicate. If it is off, notifications are not \
                 replicated, and only the listener on the primary receives them."
                    .to_owned(),
                format!(
                    "pgbench inserts rows. Each transaction inserts one row and notifies. A load \
                     consists of a warm-up of {} s and {} s that are measured. A session on the \
                     primary reads these notifications, and must receive one for each \
                     transaction. No session on the standby listens on their channel. The size \
                     of the WAL is measured from the beginning to the end of the load, and \
                     divided by the number of transactions.",
                    self.time.warmup.as_secs_f64(),
                    self.time.duration.as_secs_f64()
                ),
                format!(
                    "After the warm-up, a further session, the probe, executes the same \
                     transaction {PROBES} times per second, at fixed times, on a channel of its own. A \
                     session on the primary and, with pinpoint.replicate, a session on the \
                     standby listen on this channel. Each of them must receive every \
                     notification. Another session on the standby queries the row without a \
                     pause, until the row is visible. All times are measured from the time at \
                     which the transaction was due, even if the probe had to wait."
                ),
            ],
            figures: figures(),
            points: points(&about.axis, options, &unnamed(()), workload)?,
            setup: vec![transaction::TABLE.to_owned()],
            has_standby: true,
            programs: vec![pgbench::PROGRAM, cluster::BASE_BACKUP],
            default_targets,
            needs_own_cluster: Some("it makes a standby"),
            objection: |target| {
                (!target.has_engine()).then_some(
                    "LISTEN on a standby needs pg_pinpoint: add \
                     preload=pg_pinpoint,extension=pg_pinpoint to it",
                )
            },
            ..about
        })
    }

    fn workload(&self, writers: u32) -> Workload {
        let listeners = |figures, on_standby| Listeners {
            figures,
            count: 1,
            on_standby,
            listen: LISTEN_TO_PROBE,
            gets_load: false,
            delivery: Delivery::Broadcast,
        };
        Workload::from(Activity::Load(Load {
            channel: CHANNEL,
            pgbench: self.time.pgbench(writers),
            transactions: vec![Transaction {
                rate: TPS,
                ..transaction::notifying(PROBE_CHANNEL)
            }],
            listeners: vec![
                Listeners {
                    listen: LISTEN_TO_ALL,
                    gets_load: true,
                    ..listeners("reader", false)
                },
                listeners("primary", false),
                listeners("standby", true),
            ],
            probe_period: Some(PROBE_PERIOD),
        }))
    }
}

/// The same server with the setting off and on.
fn default_targets(pg_config: &Path) -> Vec<Target> {
    ["off", "on"]
        .map(|value| Target {
            name: format!("replicate-{value}"),
            settings: vec![Setting {
                name: REPLICATE.to_owned(),
                value: value.to_owned(),
            }],
            ..Target::pinpoint(pg_config)
        })
        .into()
}

fn figures() -> Vec<Figure> {
    let label = "transactions per second, each an INSERT and a NOTIFY";
    let mut figures = vec![Figure::new(TPS, label, Kind::Rate).drawn()];
    for (start, what) in [
        (
            "standby",
            "until a listener on the standby has the notification",
        ),
        ("row_visible", "until the row is visible on the standby"),
        (
            "primary",
            "until a listener on the primary has the notification",
        ),
    ] {
        let [median, p99, max] = latency_figures(start, what);
        figures.extend([median.drawn(), p99, max]);
    }
    let share = "latency of the notification on the standby divided by latency of the row";
    let share = |name, which| {
        Figure::new(name, &format!("{share}, {which}"), Kind::Time).on_scale(Scale::Linear)
    };
    let count = |name, label| Figure::new(name, label, Kind::Count);
    figures.extend([
        share("standby_to_row_visible", "median").drawn(),
        share("standby_to_row_visible_p99", "99th percentile"),
        count(
            "wal_bytes_per_transaction",
            "bytes of WAL for each transaction",
        )
        .drawn(),
        count("probes", "number of probes"),
        // This is the measure of another figure, and not of a server.
        count(
            "question_p50_usec",
            "duration of a query for the row on the standby, median (µs)",
        ),
    ]);
    figures
}
