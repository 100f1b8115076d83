//! `pingpong` and `multicast`: round trips of notifications.

use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, number, numbers};
use serde::Serialize;

use super::options::{MOST, TimeArgs, points, unnamed};
use crate::report::results::{Figure, Kind};
use crate::workload::round_trips::{MAX_LATENCY, P50_LATENCY, P99_LATENCY, PER_SEC, RoundTrips};
use crate::workload::{Activity, Benchmark, IdleSessions, Workload};

#[derive(Debug, clap::Args, Serialize)]
pub struct PingpongArgs {
    /// Listeners on channels on which nothing is sent, such as 0,10,1000 or 0..1000/100
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "0,10,100,1000",
        value_parser = numbers(0..=MAX_CONNECTIONS),
    )]
    idle_listeners: Numbers,

    /// Sessions that answer; the idle listeners share their channels in groups as large
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
    #[arg(long, value_name = "N", conflicts_with = "duration", value_parser = number(1..=MOST))]
    round_trips: Option<u32>,
}

impl PingpongArgs {
    fn workload(&self, group: u32, idle: u32) -> Workload {
        Workload {
            idle: IdleSessions {
                sessions: idle,
                listeners_per_channel: group,
            },
            activity: Activity::RoundTrips(RoundTrips {
                group,
                warmup: self.time.warmup,
                duration: self.time.duration,
                count: self.round_trips,
            }),
        }
    }

    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let options = [
            ("idle_listeners", &self.idle_listeners),
            ("group", &self.group),
        ];
        let length = match self.round_trips {
            Some(count) => format!("{count} round trips"),
            None => format!("{} s", self.time.duration.as_secs_f64()),
        };
        Ok(Benchmark {
            points: points(&about.axis, options, &unnamed(()), |(), [idle, group]| {
                self.workload(group, idle)
            })?,
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
            ..about
        })
    }
}
