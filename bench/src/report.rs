//! Results, as people and programs read them.

mod export;
mod load;
mod table;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::SystemTime;

use serde::Serialize;

pub use self::export::write_json;
use crate::cluster::{Cluster, ClusterError, Clusters};
use crate::machine::Machine;
use crate::pingpong::{Plan, Point};
use crate::stats::Summary;

/// Runs that lie further apart than this, as a fraction of their median, are
/// worth a warning.
const NOISE: f64 = 0.3;

/// Everything that is known about one invocation and its results: what the plan
/// `P` was, and what was measured at each point `R` of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report<P, R> {
    /// The subcommand.
    pub benchmark: &'static str,
    /// Version of pinpoint-bench.
    pub version: &'static str,
    pub command_line: Vec<String>,
    /// When the measurement began, in UTC, as RFC 3339 has it.
    pub date: String,
    pub machine: Machine,
    pub parameters: P,
    pub targets: Vec<TargetRecord>,
    pub results: Vec<R>,
}

/// Results in each of their forms.
pub trait Results: Serialize {
    /// For people, no wider than `width` characters, if given.
    fn table(&self, width: Option<u16>) -> String;

    /// The figures of the table, tab-separated.
    fn write_tsv(&self, out: impl Write) -> csv::Result<()>;

    /// Every single run, comma-separated.
    fn write_csv(&self, out: impl Write) -> csv::Result<()>;

    /// What a reader should know before believing the figures.
    fn warnings(&self) -> Vec<String>;
}

type PingpongReport = Report<Plan, Point>;

impl Results for PingpongReport {
    fn table(&self, width: Option<u16>) -> String {
        table::render_table(self, width)
    }

    fn write_tsv(&self, out: impl Write) -> csv::Result<()> {
        export::write_tsv(self, out)
    }

    fn write_csv(&self, out: impl Write) -> csv::Result<()> {
        export::write_csv(self, out)
    }

    fn warnings(&self) -> Vec<String> {
        warnings(&self.results)
    }
}

/// A target, and what its server said about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TargetRecord {
    pub name: String,
    pub pg_config: String,
    pub server_version: String,
    pub preload: Vec<String>,
    pub extensions: BTreeMap<String, String>,
    pub settings: BTreeMap<String, String>,
}

impl TargetRecord {
    pub async fn of_all(clusters: &Clusters) -> Result<Vec<Self>, ClusterError> {
        let mut records = Vec::new();
        for cluster in clusters.iter() {
            records.push(Self::of(cluster).await?);
        }
        Ok(records)
    }

    async fn of(cluster: &Cluster) -> Result<Self, ClusterError> {
        let description = cluster.describe().await?;
        let target = cluster.target();
        Ok(Self {
            name: target.name.clone(),
            pg_config: target.pg_config.display().to_string(),
            server_version: description.server_version,
            preload: target.preload.clone(),
            extensions: description.extensions,
            settings: description.settings,
        })
    }
}

pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn warnings(points: &[Point]) -> Vec<String> {
    let mut noisy = Vec::new();
    for point in points {
        for series in &point.series {
            let rates = series.round_trips_per_sec;
            if is_noisy(rates) {
                noisy.push(format!(
                    "{} with {} idle listeners, {:.0} to {:.0} round trips per second",
                    series.target, point.idle_listeners, rates.min, rates.max
                ));
            }
        }
    }
    warn_of_noise(&noisy).into_iter().collect()
}

fn is_noisy(figure: Summary) -> bool {
    figure.spread() > NOISE
}

/// From descriptions of what is noisy, if there are any.
fn warn_of_noise(noisy: &[String]) -> Option<String> {
    (!noisy.is_empty()).then(|| {
        format!(
            "some runs differ a lot ({}): stop other programs, or raise --duration and --runs",
            noisy.join("; ")
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::pingpong::{Length, Run};

    /// The targets of all examples.
    pub fn targets() -> Vec<TargetRecord> {
        let target = |name: &str, preload: &[&str]| TargetRecord {
            name: name.to_owned(),
            pg_config: "pg_config".to_owned(),
            server_version: "PostgreSQL 15.20 on x86_64-pc-linux-gnu, 64-bit".to_owned(),
            preload: preload.iter().map(ToString::to_string).collect(),
            extensions: preload
                .iter()
                .map(|name| (name.to_string(), "0.1".to_owned()))
                .collect(),
            settings: BTreeMap::from([("fsync".to_owned(), "on".to_owned())]),
        };
        vec![target("stock", &[]), target("pinpoint", &["pg_pinpoint"])]
    }

    pub fn machine() -> Machine {
        Machine {
            cpu_model: "Example CPU".to_owned(),
            cpu_count: 2,
            os: "Linux (Example 1)".to_owned(),
            kernel: "6.1".to_owned(),
        }
    }

    /// A report with figures that are easy to tell apart.
    pub fn example() -> PingpongReport {
        let run = |round_trips: u64, max_latency_usec| Run {
            round_trips,
            seconds: 2.0,
            round_trips_per_sec: round_trips as f64 / 2.0,
            p50_latency_usec: 120,
            p99_latency_usec: 350,
            max_latency_usec,
        };
        let point = |idle, stock: [u64; 3], pinpoint: [u64; 3]| {
            Point::new(
                idle,
                vec![
                    (
                        "stock".to_owned(),
                        stock.map(|count| run(count, 1000 + count)).to_vec(),
                    ),
                    (
                        "pinpoint".to_owned(),
                        pinpoint.map(|count| run(count, 2000 + count)).to_vec(),
                    ),
                ],
            )
        };
        Report {
            benchmark: "pingpong",
            version: "0.1.0",
            command_line: vec!["pinpoint-bench".to_owned(), "pingpong".to_owned()],
            date: "2026-01-02T03:04:05Z".to_owned(),
            machine: machine(),
            parameters: Plan {
                idle: vec![0, 1000],
                length: Length::Duration(Duration::from_secs(2)),
                warmup: Duration::from_secs(1),
                runs: NonZeroU32::new(3).unwrap(),
                timeout: Duration::from_secs(60),
            },
            targets: targets(),
            results: vec![
                point(0, [12_000, 12_345, 12_700], [12_500, 12_100, 12_999]),
                point(1000, [35, 33, 34], [12_000, 11_000, 7_000]),
            ],
        }
    }

    #[test]
    fn runs_that_differ_a_lot_get_a_warning() {
        assert_eq!(
            warnings(&example().results),
            [
                "some runs differ a lot (pinpoint with 1000 idle listeners, 3500 to 6000 round \
                 trips per second): stop other programs, or raise --duration and --runs"
            ]
        );
    }

    #[test]
    fn runs_that_agree_get_none() {
        assert_eq!(warnings(&example().results[..1]), [""; 0]);
    }

    #[test]
    fn dates_are_rfc3339() {
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00Z");
    }
}
