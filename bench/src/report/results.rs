//! What a benchmark reports: one form for all of them, in memory and as JSON.
//!
//! `bench/formats.md` describes the JSON for those who read it with another program.

use std::collections::BTreeMap;

use super::interval::Interval;
pub use pinpoint_servers::server::ServerRecord;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, System};

/// Goes up when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 2;

/// The figure that tells how long a listener was behind.
pub const BACKLOG_USEC: &str = "backlog_usec";

/// All that one invocation of one subcommand has measured, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema_version: u32,
    /// `pingpong`
    pub benchmark: String,
    /// The question it answers, one sentence.
    pub question: String,
    /// How it was measured: paragraphs of plain text.
    pub method: Vec<String>,
    pub program_version: String,
    pub command_line: Vec<String>,
    /// RFC 3339, UTC, when the measurement began.
    pub date: String,
    pub machine: Machine,
    /// Not in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    pub parameters: serde_json::Value,
    /// The first one is the baseline.
    pub targets: Vec<ServerRecord>,
    pub axis: Axis,
    /// The first one is the figure of the benchmark, that of all verdicts.
    pub figures: Vec<Figure>,
    pub points: Vec<Point>,
    /// False if the measurement was stopped before its end.
    pub complete: bool,
    /// What makes the figures doubtful: sentences.
    pub warnings: Vec<String>,
}

/// The names of reports on servers that are compared with themselves begin with it, where other
/// records are.
pub const CHECK: &str = "aa/";

/// So do those of measurements that were made again, to see whether they agree.
pub const REPEATED: &str = "repeated/";

/// Targets whose names differ in these beginnings are compared.
pub const OURS: &str = "pinpoint";
const STOCK: &str = "stock";

/// Reports by the names of their files, without `.json`.
pub type Records = BTreeMap<String, Report>;

/// What varies from point to point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// `idle_listeners`
    pub name: String,
    /// `idle listeners`
    pub label: String,
    pub scale: Scale,
}

impl Axis {
    pub fn new(name: &str, label: &str, scale: Scale) -> Self {
        Self {
            name: name.to_owned(),
            label: label.to_owned(),
            scale,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    Linear,
    Logarithmic,
}

/// Something that is measured in every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// `round_trips_per_sec`: with its unit as the last part.
    pub name: String,
    /// `round trips per second`
    pub label: String,
    pub kind: Kind,
    pub scale: Scale,
    /// Is it drawn? Every figure is in the files.
    pub chart: bool,
}

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Something per second: more is better.
    Rate,
    /// Less is better.
    Time,
    /// A share or a multiple, without a unit: more is better.
    Share,
    /// A number of something: neither is better.
    Count,
}

impl Kind {
    /// Which way is better; of neither it is empty.
    pub fn better(self) -> &'static str {
        match self {
            Self::Rate | Self::Share => "higher is better",
            Self::Time => "lower is better",
            Self::Count => "",
        }
    }
}

impl Figure {
    pub fn new(name: &str, label: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            label: label.to_owned(),
            kind,
            scale: match kind {
                Kind::Share => Scale::Linear,
                _ => Scale::Logarithmic,
            },
            chart: false,
        }
    }

    pub fn drawn(self) -> Self {
        Self {
            chart: true,
            ..self
        }
    }

    pub fn on_scale(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }
}

/// One place on the axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// A curve of its own, where a benchmark has several workloads
    /// (`listen_unique`, `single_transaction`); empty where it has one.
    pub workload: String,
    pub x: u64,
    /// In the order of the targets.
    pub series: Vec<Series>,
}

/// All runs of one target at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub target: String,
    /// Of each figure that was measured.
    pub summary: BTreeMap<String, Summary>,
    /// Of each figure, as a multiple of the baseline's. Empty for the baseline.
    pub ratio: BTreeMap<String, Ratio>,
    /// Figures by their names; one that could not be measured is not there.
    pub runs: Vec<Values>,
    /// Of the processor time during each run, the share that the host took. Not in reports
    /// of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stolen: Vec<f64>,
    /// How often each run was repeated because the host took too much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<u32>,
}

pub type Values = BTreeMap<String, f64>;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// One figure as a multiple of another one: a ratio for each pair of runs that
/// were made one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub pairs: usize,
    /// That of the median. There is none from few pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// The machine that the figures are from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu_model: String,
    pub cpu_count: usize,
    pub os: String,
    pub kernel: String,
}

/// What decides how much the figures vary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Were the processors kept from halting?
    pub kept_awake: bool,
    /// How the system lets a processor halt; absent if the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_driver: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_governor: Option<String>,
    /// The load average of the last minute, before the servers were started.
    pub load_at_start: f64,
}

// Finding one's way in a report. One that was interrupted, or edited, may lack what it
// announces, so everything may be missing.

impl Report {
    /// In the order in which they were measured.
    pub fn workloads(&self) -> Vec<&str> {
        let mut workloads: Vec<&str> = Vec::new();
        for point in &self.points {
            if !workloads.contains(&point.workload.as_str()) {
                workloads.push(&point.workload);
            }
        }
        workloads
    }

    pub fn points_of<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = &'a Point> {
        self.points
            .iter()
            .filter(move |point| point.workload == workload)
    }

    /// Each target of ours, and the stock server that it is compared with.
    pub fn compared(&self) -> Vec<(&str, String)> {
        let names = self.targets.iter().map(|target| target.name.as_str());
        let pairs =
            names.filter_map(|name| Some((name, format!("{STOCK}{}", name.strip_prefix(OURS)?))));
        pairs.collect()
    }

    /// Was the figure measured with this workload?
    pub fn has(&self, figure: &Figure, workload: &str) -> bool {
        self.points_of(workload)
            .flat_map(|point| &point.series)
            .any(|series| series.summary.contains_key(&figure.name))
    }
}

impl Point {
    pub fn of_target(&self, target: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.target == target)
    }
}

impl Machine {
    pub fn detect() -> Self {
        let mut system = System::new();
        system.refresh_cpu_list(CpuRefreshKind::nothing());
        let unknown = || "unknown".to_owned();
        Self {
            cpu_model: system
                .cpus()
                .first()
                .map(|cpu| cpu.brand().trim().to_owned())
                .filter(|brand| !brand.is_empty())
                .unwrap_or_else(unknown),
            cpu_count: system.cpus().len(),
            os: System::long_os_version().unwrap_or_else(unknown),
            kernel: System::kernel_version().unwrap_or_else(unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_example_is_a_report() {
        let documentation = include_str!("../../formats.md");
        let (_, example) = documentation.split_once("```json").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let report: Report = serde_json::from_str(example).unwrap();
        assert_eq!(report.schema_version, SCHEMA_VERSION);
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            serde_json::from_str::<serde_json::Value>(example).unwrap(),
            "it has more fields, or fewer"
        );
    }
}
