//! The ping-pong: round trips of notifications between two sessions, against
//! the number of sessions that listen on channels of their own.
//!
//! The method is that of the benchmark in the discussion of PostgreSQL's own
//! optimisation ("Optimize LISTEN/NOTIFY", pgsql-hackers, October 2025), with
//! the targets taken in turn: whatever disturbs the machine for a while then
//! disturbs all of them.

mod args;

use std::convert::Infallible;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use thiserror::Error;
use tokio_postgres::Config;

pub use self::args::{Args, QUICK};
use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::latency::Latencies;
use crate::results::{Axis, Figure, Scale, Values};
use crate::round_trips;
use crate::server::Server;
use crate::session::{CONNECTING_AT_ONCE, Session, SessionError};

/// The two sessions of the game.
const PLAYERS: u32 = 2;

#[derive(Debug, Error)]
pub enum PingpongError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(
        "a notification did not come back within {0:?}: if the server is only slow, \
         raise --timeout"
    )]
    NoAnswer(Duration),
    #[error(
        "a session could not connect and LISTEN within {0:?}: if the server is only slow, \
         raise --timeout"
    )]
    NoConnection(Duration),
    #[error("{0} idle listeners lost their connection: these figures would not be for {1} of them")]
    IdleListenersLost(usize, usize),
}

/// How long a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    RoundTrips(NonZeroU64),
    #[serde(serialize_with = "as_seconds")]
    Duration(Duration),
}

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Numbers of idle listeners, ascending.
    pub idle: Vec<u32>,
    #[serde(flatten)]
    pub length: Length,
    #[serde(serialize_with = "as_seconds")]
    pub warmup: Duration,
    /// Runs for each number of idle listeners and each target.
    pub runs: NonZeroU32,
    /// For one round trip, and for one connection.
    #[serde(serialize_with = "as_seconds")]
    pub timeout: Duration,
}

impl Benchmark for Plan {
    /// The idle listeners, which stay connected, and are only added to.
    type State = Vec<Session>;

    fn name(&self) -> &'static str {
        "pingpong"
    }

    fn question(&self) -> &'static str {
        "How many round trips per second do two sessions make while others listen on channels \
         of their own?"
    }

    fn method(&self) -> Vec<String> {
        let length = match self.length {
            Length::RoundTrips(count) => format!("{count} round trips"),
            Length::Duration(duration) => format!("{} s", duration.as_secs_f64()),
        };
        vec![
            "Two sessions LISTEN on two channels, and each answers the other's notification with \
             a NOTIFY. The idle listeners are further sessions, each on a channel of its own on \
             which nothing is ever sent. They stay connected throughout."
                .to_owned(),
            format!(
                "A run is {} s of warm-up, and {length} that are measured, with two new sessions. \
                 The targets take turns, run by run. A round trip lasts from before the NOTIFY \
                 until the answer is there.",
                self.warmup.as_secs_f64()
            ),
            "The method is that of the benchmark in the discussion of PostgreSQL's own \
             optimisation (\"Optimize LISTEN/NOTIFY\", pgsql-hackers, October 2025)."
                .to_owned(),
        ]
    }

    fn axis(&self) -> Axis {
        Axis {
            name: "idle_listeners".to_owned(),
            label: "idle listeners".to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        round_trips::figures()
    }

    fn points(&self) -> Vec<PointId> {
        self.idle.iter().copied().map(PointId::at).collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        self.warmup
            + match self.length {
                Length::RoundTrips(_) => Duration::from_secs(1),
                Length::Duration(duration) => duration,
            }
    }

    fn sessions(&self) -> u32 {
        self.idle.last().copied().unwrap_or(0) + PLAYERS
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    async fn set_up(&self, _server: &Server) -> anyhow::Result<Vec<Session>> {
        Ok(Vec::new())
    }

    async fn prepare(
        &self,
        server: &Server,
        crowd: &mut Vec<Session>,
        point: &PointId,
    ) -> anyhow::Result<()> {
        grow(crowd, point.x, server, self.timeout).await?;
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        crowd: &mut Vec<Session>,
        _point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        Ok(play(self, crowd, server).await?)
    }
}

/// Connects more idle listeners, until there are `idle`.
async fn grow(
    crowd: &mut Vec<Session>,
    idle: u64,
    server: &Server,
    timeout: Duration,
) -> Result<(), PingpongError> {
    let config = server.config();
    let present = crowd.len() as u64;
    let newcomers: Vec<Session> = stream::iter(present..idle)
        .map(|number| {
            let channel = server.channel(&format!("idle_{number}"));
            listen(&config, channel, timeout)
        })
        .buffer_unordered(CONNECTING_AT_ONCE)
        .try_collect()
        .await?;
    crowd.extend(newcomers);
    Ok(())
}

async fn listen(
    config: &Config,
    channel: String,
    timeout: Duration,
) -> Result<Session, PingpongError> {
    tokio::time::timeout(timeout, Session::listen(config, &channel))
        .await
        .map_err(|_| PingpongError::NoConnection(timeout))?
        .map_err(PingpongError::from)
}

/// One run: two new sessions, the warm-up, the measurement.
async fn play(plan: &Plan, crowd: &[Session], server: &Server) -> Result<Values, PingpongError> {
    let config = server.config();
    let (ping, pong) = (server.channel("ping"), server.channel("pong"));
    let mut first = listen(&config, ping.clone(), plan.timeout).await?;
    let mut second = listen(&config, pong.clone(), plan.timeout).await?;

    // The two are independent, as two programs would be: the second may answer before
    // the first knows that its own NOTIFY is complete.
    let values = tokio::select! {
        values = serve(&mut first, &pong, plan) => values?,
        Err(error) = answer(&mut second, &ping) => return Err(error.into()),
    };

    let lost = crowd.iter().filter(|session| session.is_closed()).count();
    if lost > 0 {
        return Err(PingpongError::IdleListenersLost(lost, crowd.len()));
    }
    Ok(values)
}

/// The side that answers, for ever.
async fn answer(session: &mut Session, ping: &str) -> Result<Infallible, SessionError> {
    loop {
        session.notified().await?;
        session.notify(ping).await?;
    }
}

/// The side that begins each round trip, and takes the time.
async fn serve(session: &mut Session, pong: &str, plan: &Plan) -> Result<Values, PingpongError> {
    let start = Instant::now();
    while start.elapsed() < plan.warmup {
        round_trip(session, pong, plan.timeout).await?;
    }

    let mut latencies = Latencies::new();
    let start = Instant::now();
    loop {
        latencies.record(round_trip(session, pong, plan.timeout).await?);
        let elapsed = start.elapsed();
        let is_done = match plan.length {
            Length::RoundTrips(count) => latencies.count() >= count.get(),
            Length::Duration(duration) => elapsed >= duration,
        };
        if is_done {
            return Ok(round_trips::values(&latencies, elapsed));
        }
    }
}

async fn round_trip(
    session: &mut Session,
    pong: &str,
    timeout: Duration,
) -> Result<Duration, PingpongError> {
    let start = Instant::now();
    let there_and_back = async {
        session.notify(pong).await?;
        session.notified().await
    };
    tokio::time::timeout(timeout, there_and_back)
        .await
        .map_err(|_| PingpongError::NoAnswer(timeout))??;
    Ok(start.elapsed())
}
