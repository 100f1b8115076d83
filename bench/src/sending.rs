//! The benchmarks `channels`, `listeners` and `idle`: how long a sender waits
//! for the COMMIT of a transaction that notifies on many channels.
//!
//! They are one workload, with another of its numbers varied.

mod args;
mod transaction;

use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use self::args::Varied;
pub use self::args::{
    ChannelsArgs, IdleArgs, ListenersArgs, QUICK_CHANNELS, QUICK_IDLE, QUICK_LISTENERS,
};
use self::transaction::{SendingError, Timings, Transaction};
use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::crowd::Crowd;
use crate::results::{Axis, Better, Figure, Scale, Summary, Values};
use crate::server::Server;
use crate::session::{CONNECTING_AT_ONCE, Session};

/// For the time that is left to be told: what a transaction takes where nothing is slow.
const TRANSACTION_TIME: Duration = Duration::from_millis(20);

/// What to measure. Of the three lists all but the one that is varied have one element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    #[serde(skip)]
    varied: Varied,
    /// Notifications of a transaction, each on a channel of its own. Ascending, as are the others.
    channels: Vec<u32>,
    /// Sessions that listen on all of the channels.
    listeners: Vec<u32>,
    /// Sessions that are connected, and do nothing.
    idle: Vec<u32>,
    /// Of each run.
    transactions: NonZeroU32,
    /// Transactions before them, which are not measured.
    warmup: u32,
    runs: NonZeroU32,
    /// For a connection, and for a transaction.
    #[serde(serialize_with = "as_seconds")]
    timeout: Duration,
}

/// Who listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// The sender itself, and others as far as there are more listeners.
    WithSender,
    /// Others only.
    Others,
}

impl Audience {
    const ALL: [Self; 2] = [Self::WithSender, Self::Others];

    fn name(self) -> &'static str {
        match self {
            Self::WithSender => "sender_listens",
            Self::Others => "others_listen",
        }
    }

    fn of(point: &PointId) -> Self {
        if point.workload == Self::WithSender.name() {
            Self::WithSender
        } else {
            Self::Others
        }
    }
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

impl Plan {
    async fn connect(&self, server: &Server) -> Result<Session, SendingError> {
        tokio::time::timeout(self.timeout, Session::connect(&server.config()))
            .await
            .map_err(|_| SendingError::NoConnection(self.timeout))?
            .map_err(SendingError::Connect)
    }

    fn values(&self) -> &[u32] {
        match self.varied {
            Varied::Channels => &self.channels,
            Varied::Listeners => &self.listeners,
            Varied::Idle => &self.idle,
        }
    }

    fn scene(&self, point: &PointId) -> Scene {
        let value = |varied, values: &[u32]| {
            if varied == self.varied {
                u32::try_from(point.x).expect("values are small")
            } else {
                values[0]
            }
        };
        let listeners = value(Varied::Listeners, &self.listeners);
        let sender_listens = Audience::of(point) == Audience::WithSender;
        Scene {
            channels: value(Varied::Channels, &self.channels),
            sender_listens,
            listeners: listeners - u32::from(sender_listens),
            idle: value(Varied::Idle, &self.idle),
        }
    }
}

/// The sessions of one server.
#[derive(Debug)]
pub struct State {
    sender: Session,
    listeners: Crowd,
    idle: Vec<Session>,
}

impl Benchmark for Plan {
    type State = State;

