//! The ping-pong: round trips of notifications between a session and one or
//! several that answer, while others listen on channels of their own.
//!
//! The method is that of the benchmark in the discussion of PostgreSQL's own
//! optimisation ("Optimize LISTEN/NOTIFY", pgsql-hackers: October 2025 for one that
//! answers, July 2025, message 8, for a group).

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, numbers};
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;
use serde::Serialize;

use crate::clients::latency::Latencies;
use crate::clients::session::{CONNECTING_AT_ONCE, Session};
use crate::report::results::{Axis, Figure, Kind, Scale, Values};
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::{CommonArgs, TimeArgs, count};

/// Round trips per second between sessions, while others listen on channels of
/// their own
///
/// A session notifies another one, or a group of sessions (--group), each of which
/// answers at once with a NOTIFY of its own. When all answers are there, the next
/// round trip begins. Meanwhile further sessions are connected and LISTEN on
/// channels on which nothing is ever sent.
///
/// Example: pinpoint-bench pingpong --idle 0,1000 --duration 2s
#[derive(Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub struct PingpongArgs {
    /// Numbers of idle listeners to measure with, such as 0,10,1000 or 0..1000/100
    #[arg(
        long,
        alias = "listeners",
        value_name = "N,N,...",
        default_value = "0,10,100,1000",
        value_parser = numbers(0..=MAX_CONNECTIONS),
    )]
    idle: Numbers,

    /// Numbers of sessions that answer; the idle ones are in groups as large (with
    /// several numbers, --idle must be one)
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1",
        value_parser = numbers(1..=MAX_CONNECTIONS),
    )]
    group: Numbers,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,

    /// Instead of --duration: make every run N round trips long
    #[arg(long, value_name = "N", conflicts_with = "duration", value_parser = count)]
    round_trips: Option<NonZeroU32>,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

const PER_SEC: &str = "round_trips_per_sec";
const P99_LATENCY: &str = "p99_latency_usec";
const P50_LATENCY: &str = "p50_latency_usec";
const MAX_LATENCY: &str = "max_latency_usec";

/// The idle listeners of a server, which stay connected, and are only added to.
#[derive(Debug, Default)]
pub struct Idle {
    sessions: Vec<Session>,
    /// How many of them listen on a channel.
    group: u32,
}

impl PingpongArgs {
    /// Sessions that answer, and idle ones.
    fn numbers(&self, point: &PointId) -> (u32, u32) {
        if self.group.vary() {
            (point.x, self.idle.first())
        } else {
            (self.group.first(), point.x)
        }
    }

    async fn connected<T>(
        &self,
        connecting: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        within(
            self.common.runs.timeout,
            "a session's connection and LISTEN",
            connecting,
        )
        .await?
    }

    /// Goes back and forth, first for the warm-up, and takes the time of the rest.
    async fn serve(&self, ping: &mut Session, channel: &str, group: u32) -> anyhow::Result<Values> {
        let mut numbers = 0_u64..;
        let mut next = async || {
            let number = numbers.next().expect("there is no last number");
            self.round_trip(ping, channel, number, group).await
        };
        let start = Instant::now();
        while start.elapsed() < self.time.warmup {
            next().await?;
        }
        let mut latencies = Latencies::new();
        let start = Instant::now();
        loop {
            latencies.record(next().await?);
            let elapsed = start.elapsed();
            let is_done = match self.round_trips {
                Some(count) => latencies.count() >= u64::from(count.get()),
                None => elapsed >= self.time.duration,
            };
            if is_done {
                return Ok(values(&latencies, elapsed));
            }
        }
    }

    async fn round_trip(
        &self,
        ping: &mut Session,
        channel: &str,
        number: u64,
        group: u32,
    ) -> anyhow::Result<Duration> {
        let timeout = self.common.runs.timeout;
        let mut received = 0;
        let start = Instant::now();
        let there_and_back = async {
            ping.execute(&format!("NOTIFY {channel}, '{number}'"))
                .await?;
            while received < group {
                let got = ping.notified().await?;
                ensure!(
                    got.parse() == Ok(number),
                    "an answer to round trip {got} came back in round trip {number}: the server \
                     repeated or held back a notification"
                );
                received += 1;
            }
            Ok(())
        };
        match tokio::time::timeout(timeout, there_and_back).await {
            Ok(result) => result?,
            Err(_) => bail!(
                "only {received} of {group} answers came back within {timeout:?}: if the server \
                 is only slow, raise --timeout"
            ),
        }
        Ok(start.elapsed())
    }
}

/// A session that answers, for ever.
async fn answer(session: &mut Session, channel: &str) -> anyhow::Result<Infallible> {
    loop {
        let number = session.notified().await?;
        session
            .execute(&format!("NOTIFY {channel}, '{number}'"))
            .await?;
    }
}

/// The figures of a run that took `elapsed`, by the latencies of its round trips.
fn values(latencies: &Latencies, elapsed: Duration) -> Values {
    let rate = latencies.count() as f64 / elapsed.as_secs_f64();
    let mut values = Values::from([(PER_SEC.to_owned(), rate)]);
    let latencies = [
        (P50_LATENCY, latencies.at_quantile(0.50)),
        (P99_LATENCY, latencies.at_quantile(0.99)),
        (MAX_LATENCY, latencies.max()),
    ];
    for (name, latency) in latencies {
        values.extend(latency.map(|latency| (name.to_owned(), latency as f64)));
    }
    values
}

impl Benchmark for PingpongArgs {
    type State = Idle;

