//! `pingpong` and `multicast`: round trips of notifications.

use pinpoint_servers::options::{MAX_CONNECTIONS, Numbers, numbers};
use serde::Serialize;

use super::options::{TimeArgs, points, unnamed};
use crate::report::results::{Figure, Kind};
use crate::workload::round_trips::{MAX_LATENCY, P50_LATENCY, P99_LATENCY, PER_SEC, RoundTrips};
use crate::workload::{Activity, Benchmark, IdleSessions, Workload};

#[derive(Debug, clap::Args, Serialize)]
pub struct PingpongArgs {
    /// Numbers of idle listeners: a list such as 0,10,1000, or a range with a step, 0..1000/100
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "0,10,100,1000",
        value_parser = numbers(0..=MAX_CONNECTIONS),
    )]
    idle_listeners: Numbers,

    /// Numbers of sessions that answer; as many idle listeners listen on each idle channel
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
            }),
        }
    }

    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let options = [
            ("idle_listeners", &self.idle_listeners),
            ("group", &self.group),
        ];
        Ok(Benchmark {
            points: points(&about.axis, options, &unnamed(()), |(), [idle, group]| {
                self.workload(group, idle)
            })?,
            method: vec![
                "A session notifies one or several other sessions. Each of them answers with a \
                 NOTIFY on a channel on which only the first session listens. When all answers \
                 have arrived, the next round trip begins. Each notification contains the number \
                 of its round trip. A wrong number, a missing answer, and a notification to an \
                 idle listener are errors. The idle listeners form groups of the same size as \
                 the group that answers. Each of these groups listens on a channel of its own, \
                 which is never notified. The idle listeners stay connected during all runs."
                    .to_owned(),
                format!(
                    "A run consists of a warm-up of {} s and {} s that are measured, in the \
                     same new sessions. A round trip lasts from before the NOTIFY until all \
                     answers have arrived. One thread of this program reads and writes all \
                     sessions. Its share of the time grows with the group.",
                    self.time.warmup.as_secs_f64(),
                    self.time.duration.as_secs_f64()
                ),
                "The method is from the benchmark in the discussion of PostgreSQL's own \
                 optimization (\"Optimize LISTEN/NOTIFY\", pgsql-hackers, July and October 2025)."
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
