//! The benchmark `multicast`: round trips to a group of sessions that all answer,
//! while other groups listen on channels of their own.
//!
//! The method is that of the discussion of PostgreSQL's own optimisation
//! ("Optimize LISTEN/NOTIFY", pgsql-hackers, July 2025).

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use thiserror::Error;

use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::cli::CommonArgs;
use crate::cli::values::{MAX_CONNECTIONS, ascending, positive_seconds, seconds};
use crate::latency::Latencies;
use crate::results::{Axis, Figure, Scale, Values};
use crate::round_trips;
use crate::server::Server;
use crate::session::{CONNECTING_AT_ONCE, Session, SessionError};

/// For `all --quick`.
pub const QUICK: &[&str] = &["--group=1,4,16", "--duration=1", "--warmup=0.3", "--runs=2"];

/// Round trips per second to a group of sessions that all answer
///
/// A session notifies a group of N sessions, each of which answers at once with a NOTIFY of its
/// own. When all answers are there, the next round trip begins. Meanwhile other groups of the same
/// size listen, each on a channel of its own on which nothing is sent.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sizes of the group to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    group: Vec<u32>,

    /// Sessions in all groups together, or more if the largest group has more
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    listeners: u32,

    /// Make every run this long
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = positive_seconds)]
    duration: Duration,

    /// Go back and forth this long before each run, without measuring
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warmup: Duration,

    /// Runs for each size of the group and each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

    /// Give up when one round trip, or one connection, takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        let groups = ascending(self.group.clone());
        Plan {
            listeners: groups.iter().copied().fold(self.listeners, u32::max),
            groups,
            duration: self.duration,
            warmup: self.warmup,
            runs: self.runs,
            timeout: self.timeout,
        }
    }
}

#[derive(Debug, Error)]
enum MulticastError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(
        "only {received} of {expected} answers came back within {timeout:?}: if the server is only \
         slow, raise --timeout"
    )]
    NoAnswer {
        received: u32,
        expected: u32,
        timeout: Duration,
    },
    #[error(
        "an answer to round trip {got} came back in round trip {expected}: the server repeated or \
         held back a notification"
    )]
    WrongAnswer { got: String, expected: u64 },
    #[error("{0} notifications reached other groups than the one they were for")]
    Misdirected(u64),
    #[error(
        "a session could not connect and LISTEN within {0:?}: if the server is only slow, \
         raise --timeout"
    )]
    NoConnection(Duration),
}

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Sizes of the group, ascending.
    groups: Vec<u32>,
    /// In all groups.
    listeners: u32,
    #[serde(serialize_with = "as_seconds")]
    duration: Duration,
    #[serde(serialize_with = "as_seconds")]
    warmup: Duration,
    runs: NonZeroU32,
    /// For one round trip, and for one connection.
    #[serde(serialize_with = "as_seconds")]
    timeout: Duration,
}

/// The sessions that listen, of one server. The first ones are the group that answers.
pub type State = Vec<Session>;

impl Plan {
    async fn in_time<T>(
        &self,
        preparation: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, MulticastError> {
        Ok(tokio::time::timeout(self.timeout, preparation)
            .await
            .map_err(|_| MulticastError::NoConnection(self.timeout))??)
    }

    /// Goes back and forth, first for the warm-up, and returns the round trips of the rest.
    async fn serve(
        &self,
        ping: &mut Session,
        channel: &str,
        group: u32,
    ) -> Result<(Latencies, Duration), MulticastError> {
        let mut numbers = 0..;
        let mut next = async || {
            let number = numbers.next().expect("there is no last number");
            self.round_trip(ping, channel, number, group).await
        };
        let start = Instant::now();
        while start.elapsed() < self.warmup {
            next().await?;
        }
        let mut latencies = Latencies::new();
        let start = Instant::now();
        loop {
            latencies.record(next().await?);
            let elapsed = start.elapsed();
            if elapsed >= self.duration {
                return Ok((latencies, elapsed));
            }
        }
    }

    async fn round_trip(
        &self,
        ping: &mut Session,
        channel: &str,
        number: u64,
        group: u32,
    ) -> Result<Duration, MulticastError> {
        let mut received = 0;
        let start = Instant::now();
        let there_and_back = async {
            ping.notify_with(channel, &number.to_string()).await?;
            while received < group {
                let got = ping.notified().await?;
                if got.parse() != Ok(number) {
                    let expected = number;
                    return Err(MulticastError::WrongAnswer { got, expected });
                }
                received += 1;
            }
            Ok(())
        };
        match tokio::time::timeout(self.timeout, there_and_back).await {
            Ok(result) => result?,
            Err(_) => {
                return Err(MulticastError::NoAnswer {
                    received,
                    expected: group,
                    timeout: self.timeout,
                });
            }
        }
        Ok(start.elapsed())
    }
}

/// A session that answers, for ever.
async fn answer(session: &mut Session, channel: &str) -> Result<Infallible, SessionError> {
    loop {
        let number = session.notified().await?;
        session.notify_with(channel, &number).await?;
    }
}

fn group_channel(server: &Server, number: usize) -> String {
    server.channel(&format!("group_{number}"))
}

impl Benchmark for Plan {
    type State = State;

