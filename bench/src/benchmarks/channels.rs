//! How long a sender waits for the COMMIT of a transaction that notifies, against
//! the number of channels, of sessions that listen, or of sessions that are only
//! connected; and how long it takes until all have everything.

mod transaction;

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::ensure;
use clap::{ArgAction, ValueEnum};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, numbers};
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;
use serde::Serialize;

use self::transaction::{Timings, Transaction};
use crate::clients::crowd::Crowd;
use crate::clients::session::{CONNECTING_AT_ONCE, Session, Sessions};
use crate::report::results::{Axis, Figure, Kind, Scale, Values};
use crate::report::stats::milliseconds;
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::{CommonArgs, count};

/// A transaction with more notifications fills PostgreSQL's queue.
const MAX_CHANNELS: u32 = 1_000_000;

/// Of a transaction, if another number is varied.
const CHANNELS: u32 = 1000;

/// For the time that is left to be told: what a transaction takes where nothing is
/// slow, and what each of its notifications adds for each listener.
const TRANSACTION_TIME: Duration = Duration::from_millis(10);
const NOTIFICATION_TIME: Duration = Duration::from_nanos(700);

/// The same for each of the sessions, which are new in each run.
const CONNECTION_TIME: Duration = Duration::from_millis(3);

/// How long a sender waits, against the number of channels or of listeners
///
/// A transaction sends one notification to each of N channels, on which sessions
/// listen. Measured is the time of its COMMIT, and how long it takes until all have
/// everything. Of --channels, --listeners and --idle one may have several numbers.
///
/// Example: pinpoint-bench channels --channels 1 --listeners 1,1000
#[derive(Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub struct ChannelsArgs {
    /// Channels that a transaction notifies [default: 1, 10, 100, and each 1,000 up to
    /// 10,000; or 1000 if another number is varied]
    #[arg(long, value_name = "N,N,...", value_parser = numbers(1..=MAX_CHANNELS))]
    channels: Option<Numbers>,

    /// Sessions that listen, each on all of the channels [default: 1]
    #[arg(long, value_name = "N,N,...", value_parser = numbers(1..=MAX_CONNECTIONS))]
    listeners: Option<Numbers>,

    /// Sessions that are connected and have never executed LISTEN [default: 0]
    #[arg(long, value_name = "N,N,...", value_parser = numbers(0..=MAX_CONNECTIONS))]
    idle: Option<Numbers>,

    /// Who listens
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
    #[arg(
        long,
        alias = "notifications",
        value_name = "N",
        default_value = "20",
        value_parser = count,
    )]
    transactions: NonZeroU32,

    /// Make N transactions before each run, without measuring
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000_000),
    )]
    warmup: u32,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

/// Who listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    /// The sender itself, and others as far as there are more listeners
    #[value(name = "sender_listens")]
    SenderListens,
    /// Others only
    #[value(name = "others_listen")]
    OthersListen,
}

impl Audience {
    fn name(self) -> &'static str {
        match self {
            Self::SenderListens => "sender_listens",
            Self::OthersListen => "others_listen",
        }
    }
}

/// The number that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Varied {
    Channels,
    Listeners,
    Idle,
}

/// What there is at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scene {
    channels: u32,
    sender_listens: bool,
    /// Beside the sender.
    listeners: u32,
    idle: u32,
}

impl ChannelsArgs {
    fn varied(&self) -> Varied {
        let varies = |numbers: &Option<Numbers>| numbers.as_ref().is_some_and(Numbers::vary);
        let is_free = !varies(&self.channels);
        if varies(&self.listeners) || (is_free && !varies(&self.idle) && self.listeners.is_some()) {
            Varied::Listeners
        } else if varies(&self.idle) || (is_free && self.idle.is_some()) {
            Varied::Idle
        } else {
            Varied::Channels
        }
    }

    fn numbers(&self) -> Numbers {
        let given = match self.varied() {
            Varied::Channels => &self.channels,
            Varied::Listeners => &self.listeners,
            Varied::Idle => &self.idle,
        };
        let thousands = (1..=10).map(|thousand| thousand * 1000);
        let default = || Numbers::of([1, 10, 100].into_iter().chain(thousands));
        let given = given.clone().or_else(default);
        given.expect("the default has numbers")
    }

    fn scene(&self, point: &PointId) -> Scene {
        let varied = self.varied();
        let number = |which, numbers: &Option<Numbers>, default| {
            if which == varied {
                point.x
            } else {
                numbers.as_ref().map_or(default, Numbers::first)
            }
        };
        let listeners = number(Varied::Listeners, &self.listeners, 1);
        let sender_listens = self.audience(point) == Audience::SenderListens;
        Scene {
            channels: number(Varied::Channels, &self.channels, CHANNELS),
            sender_listens,
            listeners: listeners - u32::from(sender_listens),
            idle: number(Varied::Idle, &self.idle, 0),
        }
    }

