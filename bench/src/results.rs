//! What a benchmark reports: one form for all of them, in memory and as JSON.
//!
//! `docs/results.md` describes the JSON for those who read it with another program.

use std::collections::BTreeMap;

pub use pinpoint_servers::server::ServerRecord as TargetRecord;
use serde::{Deserialize, Serialize};

/// Goes up when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// All that one invocation of one subcommand has measured, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema_version: u32,
    /// The subcommand.
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
    pub parameters: serde_json::Value,
    /// The first one is the baseline.
    pub targets: Vec<TargetRecord>,
    pub axis: Axis,
    /// The first one is the figure of the benchmark: that of the chart, of the
    /// ratio in the HTML's headline, and of `--assert NAME.ratio@X`.
    pub figures: Vec<Figure>,
    pub points: Vec<Point>,
    /// False if the measurement was stopped before its end.
    pub complete: bool,
    /// What makes the figures doubtful: sentences.
    pub warnings: Vec<String>,
}

/// What varies from point to point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// `idle_listeners`
    pub name: String,
    /// `idle listeners`
    pub label: String,
    pub scale: Scale,
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
    pub better: Better,
    pub scale: Scale,
    /// Is it drawn? Every figure is in the tables and files.
    pub chart: bool,
    /// A share (0.95) or multiple, to be shown with two decimals if it is less
    /// than 10; else three significant digits are enough.
    pub is_ratio: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Higher,
    Lower,
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
}

pub type Values = BTreeMap<String, f64>;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// One figure as a multiple of another one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub of_medians: f64,
    /// The least and the greatest within one run: runs are paired.
    pub min: f64,
    pub max: f64,
}

/// The machine that the figures are from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu_model: String,
    pub cpu_count: usize,
    pub os: String,
    pub kernel: String,
}

impl Figure {
    /// A value of this figure, for people.
    pub fn format(&self, value: f64) -> String {
        if self.is_ratio {
            return format_ratio(value);
        }
        three_digits(value)
    }
}

/// Without decimals beyond the third significant digit.
pub fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.0 => 0,
        // As many zeros after the point as there are, and three digits.
        small => (2 - small.log10().floor() as i32).clamp(3, 9) as usize,
    };
    format!("{value:.digits$}")
}

/// A share or a multiple, for people.
pub fn format_ratio(ratio: f64) -> String {
    let digits = match ratio.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{ratio:.digits$}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The targets of all examples.
    pub fn targets() -> Vec<TargetRecord> {
        let target = |name: &str, preload: &[&str]| TargetRecord {
            name: name.to_owned(),
            pg_config: Some("pg_config".to_owned()),
            url: None,
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

    /// A report with figures that are easy to tell apart.
    pub fn example() -> Report {
        let run = |rate: f64, max: f64| {
            Values::from([
                ("round_trips_per_sec".to_owned(), rate),
                ("max_latency_usec".to_owned(), max),
                ("p99_latency_usec".to_owned(), 350.0),
            ])
        };
        let point = |x, stock: [f64; 3], pinpoint: [f64; 3]| {
            let runs = |rates: [f64; 3], base| rates.map(|rate| run(rate, base + rate)).to_vec();
            let stock = Series::of("stock".to_owned(), runs(stock, 1000.0), None);
            let pinpoint = Series::of("pinpoint".to_owned(), runs(pinpoint, 2000.0), Some(&stock));
            Point {
                workload: String::new(),
                x,
                series: vec![stock, pinpoint],
            }
        };
        let figure = |name: &str, label: &str, better, chart| Figure {
            name: name.to_owned(),
            label: label.to_owned(),
            better,
            scale: Scale::Logarithmic,
            chart,
            is_ratio: false,
        };
        Report {
            schema_version: SCHEMA_VERSION,
            benchmark: "pingpong".to_owned(),
            question: "How many?".to_owned(),
            method: vec!["As it says.".to_owned()],
            program_version: "0.1.0".to_owned(),
            command_line: vec!["pinpoint-bench".to_owned(), "pingpong".to_owned()],
            date: "2026-01-02T03:04:05Z".to_owned(),
            machine: Machine {
                cpu_model: "Example CPU".to_owned(),
                cpu_count: 2,
                os: "Linux (Example 1)".to_owned(),
                kernel: "6.1".to_owned(),
            },
            parameters: serde_json::json!({ "idle": [0, 1000], "runs": 3 }),
            targets: targets(),
            axis: Axis {
                name: "idle_listeners".to_owned(),
                label: "idle listeners".to_owned(),
                scale: Scale::Logarithmic,
            },
            figures: vec![
                figure(
                    "round_trips_per_sec",
                    "round trips per second",
                    Better::Higher,
                    true,
                ),
                figure(
                    "max_latency_usec",
                    "longest round trip (µs)",
                    Better::Lower,
                    true,
                ),
                figure(
                    "p99_latency_usec",
                    "99th percentile of the round trips (µs)",
                    Better::Lower,
                    false,
                ),
            ],
            points: vec![
                point(0, [6000.0, 6172.5, 6350.0], [6250.0, 6050.0, 6500.0]),
                point(1000, [17.5, 16.5, 17.0], [6000.0, 5500.0, 3500.0]),
            ],
            complete: true,
            warnings: Vec::new(),
        }
    }

    fn figure(is_ratio: bool) -> Figure {
        Figure {
            name: "x".to_owned(),
            label: "x".to_owned(),
            better: Better::Higher,
            scale: Scale::Linear,
            chart: true,
            is_ratio,
        }
    }

    #[test]
    fn the_documented_example_is_a_report() {
        let documentation = include_str!("../../docs/results.md");
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

    #[test]
    fn three_digits_are_enough_for_people() {
        for (value, expected) in [
            (0.0, "0"),
            (0.001234, "0.00123"),
            (0.5, "0.500"),
            (1.0, "1.00"),
            (17.25, "17.2"),
            (123.4, "123"),
            (54_321.6, "54322"),
        ] {
            assert_eq!(figure(false).format(value), expected, "{value}");
        }
    }

    #[test]
    fn ratios_have_two_decimals_if_they_are_small() {
        for (ratio, expected) in [
            (0.0049, "0.00"),
            (0.9549, "0.95"),
            (12.34, "12.3"),
            (323.5, "324"),
        ] {
            assert_eq!(figure(true).format(ratio), expected);
        }
    }
}
