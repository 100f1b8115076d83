//! `channels`, `listeners`, `idle` and `hub`: how long a sender waits for the COMMIT of a
//! transaction that notifies, and how long it takes until all have everything.

use clap::{ArgAction, ValueEnum};
use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, number, numbers};
use serde::Serialize;

use super::options::{MOST, named_if_several, points};
use crate::report::results::{Figure, Kind};
use crate::workload::commits::Commits;
use crate::workload::{Activity, Benchmark, IdleSessions, Workload};

/// A transaction with more notifications fills PostgreSQL's queue.
const MAX_CHANNELS: u32 = 1_000_000;

#[derive(Debug, clap::Args, Serialize)]
pub struct ChannelsArgs {
    /// Numbers of channels that a transaction notifies
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1000",
        value_parser = numbers(1..=MAX_CHANNELS),
    )]
    channels: Numbers,

    /// Numbers of sessions that listen on all of these channels
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1",
        value_parser = numbers(1..=MAX_CONNECTIONS),
    )]
    listeners: Numbers,

    /// Numbers of connected sessions that never execute LISTEN
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "0",
        value_parser = numbers(0..=MAX_CONNECTIONS),
    )]
    idle_sessions: Numbers,

    /// Workloads to measure
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        value_enum,
        default_value = "sender_listens,others_listen"
    )]
    workload: Vec<Audience>,

    /// Transactions per run
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = number(1..=MOST))]
    transactions: u32,

    /// Transactions of the warm-up before each run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(0..=MOST))]
    warmup_transactions: u32,
}

/// Which sessions listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum Audience {
    /// The sender is one of the listeners
    SenderListens,
    /// The sender does not listen
    OthersListen,
}

impl ChannelsArgs {
    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let options = [
            ("channels", &self.channels),
            ("listeners", &self.listeners),
            ("idle_sessions", &self.idle_sessions),
        ];
        let workloads = named_if_several(&self.workload);
        let workload = |audience, numbers| self.workload(audience, numbers);
        Ok(Benchmark {
            method: self.method(),
            figures: figures(),
            points: points(&about.axis, options, &workloads, workload)?,
            ..about
        })
    }

    fn workload(&self, audience: Audience, [channels, listeners, idle]: [u32; 3]) -> Workload {
        let sender_listens = audience == Audience::SenderListens;
        Workload {
            idle: IdleSessions {
                sessions: idle,
                listeners_per_channel: 0,
            },
            activity: Activity::Commits(Commits {
                channels,
                sender_listens,
                listeners: listeners - u32::from(sender_listens),
                transactions: self.transactions,
                warmup: self.warmup_transactions,
            }),
        }
    }

    fn method(&self) -> Vec<String> {
        vec![
            format!(
                "A session notifies each of N channels once, in one transaction (BEGIN; SELECT \
                 pg_notify(...) for each channel; COMMIT). The time is measured from sending \
                 COMMIT until it is complete. Every listener listens on all of the channels. The \
                 next transaction begins when every listener has received all notifications. A \
                 missing or additional notification is an error. A run consists of {} such \
                 transactions after a warm-up of {}, in the same new sessions. Its figures are \
                 medians.",
                self.transactions, self.warmup_transactions
            ),
            "sender_listens: the sender also listens on the channels, and is one of the \
             listeners. Its COMMIT is complete when it has received its own notifications. This \
             time includes the server's look-up of the channels, and reading by this program. \
             others_listen: the sender does not listen. Another thread of this program reads the \
             listeners."
                .to_owned(),
            "client_msec is the processor time of the sending thread of this program from \
             sending COMMIT until it is complete. listeners_client_msec is the processor time of \
             the thread that reads the other listeners, until all of them have received all \
             notifications. These times are lower limits of the measured times. They are the \
             same for all servers, so they bring the ratios closer to 1."
                .to_owned(),
            "The workload is from \"Turbocharging LISTEN/NOTIFY with 40x Boost\" (January 2026), \
             tests 1 to 3. With one channel, it is the workload of an application that \
             invalidates a cache in all of its processes."
                .to_owned(),
        ]
    }
}

fn figures() -> Vec<Figure> {
    let time = |name: &str, label: &str| Figure::new(name, label, Kind::Time);
    // These are of no server.
    let own = |name: &str, label: &str| Figure::new(name, label, Kind::Count);
    vec![
        time("commit_msec", "milliseconds for COMMIT").drawn(),
        time(
            "all_received_msec",
            "milliseconds from COMMIT until all listeners have all notifications",
        )
        .drawn(),
        time("commit_p99_msec", "99th percentile of COMMIT (ms)"),
        time("transaction_msec", "whole transaction (ms)"),
        time(
            "first_received_msec",
            "until the first listener has all notifications (ms)",
        ),
        time(
            "median_received_msec",
            "until half of the listeners have all notifications (ms)",
        ),
        own(
            "client_msec",
            "processor time of this program during COMMIT (ms)",
        ),
        own(
            "listeners_client_msec",
            "processor time of this program until all listeners have all notifications (ms)",
        ),
    ]
}