    /// The values are ascending in spite of the audiences, so that the many sessions
    /// are only ever added to: while hundreds of them end, the server is busy.
    fn points(&self) -> Vec<PointId> {
        let numbers = self.numbers();
        let at = |x| {
            let of = move |audience: &Audience| PointId::of_workload(audience.name(), x);
            self.workload.iter().map(of)
        };
        match self.workload.len() {
            1 => numbers.iter().map(PointId::at).collect(),
            _ => numbers.iter().flat_map(at).collect(),
        }
    }

    /// If there is only one, its points do not name it.
    fn audience(&self, point: &PointId) -> Audience {
        let mut audiences = self.workload.iter();
        let named = audiences.find(|audience| audience.name() == point.workload);
        *named.unwrap_or(&self.workload[0])
    }

    /// Is it about one notification to many?
    fn is_hub(&self) -> bool {
        let one = self.channels.as_ref().is_some_and(|n| n.last() == 1);
        one && self.varied() == Varied::Listeners
    }

    /// One run, with new sessions.
    async fn transactions(&self, server: &Server, scene: Scene) -> anyhow::Result<Vec<Timings>> {
        let timeout = self.common.runs.timeout;
        let transaction = Transaction::new(server, scene.channels);
        let statements = transaction.listen();
        let mut crowd = Crowd::new()?;
        let (config, size) = (server.config(), scene.listeners as usize);
        crowd.grow(size, &config, &statements, timeout).await?;
        let mut sender = self.connect(server).await?;
        if scene.sender_listens {
            within(timeout, "LISTEN", sender.execute(&statements)).await??;
        }
        let mut timings = Vec::new();
        for number in 0..self.warmup.saturating_add(self.transactions.get()) {
            let timing = transaction
                .run(&mut sender, scene.sender_listens, &crowd, timeout)
                .await?;
            if number >= self.warmup {
                timings.push(timing);
            }
        }
        Ok(timings)
    }

    async fn connect(&self, server: &Server) -> anyhow::Result<Session> {
        let config = server.config();
        within(
            self.common.runs.timeout,
            "a connection",
            Session::connect(&config),
        )
        .await?
    }
}

impl Benchmark for ChannelsArgs {
    /// The idle sessions, which stay connected, and are only added to. All others are new
    /// in each run: where the system puts a process is part of the noise.
    type State = Vec<Session>;

