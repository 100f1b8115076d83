//! Options that several benchmarks share.

use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use pinpoint_servers::options::{Numbers, as_seconds, duration, positive_duration};
use serde::Serialize;

use crate::clients::latency::STATISTICS;
use crate::clients::pgbench::Pgbench;
use crate::report::results::{Axis, Figure, Kind};
use crate::workload::{PointId, Workload};

/// More transactions or round trips take longer than anybody waits.
pub const MOST: u32 = 1_000_000_000;

/// Notifications per second whose latency is measured under load.
pub const PROBES: u32 = 50;

/// From one of them to the next.
pub const PROBE_PERIOD: Duration = Duration::from_millis(1000 / PROBES as u64);

/// How long one run is.
#[derive(Debug, Clone, Args, Serialize)]
pub struct TimeArgs {
    /// Duration of each measurement, in seconds or with a unit (500ms)
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = positive_duration)]
    #[serde(serialize_with = "as_seconds")]
    pub duration: Duration,

    /// Duration of the warm-up before each measurement
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    #[serde(serialize_with = "as_seconds")]
    pub warmup: Duration,
}

impl TimeArgs {
    /// A load of pgbench that takes this time.
    pub fn pgbench(&self, clients: u32) -> Pgbench {
        Pgbench {
            clients,
            jobs: None,
            variables: &[],
            warmup: self.warmup,
            duration: self.duration,
        }
    }
}

/// The points for each number of the option that the axis is named for, with each of the
/// workloads. The other options must have one number each.
///
/// Numbers are ascending, so that idle sessions are only ever added: while hundreds of
/// sessions end, a server is busy.
pub fn points<W: Copy, const N: usize>(
    axis: &Axis,
    options: [(&str, &Numbers); N],
    workloads: &[(String, W)],
    workload: impl Fn(W, [u32; N]) -> Workload,
) -> anyhow::Result<Vec<(PointId, Workload)>> {
    let option = |name: &str| format!("--{}", name.replace('_', "-"));
    let mut all = options.map(|(_, numbers)| numbers.first());
    let mut points = Vec::new();
    for (position, (name, numbers)) in options.into_iter().enumerate() {
        if name != axis.name {
            ensure!(
                !numbers.vary(),
                "{} has several numbers, but it is {} that varies here: name only one, or use \
                 another subcommand",
                option(name),
                option(&axis.name)
            );
            continue;
        }
        for x in numbers.iter() {
            all[position] = x;
            for (name, choice) in workloads {
                let workload = workload(*choice, all);
                let name = name.clone();
                points.push((PointId { workload: name, x }, workload));
            }
        }
    }
    Ok(points)
}

/// Of a benchmark that has one workload, without a name.
pub fn unnamed<W>(workload: W) -> [(String, W); 1] {
    [(String::new(), workload)]
}

/// The figures of latencies, by the beginning of their names.
pub fn latency_figures(start: &str, what: &str) -> [Figure; 3] {
    STATISTICS.map(|(end, which)| {
        let label = format!("{what}, {which} (µs)");
        Figure::new(&format!("{start}_{end}"), &label, Kind::Time)
    })
}

/// What the command line calls a value.
pub fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Workloads and their names, each once.
pub fn named<W: ValueEnum + Copy>(workloads: &[W]) -> Vec<(String, W)> {
    let mut named: Vec<(String, W)> = Vec::new();
    for workload in workloads {
        let name = name(workload);
        if named.iter().all(|(known, _)| *known != name) {
            named.push((name, *workload));
        }
    }
    named
}

/// The same, without the name if there is only one.
pub fn named_if_several<W: ValueEnum + Copy>(workloads: &[W]) -> Vec<(String, W)> {
    let mut named = named(workloads);
    if let [(name, _)] = &mut named[..] {
        name.clear();
    }
    named
}
