//! The ping-pong: round trips of notifications between two sessions, against
//! the number of sessions that listen on channels of their own.
//!
//! The method is that of the benchmark in the discussion of PostgreSQL's own
//! optimisation ("Optimize LISTEN/NOTIFY", pgsql-hackers, October 2025), with
//! the targets taken in turn: whatever disturbs the machine for a while then
//! disturbs all of them.

use std::convert::Infallible;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::{Serialize, Serializer};
use thiserror::Error;
use tokio_postgres::Config;

use crate::cluster::Clusters;
use crate::latency::Latencies;
use crate::progress::Progress;
use crate::session::{Session, SessionError};
use crate::stats::Summary;

/// The two sessions of the game.
pub const PLAYERS: u32 = 2;

/// Idle listeners that connect at the same time.
const CONNECTING_AT_ONCE: usize = 16;

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
    IdleListenersLost(usize, u32),
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

pub fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl Plan {
    pub fn max_idle(&self) -> u32 {
        self.idle.last().copied().unwrap_or(0)
    }
}

/// What was measured in one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Run {
    pub round_trips: u64,
    pub seconds: f64,
    pub round_trips_per_sec: f64,
    pub p50_latency_usec: u64,
    pub p99_latency_usec: u64,
    pub max_latency_usec: u64,
}

/// All runs of one target with one number of idle listeners.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    pub target: String,
    pub round_trips_per_sec: Summary,
    /// The longest round trip of all runs.
    pub max_latency_usec: u64,
    /// Round trips per second as a multiple of the first target's, by the
    /// medians. `None` for the first target itself.
    pub ratio: Option<f64>,
    pub runs: Vec<Run>,
}

/// All series with one number of idle listeners, in the order of the targets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    pub idle_listeners: u32,
    pub series: Vec<Series>,
}

impl Point {
    /// From each target's name and runs, of which there is at least one.
    pub fn new(idle_listeners: u32, targets: Vec<(String, Vec<Run>)>) -> Self {
        let mut series: Vec<Series> = Vec::new();
        for (target, runs) in targets {
            let rates = runs.iter().map(|run| run.round_trips_per_sec);
            let round_trips_per_sec = Summary::of(rates).expect("there is at least one run");
            series.push(Series {
                target,
                round_trips_per_sec,
                max_latency_usec: runs
                    .iter()
                    .map(|run| run.max_latency_usec)
                    .max()
                    .expect("there is at least one run"),
                ratio: series
                    .first()
                    .map(|base| round_trips_per_sec.median / base.round_trips_per_sec.median),
                runs,
            });
        }
        Self {
            idle_listeners,
            series,
        }
    }
}

/// Measures all targets as planned. The idle listeners of all of them stay
/// connected throughout, and are only added to.
pub async fn run(
    plan: &Plan,
    clusters: &mut Clusters,
    progress: &Progress,
) -> anyhow::Result<Vec<Point>> {
    let mut crowds: Vec<Vec<Session>> = clusters.iter().map(|_| Vec::new()).collect();
    let mut points = Vec::new();

    for &idle in &plan.idle {
        for (cluster, crowd) in clusters.iter_mut().zip(&mut crowds) {
            progress.announce(format!(
                "{}: connecting {idle} idle listeners",
                cluster.target().name
            ));
            let grown = grow(crowd, idle, &cluster.config(), plan.timeout).await;
            if let Err(error) = grown {
                return Err(cluster.explain(with_idle(error, idle)).await);
            }
        }

        let mut targets: Vec<(String, Vec<Run>)> = clusters
            .iter()
            .map(|cluster| (cluster.target().name.clone(), Vec::new()))
            .collect();
        for number in 1..=plan.runs.get() {
            for ((cluster, crowd), (name, runs)) in
                clusters.iter_mut().zip(&crowds).zip(&mut targets)
            {
                progress.announce(format!(
                    "{name}: {idle} idle listeners, run {number} of {}",
                    plan.runs
                ));
                match measure(plan, crowd, &cluster.config()).await {
                    Ok(run) => runs.push(run),
                    Err(error) => return Err(cluster.explain(with_idle(error, idle)).await),
                }
                progress.advance();
            }
        }
        points.push(Point::new(idle, targets));
    }
    Ok(points)
}

/// How many runs `run` will make of `targets` targets.
pub fn count_runs(plan: &Plan, targets: usize) -> u64 {
    plan.idle.len() as u64 * u64::from(plan.runs.get()) * targets as u64
}

fn with_idle(error: PingpongError, idle: u32) -> anyhow::Error {
    anyhow!(error).context(format!("with {idle} idle listeners"))
}