    fn describe(&self) -> anyhow::Result<Description> {
        let is_group = self.group.vary();
        ensure!(
            !(is_group && self.idle.vary()),
            "--idle and --group cannot both have several numbers"
        );
        let length = match self.round_trips {
            Some(count) => format!("{count} round trips"),
            None => format!("{} s", self.time.duration.as_secs_f64()),
        };
        let (values, axis) = if is_group {
            (&self.group, ("group", "listeners in the group"))
        } else {
            (&self.idle, ("idle_listeners", "idle listeners"))
        };
        Ok(Description {
            name: if is_group { "multicast" } else { "pingpong" },
            question: if is_group {
                "How many round trips per second does a session make to a group of listeners \
                 that all answer?"
            } else {
                "How many round trips per second do two sessions make while others listen on \
                 channels of their own?"
            },
            method: vec![
                "A session notifies one or several others, each of which answers at once with a \
                 NOTIFY to a channel on which only the first one listens; when all answers are \
                 there, the next round trip begins. Each notification carries the number of its \
                 round trip: an answer to another one, one that does not come, and one that \
                 reaches an idle listener are errors. The idle listeners are further sessions, in \
                 groups as large as that which answers, each group on a channel of its own on \
                 which nothing is ever sent. They stay connected throughout."
                    .to_owned(),
                format!(
                    "A run is {} s of warm-up, and {length} that are measured, with the same new \
                     sessions. A round trip lasts from before the NOTIFY until all answers are \
                     there. All sessions are read and written by one thread of this program, \
                     whose part grows with the group.",
                    self.time.warmup.as_secs_f64()
                ),
                "The method is that of the benchmark in the discussion of PostgreSQL's own \
                 optimisation (\"Optimize LISTEN/NOTIFY\", pgsql-hackers, July and October 2025)."
                    .to_owned(),
            ],
            axis: Axis::new(axis.0, axis.1, Scale::Logarithmic),
            figures: vec![
                Figure::new(PER_SEC, "round trips per second", Kind::Rate).drawn(),
                // The longest one grows with their number, which is not the same for all.
                Figure::new(
                    P99_LATENCY,
                    "99th percentile of the round trips (µs)",
                    Kind::Time,
                )
                .drawn(),
                Figure::new(P50_LATENCY, "median of the round trips (µs)", Kind::Time),
                Figure::new(MAX_LATENCY, "longest round trip (µs)", Kind::Time),
            ],
            points: values.iter().map(PointId::at).collect(),
            run_time: self.time.warmup
                + match self.round_trips {
                    Some(_) => Duration::from_secs(1),
                    None => self.time.duration,
                },
            sessions: 1 + self.group.last() + self.idle.last(),
            programs: &[],
            settings: Vec::new(),
            needs_own_cluster: None,
        })
    }

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    async fn set_up(&self, _server: &Server) -> anyhow::Result<Idle> {
        Ok(Idle::default())
    }

    async fn prepare(
        &self,
        server: &Server,
        idle: &mut Idle,
        point: &PointId,
    ) -> anyhow::Result<()> {
        let (group, count) = self.numbers(point);
        let config = server.config();
        let present = idle.sessions.len() as u32;
        let connecting = stream::iter(present..count)
            .map(|_| self.connected(Session::connect(&config)))
            .buffer_unordered(CONNECTING_AT_ONCE);
        let newcomers: Vec<Session> = connecting.try_collect().await?;
        idle.sessions.extend(newcomers);

        // Groups of another size are others.
        let first = if idle.group == group {
            present as usize
        } else {
            0
        };
        idle.group = group;
        let listening = idle.sessions.iter().enumerate().skip(first);
        let listen = listening.map(|(number, session)| {
            let channel = server.channel(&format!("idle_{}", number as u32 / group));
            async move {
                let statements = format!("UNLISTEN *; LISTEN {channel}");
                self.connected(session.execute(&statements)).await
            }
        });
        try_join_all(listen).await?;
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        idle: &mut Idle,
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let (group, _) = self.numbers(point);
        let config = server.config();
        let (forth, back) = (server.channel("pong"), server.channel("ping"));
        let mut ping = self.connected(Session::listen(&config, &back)).await?;
        let answering = (0..group).map(|_| self.connected(Session::listen(&config, &forth)));
        let mut answering = try_join_all(answering).await?;

        // They are independent, as programs would be: one may answer before the first
        // knows that its own NOTIFY is complete.
        let answers = answering.iter_mut().map(|session| answer(session, &back));
        let values = tokio::select! {
            values = self.serve(&mut ping, &forth, group) => values?,
            Err(error) = try_join_all(answers) => return Err(error),
        };

        let lost = idle.sessions.iter().filter(|s| s.is_closed()).count();
        let all = idle.sessions.len();
        ensure!(
            lost == 0,
            "{lost} idle listeners lost their connection: these figures would not be for {all} \
             of them"
        );
        let received = idle.sessions.iter_mut().map(Session::take_notifications);
        let misdirected = received.sum::<anyhow::Result<u32>>();
        let misdirected = misdirected.context("an idle listener failed")?;
        ensure!(
            misdirected == 0,
            "{misdirected} notifications reached listeners that they were not for"
        );
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_run() {
        let mut latencies = Latencies::new();
        for latency in 1..=100 {
            latencies.record(Duration::from_micros(latency));
        }
        let expected = [
            (PER_SEC, 200.0),
            (P50_LATENCY, 50.0),
            (P99_LATENCY, 99.0),
            (MAX_LATENCY, 100.0),
        ];
        assert_eq!(
            values(&latencies, Duration::from_millis(500)),
            expected
                .map(|(name, value)| (name.to_owned(), value))
                .into()
        );
    }
}