    fn describe(&self) -> anyhow::Result<Description> {
        let given = [&self.channels, &self.listeners, &self.idle];
        let several = given.into_iter().flatten().filter(|n| n.vary()).count();
        ensure!(
            several <= 1,
            "of --channels, --listeners and --idle only one can have several numbers"
        );
        let points = self.points();
        let scenes: Vec<Scene> = points.iter().map(|point| self.scene(point)).collect();
        let (name, question, axis, label, scale) = match self.varied() {
            Varied::Listeners if self.is_hub() => (
                "hub",
                "How long does one notification to many listeners take, for the sender and until \
                 all have it?",
                "listeners",
                "listeners",
                Scale::Logarithmic,
            ),
            Varied::Channels => (
                "channels",
                "How long does a sender wait for the COMMIT of notifications on many channels?",
                "channels",
                "channels",
                Scale::Logarithmic,
            ),
            Varied::Listeners => (
                "listeners",
                "How long does a sender wait for its COMMIT when more and more sessions listen?",
                "listeners",
                "listeners",
                Scale::Logarithmic,
            ),
            Varied::Idle => (
                "idle",
                "How long does a sender wait for its COMMIT when more and more sessions are \
                 connected that do not listen?",
                "idle_sessions",
                "idle sessions",
                Scale::Linear,
            ),
        };
        let time = |name: &str, label: &str| Figure::new(name, label, Kind::Time);
        let figures = vec![
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
            // These are of no server.
            Figure::new(
                "client_msec",
                "of COMMIT: this program's own milliseconds",
                Kind::Count,
            ),
            Figure::new(
                "listeners_client_msec",
                "until all have everything: this program's own milliseconds",
                Kind::Count,
            ),
        ];
        let per_run = self.transactions.get().saturating_add(self.warmup);
        let work: u64 = scenes
            .iter()
            .map(|scene| u64::from(scene.channels) * u64::from(scene.listeners.max(1)))
            .sum();
        let listeners: u32 = scenes.iter().map(|scene| scene.listeners).sum();
        let notifications = work / scenes.len() as u64;
        let transaction = TRANSACTION_TIME
            + NOTIFICATION_TIME.saturating_mul(u32::try_from(notifications).unwrap_or(u32::MAX));
        Ok(Description {
            name,
            question,
            method: vec![
                format!(
                    "A session sends one notification to each of N channels, all in one \
                     transaction (BEGIN; SELECT pg_notify(...) for each channel; COMMIT), and the \
                     time is taken from COMMIT's dispatch to its completion. Every listener \
                     listens on all of the channels. The next transaction begins when every \
                     listener has received everything; a notification that does not arrive, or \
                     too many of them, are an error. A run is {} such transactions after {} that \
                     are not measured, with the same new sessions, and its figures are medians.",
                    self.transactions, self.warmup
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
            ],
            axis: Axis::new(axis, label, scale),
            figures,
            run_time: transaction.saturating_mul(per_run)
                + CONNECTION_TIME * (listeners / scenes.len() as u32),
            sessions: scenes
                .iter()
                .map(|scene| 2 + scene.listeners + scene.idle)
                .max()
                .unwrap_or(0),
            points,
            programs: &[],
            settings: Vec::new(),
            needs_own_cluster: None,
        })
    }

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    async fn set_up(&self, _server: &Server) -> anyhow::Result<Vec<Session>> {
        Ok(Vec::new())
    }

    async fn prepare(
        &self,
        server: &Server,
        idle: &mut Vec<Session>,
        point: &PointId,
    ) -> anyhow::Result<()> {
        let more: Vec<Session> = stream::iter(idle.len()..self.scene(point).idle as usize)
            .map(|_| self.connect(server))
            .buffer_unordered(CONNECTING_AT_ONCE)
            .try_collect()
            .await?;
        idle.extend(more);
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        idle: &mut Vec<Session>,
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let sessions = Sessions::of(server).await?;
        let timings = self.transactions(server, self.scene(point)).await?;
        let gone = sessions.wait_for_others_to_go();
        within(self.common.runs.timeout, "the end of all sessions", gone).await??;
        let lost = idle.iter().filter(|session| session.is_closed()).count();
        let all = idle.len();
        ensure!(
            lost == 0,
            "{lost} of {all} idle sessions lost their connection: these figures would not be for \
             them"
        );
        Ok(values(&timings))
    }
}

/// The figures of a run, from its transactions, of which there is at least one.
fn values(timings: &[Timings]) -> Values {
    let of = |time: fn(&Timings) -> Duration| milliseconds(timings.iter().map(time));
    let (commit, commit_p99) = of(|timings| timings.commit);
    let median = |time| of(time).0;
    [
        ("commit_msec", commit),
        ("commit_p99_msec", commit_p99),
        ("transaction_msec", median(|timings| timings.transaction)),
        ("first_received_msec", median(|timings| timings.received[0])),
        (
            "median_received_msec",
            median(|timings| timings.received[1]),
        ),
        ("all_received_msec", median(|timings| timings.received[2])),
        ("client_msec", median(|timings| timings.client)),
        ("listeners_client_msec", median(|timings| timings.listeners)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Channels {
        #[command(flatten)]
        args: ChannelsArgs,
    }

    fn parse(arguments: &[&str]) -> ChannelsArgs {
        Channels::parse_from(["channels"].iter().chain(arguments)).args
    }

    fn scenes(arguments: &[&str]) -> (&'static str, Vec<(u32, bool, u32, u32)>) {
        let args = parse(arguments);
        let description = args.describe().unwrap();
        let scenes = description.points.iter().map(|point| args.scene(point));
        let scenes: Vec<Scene> = scenes.collect();
        let needed = scenes.iter().map(|s| 1 + s.listeners + s.idle).max();
        assert!(Some(description.sessions) >= needed);
        let scenes = scenes
            .into_iter()
            .map(|s| (s.channels, s.sender_listens, s.listeners, s.idle));
        (description.name, scenes.collect())
    }

    #[test]
    fn one_number_is_varied() {
        assert_eq!(
            scenes(&["--channels=1,5"]),
            (
                "channels",
                vec![
                    (1, true, 0, 0),
                    (1, false, 1, 0),
                    (5, true, 0, 0),
                    (5, false, 1, 0),
                ]
            )
        );
        assert_eq!(
            scenes(&["--listeners=1,5"]),
            (
                "listeners",
                vec![
                    (1000, true, 0, 0),
                    (1000, false, 1, 0),
                    (1000, true, 4, 0),
                    (1000, false, 5, 0),
                ]
            )
        );
        let others = "--workload=others_listen";
        assert_eq!(
            scenes(&["--idle=0,5", "--channels=7", "--listeners=2", others]),
            ("idle", vec![(7, false, 2, 0), (7, false, 2, 5)])
        );
        assert_eq!(
            scenes(&["--channels=1", "--listeners=9", others]),
            ("hub", vec![(1, false, 9, 0)])
        );
        assert_eq!(scenes(&[]).1.len(), 2 * 13);
        let two = parse(&["--channels=1,2", "--idle=1,2"]).describe();
        assert!(two.unwrap_err().to_string().contains("only one"));
    }

    #[test]
    fn a_run_is_the_median_of_its_transactions() {
        let ms = Duration::from_millis;
        let timings: Vec<Timings> = [10, 30, 11]
            .map(|commit| Timings {
                commit: ms(commit),
                transaction: ms(commit + 100),
                received: [ms(1), ms(2), ms(commit + 200)],
                client: ms(commit + 300),
                listeners: ms(3),
            })
            .to_vec();
        let values = values(&timings);
        let figures = parse(&[]).describe().unwrap().figures;
        let in_order: Vec<f64> = figures.iter().map(|figure| values[&figure.name]).collect();
        assert_eq!(in_order, [11.0, 211.0, 30.0, 111.0, 1.0, 2.0, 311.0, 3.0]);
        assert_eq!(values.len(), figures.len());
    }
}