/// Connects more idle listeners, until there are `idle`.
async fn grow(
    crowd: &mut Vec<Session>,
    idle: u32,
    config: &Config,
    timeout: Duration,
) -> Result<(), PingpongError> {
    let present = crowd.len() as u32;
    let newcomers: Vec<Session> = stream::iter(present..idle)
        .map(|number| listen(config, format!("idle_{number}"), timeout))
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
async fn measure(plan: &Plan, crowd: &[Session], config: &Config) -> Result<Run, PingpongError> {
    let mut ping = listen(config, "ping".to_owned(), plan.timeout).await?;
    let mut pong = listen(config, "pong".to_owned(), plan.timeout).await?;

    // The two are independent, as two programs would be: pong may answer before
    // ping knows that its own NOTIFY is complete.
    let run = tokio::select! {
        run = serve(&mut ping, plan) => run?,
        Err(error) = answer(&mut pong) => return Err(error.into()),
    };

    let lost = crowd.iter().filter(|session| session.is_closed()).count();
    if lost > 0 {
        return Err(PingpongError::IdleListenersLost(lost, crowd.len() as u32));
    }
    Ok(run)
}

/// The side that answers, for ever.
async fn answer(pong: &mut Session) -> Result<Infallible, SessionError> {
    loop {
        pong.notified().await?;
        pong.notify("ping").await?;
    }
}

/// The side that begins each round trip, and takes the time.
async fn serve(ping: &mut Session, plan: &Plan) -> Result<Run, PingpongError> {
    let start = Instant::now();
    while start.elapsed() < plan.warmup {
        round_trip(ping, plan.timeout).await?;
    }

    let mut latencies = Latencies::new();
    let start = Instant::now();
    loop {
        latencies.record(round_trip(ping, plan.timeout).await?);
        let elapsed = start.elapsed();
        let is_done = match plan.length {
            Length::RoundTrips(count) => latencies.count() >= count.get(),
            Length::Duration(duration) => elapsed >= duration,
        };
        if is_done {
            return Ok(run_of(&latencies, elapsed));
        }
    }
}

async fn round_trip(ping: &mut Session, timeout: Duration) -> Result<Duration, PingpongError> {
    let start = Instant::now();
    let there_and_back = async {
        ping.notify("pong").await?;
        ping.notified().await
    };
    tokio::time::timeout(timeout, there_and_back)
        .await
        .map_err(|_| PingpongError::NoAnswer(timeout))??;
    Ok(start.elapsed())
}

/// `latencies` of all round trips, of which there is at least one.
fn run_of(latencies: &Latencies, elapsed: Duration) -> Run {
    let round_trips = latencies.count();
    let seconds = elapsed.as_secs_f64();
    Run {
        round_trips,
        seconds,
        round_trips_per_sec: round_trips as f64 / seconds,
        p50_latency_usec: latencies.at_quantile(0.50).unwrap_or_default(),
        p99_latency_usec: latencies.at_quantile(0.99).unwrap_or_default(),
        max_latency_usec: latencies.max().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_at(round_trips_per_sec: f64, max_latency_usec: u64) -> Run {
        Run {
            round_trips: 1,
            seconds: 1.0,
            round_trips_per_sec,
            p50_latency_usec: 1,
            p99_latency_usec: 1,
            max_latency_usec,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_to_the_first_target() {
        let runs = |rates: [f64; 3]| rates.map(|rate| run_at(rate, rate as u64)).to_vec();
        let point = Point::new(
            10,
            vec![
                ("stock".to_owned(), runs([20.0, 1.0, 30.0])),
                ("pinpoint".to_owned(), runs([900.0, 50.0, 60.0])),
                ("slow".to_owned(), runs([5.0, 5.0, 5.0])),
            ],
        );
        let ratios: Vec<_> = point.series.iter().map(|series| series.ratio).collect();
        assert_eq!(ratios, [None, Some(3.0), Some(0.25)]);
    }

    #[test]
    fn the_maximum_is_that_of_all_runs() {
        let runs = vec![run_at(1.0, 7), run_at(1.0, 9), run_at(1.0, 8)];
        let point = Point::new(0, vec![("stock".to_owned(), runs)]);
        assert_eq!(point.series[0].max_latency_usec, 9);
    }

    #[test]
    fn latencies_of_a_run() {
        let mut latencies = Latencies::new();
        for microseconds in 1..=100 {
            latencies.record(Duration::from_micros(microseconds));
        }
        let run = run_of(&latencies, Duration::from_millis(500));
        assert_eq!(
            run,
            Run {
                round_trips: 100,
                seconds: 0.5,
                round_trips_per_sec: 200.0,
                p50_latency_usec: 50,
                p99_latency_usec: 99,
                max_latency_usec: 100,
            }
        );
    }
}