    fn name(&self) -> &'static str {
        "multicast"
    }

    fn question(&self) -> &'static str {
        "How many round trips per second does a session make to a group of listeners that all answer?"
    }

    fn method(&self) -> Vec<String> {
        vec![
            format!(
                "{} sessions listen, in groups of N, each group on a channel of its own. One more \
                 session notifies the first group. Each session of that group answers at once with \
                 a NOTIFY to a channel on which only the sender listens; when all N answers are \
                 there, the next round trip begins. Nothing is sent to the other groups. An answer \
                 that does not come, or one to another round trip, is an error. The warm-up of a \
                 run is {} s, the run {} s.",
                self.listeners,
                self.warmup.as_secs_f64(),
                self.duration.as_secs_f64()
            ),
            "All sessions belong to this program, which reads and writes them in one thread. Its \
             part in a round trip grows with N, and is the same for all servers."
                .to_owned(),
            "The method is that of the discussion of PostgreSQL's own optimisation (\"Optimize \
             LISTEN/NOTIFY\", pgsql-hackers, July 2025, message 8)."
                .to_owned(),
        ]
    }

    fn axis(&self) -> Axis {
        Axis {
            name: "group".to_owned(),
            label: "listeners in the group".to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        round_trips::figures()
    }

    fn points(&self) -> Vec<PointId> {
        self.groups.iter().map(|&x| PointId::at(x)).collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        self.warmup + self.duration
    }

    fn sessions(&self) -> u32 {
        1 + self.listeners
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<State> {
        let config = server.config();
        Ok(stream::iter(0..self.listeners)
            .map(|_| self.in_time(Session::connect(&config)))
            .buffer_unordered(CONNECTING_AT_ONCE)
            .try_collect()
            .await?)
    }

    /// Makes groups of another size.
    async fn prepare(
        &self,
        server: &Server,
        state: &mut State,
        point: &PointId,
    ) -> anyhow::Result<()> {
        for (number, group) in state.chunks(usize::try_from(point.x)?).enumerate() {
            let statements = format!("UNLISTEN *; LISTEN {}", group_channel(server, number));
            let listen = group.iter().map(|session| session.execute(&statements));
            self.in_time(try_join_all(listen)).await?;
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
        let (group, others) = state
            .split_at_mut_checked(usize::try_from(point.x)?)
            .context("there are fewer sessions than the group needs")?;
        let (forth, back) = (group_channel(server, 0), server.channel("ping"));
        let mut ping = self
            .in_time(Session::listen(&server.config(), &back))
            .await?;
        let answering = try_join_all(group.iter_mut().map(|session| answer(session, &back)));
        let size = u32::try_from(point.x)?;
        let (latencies, elapsed) = tokio::select! {
            result = self.serve(&mut ping, &forth, size) => result?,
            Err(error) = answering => return Err(MulticastError::Session(error).into()),
        };
        let misdirected = others
            .iter_mut()
            .map(Session::take_notifications)
            .sum::<Result<u64, _>>()
            .map_err(MulticastError::Session)?;
        if misdirected > 0 {
            return Err(MulticastError::Misdirected(misdirected).into());
        }
        Ok(round_trips::values(&latencies, elapsed))
    }
}