    fn name(&self) -> &'static str {
        self.varied.subcommand()
    }

    fn question(&self) -> &'static str {
        match self.varied {
            Varied::Channels => {
                "How long does a sender wait for the COMMIT of notifications on many channels?"
            }
            Varied::Listeners => {
                "How long does a sender wait for its COMMIT when more and more sessions listen?"
            }
            Varied::Idle => {
                "How long does a sender wait for its COMMIT when more and more sessions are \
                 connected that do not listen?"
            }
        }
    }

    fn method(&self) -> Vec<String> {
        let channels = match self.varied {
            Varied::Channels => "a growing number of",
            Varied::Listeners | Varied::Idle => "a fixed number of",
        };
        vec![
            format!(
                "A session sends one notification to each of {channels} channels, all in one \
                 transaction (BEGIN; SELECT pg_notify(...) for each channel; COMMIT), and the \
                 time is taken from COMMIT's dispatch to its completion. Every listener listens \
                 on all of the channels. The next transaction begins when every listener has \
                 received everything; a notification that does not arrive, or too many of them, \
                 are an error. A run is {} such transactions after {} that are not measured, and \
                 its figure is their median.",
                self.transactions, self.warmup
            ),
            format!(
                "{}: the sender listens on the channels itself and is the first of the \
                 listeners. Its COMMIT is then complete when it has got its own notifications, \
                 which includes what the server does to find out that it listens on their \
                 channels, and the reading of this program. {}: it does not listen, others do, \
                 and are read by another thread.",
                Audience::WithSender.name(),
                Audience::Others.name()
            ),
            "client_msec is the processor time that this program's thread that sends has used \
             between COMMIT's dispatch and its completion. It is the same work for all servers, \
             and part of commit_msec."
                .to_owned(),
            "The work is that of \"Turbocharging LISTEN/NOTIFY with 40x Boost\" (January 2026), \
             tests 1 to 3."
                .to_owned(),
        ]
    }

    fn axis(&self) -> Axis {
        let (name, label, scale) = match self.varied {
            Varied::Channels => ("channels", "channels", Scale::Logarithmic),
            Varied::Listeners => ("listeners", "listeners", Scale::Logarithmic),
            Varied::Idle => ("idle_sessions", "idle sessions", Scale::Linear),
        };
        Axis {
            name: name.to_owned(),
            label: label.to_owned(),
            scale,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name: &str, label: &str, chart| Figure {
            name: name.to_owned(),
            label: label.to_owned(),
            better: Better::Lower,
            scale: Scale::Logarithmic,
            chart,
            is_ratio: false,
        };
        vec![
            figure("commit_msec", "COMMIT, ms", true),
            figure("commit_max_msec", "longest COMMIT, ms", false),
            figure("transaction_msec", "whole transaction, ms", false),
            figure(
                "all_received_msec",
                "from COMMIT until all have everything, ms",
                false,
            ),
            figure("client_msec", "of COMMIT: this program's own, ms", false),
        ]
    }

    /// The values are ascending in spite of the audiences, so that the many sessions
    /// are only ever added to: while hundreds of them end, the server is busy.
    fn points(&self) -> Vec<PointId> {
        let values = self.values().iter();
        values
            .flat_map(|&x| Audience::ALL.map(|audience| PointId::of_workload(audience.name(), x)))
            .collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        TRANSACTION_TIME * (self.transactions.get() + self.warmup)
    }

    fn sessions(&self) -> u32 {
        let most = |values: &[u32]| values.last().copied().unwrap_or(0);
        1 + most(&self.listeners) + most(&self.idle)
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<State> {
        Ok(State {
            sender: self.connect(server).await?,
            listeners: Crowd::new()?,
            idle: Vec::new(),
        })
    }

    async fn prepare(
        &self,
        server: &Server,
        state: &mut State,
        point: &PointId,
    ) -> anyhow::Result<()> {
        let scene = self.scene(point);
        let transaction = Transaction::new(server, scene.channels);
        let listeners = scene.listeners as usize;
        // Those of the point before may listen on too few channels, or be too many.
        if self.varied == Varied::Channels || state.listeners.size() > listeners {
            state.listeners = Crowd::new()?;
        }
        state
            .listeners
            .grow(
                listeners,
                &server.config(),
                &transaction.listen(),
                self.timeout,
            )
            .await?;
        let more: Vec<Session> = stream::iter(state.idle.len()..scene.idle as usize)
            .map(|_| self.connect(server))
            .buffer_unordered(CONNECTING_AT_ONCE)
            .try_collect()
            .await?;
        state.idle.extend(more);
        state.sender = self.connect(server).await?;
        if scene.sender_listens {
            transaction
                .listen_to_oneself(&state.sender, self.timeout)
                .await?;
        }
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        state: &mut State,
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let scene = self.scene(point);
        let transaction = Transaction::new(server, scene.channels);
        let mut timings = Vec::new();
        for number in 0..self.warmup + self.transactions.get() {
            let timing = transaction
                .run(
                    &mut state.sender,
                    scene.sender_listens,
                    &state.listeners,
                    self.timeout,
                )
                .await?;
            if number >= self.warmup {
                timings.push(timing);
            }
        }
        let lost = state.idle.iter().filter(|session| session.is_closed());
        match lost.count() {
            0 => Ok(values(&timings)),
            lost => Err(SendingError::IdleSessionsLost(lost, state.idle.len()).into()),
        }
    }
}

/// The figures of a run, from its transactions, of which there is at least one.
fn values(timings: &[Timings]) -> Values {
    let summary = |time: fn(&Timings) -> Duration| {
        Summary::of_milliseconds(timings.iter().map(time))
            .expect("there is at least one transaction")
    };
    let commit = summary(|timings| timings.commit);
    [
        ("commit_msec", commit.median),
        ("commit_max_msec", commit.max),
        (
            "transaction_msec",
            summary(|timings| timings.transaction).median,
        ),
        (
            "all_received_msec",
            summary(|timings| timings.all_received).median,
        ),
        ("client_msec", summary(|timings| timings.client).median),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(varied: Varied) -> Plan {
        let values = |of| {
            if varied == of {
                vec![1, 5]
            } else {
                vec![match of {
                    Varied::Channels => 1000,
                    Varied::Listeners => 1,
                    Varied::Idle => 0,
                }]
            }
        };
        Plan {
            varied,
            channels: values(Varied::Channels),
            listeners: values(Varied::Listeners),
            idle: values(Varied::Idle),
            transactions: NonZeroU32::MIN,
            warmup: 0,
            runs: NonZeroU32::MIN,
            timeout: Duration::from_secs(1),
        }
    }

    fn scenes(varied: Varied) -> Vec<Scene> {
        let plan = plan(varied);
        let points = plan.points();
        points.iter().map(|point| plan.scene(point)).collect()
    }

    fn scene(channels: u32, sender_listens: bool, listeners: u32, idle: u32) -> Scene {
        Scene {
            channels,
            sender_listens,
            listeners,
            idle,
        }
    }

    #[test]
    fn one_number_is_varied() {
        assert_eq!(
            scenes(Varied::Channels),
            [
                scene(1, true, 0, 0),
                scene(1, false, 1, 0),
                scene(5, true, 0, 0),
                scene(5, false, 1, 0),
            ]
        );
        assert_eq!(
            scenes(Varied::Idle),
            [
                scene(1000, true, 0, 1),
                scene(1000, false, 1, 1),
                scene(1000, true, 0, 5),
                scene(1000, false, 1, 5),
            ]
        );
    }

    #[test]
    fn the_sender_counts_as_a_listener_if_it_listens() {
        assert_eq!(
            scenes(Varied::Listeners),
            [
                scene(1000, true, 0, 0),
                scene(1000, false, 1, 0),
                scene(1000, true, 4, 0),
                scene(1000, false, 5, 0),
            ]
        );
    }

    #[test]
    fn the_many_sessions_are_only_ever_added_to() {
        assert!(scenes(Varied::Listeners).is_sorted_by_key(|scene| scene.listeners));
        assert!(scenes(Varied::Idle).is_sorted_by_key(|scene| scene.idle));
    }

    #[test]
    fn there_is_room_for_all_sessions() {
        for varied in [Varied::Channels, Varied::Listeners, Varied::Idle] {
            let needed = scenes(varied)
                .iter()
                .map(|scene| 1 + scene.listeners + scene.idle)
                .max();
            assert_eq!(Some(plan(varied).sessions()), needed);
        }
    }

    #[test]
    fn a_run_is_the_median_of_its_transactions() {
        let ms = Duration::from_millis;
        let timings: Vec<Timings> = [10, 30, 11]
            .map(|commit| Timings {
                commit: ms(commit),
                transaction: ms(commit + 100),
                all_received: ms(commit + 200),
                client: ms(commit + 300),
            })
            .to_vec();
        let values = values(&timings);
        let names: Vec<String> = plan(Varied::Idle)
            .figures()
            .into_iter()
            .map(|figure| figure.name)
            .collect();
        let in_order: Vec<f64> = names.iter().map(|name| values[name]).collect();
        assert_eq!(in_order, [11.0, 30.0, 111.0, 211.0, 311.0]);
        assert_eq!(values.len(), names.len());
    }
}
