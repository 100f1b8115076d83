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
    /// Channels that a transaction notifies
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1000",
        value_parser = numbers(1..=MAX_CHANNELS),
    )]
    channels: Numbers,

    /// Sessions that listen, each on all of the channels
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1",
        value_parser = numbers(1..=MAX_CONNECTIONS),
    )]
    listeners: Numbers,

    /// Sessions that are connected and have never executed LISTEN
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "0",
        value_parser = numbers(0..=MAX_CONNECTIONS),
    )]
    idle_sessions: Numbers,

    /// Workloads to measure: which sessions listen
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        value_enum,
        default_value = "sender_listens,others_listen"
    )]
    workload: Vec<Audience>,

    /// Make every run N transactions long
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = number(1..=MOST))]
    transactions: u32,

    /// Make N transactions before each run, without measuring
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(0..=MOST))]
    warmup_transactions: u32,
}

/// Which sessions listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum Audience {
    /// The sender itself, and others as far as there are more listeners
    SenderListens,
    /// Others only
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
                "A session sends one notification to each of N channels, all in one \
                 transaction (BEGIN; SELECT pg_notify(...) for each channel; COMMIT), and the \
                 time is taken from COMMIT's dispatch to its completion. Every listener \
                 listens on all of the channels. The next transaction begins when every \
                 listener has received everything; a notification that does not arrive, or \
                 too many of them, are an error. A run is {} such transactions after {} that \
                 are not measured, with the same new sessions, and its figures are medians.",
                self.transactions, self.warmup_transactions
            ),
            "sender_listens: the sender listens on the channels itself and is the first of the \
             listeners. Its COMMIT is then complete when it has got its own notifications, \
             which includes what the server does to find out that it listens on their \
             channels, and the reading of this program. others_listen: it does not listen, \
             others do, and are read by another thread."
                .to_owned(),
            "client_msec is the processor time that this program's thread that sends has used \
             between COMMIT's dispatch and its completion, listeners_client_msec that of the \
             thread that reads the others, until all have everything: no server can make the \
             times shorter than that. It is the same work for all servers, and makes the \
             ratio smaller than it is."
                .to_owned(),
            "The work is that of \"Turbocharging LISTEN/NOTIFY with 40x Boost\" (January \
             2026), tests 1 to 3; with one channel, that of an application which tells all of \
             its processes to forget something."
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
            "milliseconds from COMMIT until all have everything",
        )
        .drawn(),
        time("commit_p99_msec", "99th percentile of COMMIT (ms)"),
        time("transaction_msec", "whole transaction (ms)"),
        time("first_received_msec", "until the first has everything (ms)"),
        time(
            "median_received_msec",
            "until half of them have everything (ms)",
        ),
        own("client_msec", "of COMMIT: this program's own milliseconds"),
        own(
            "listeners_client_msec",
            "until all have everything: this program's own milliseconds",
        ),
    ]
}
