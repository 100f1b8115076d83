//! Reports to try things with. What is measured in them is close to what
//! `bench/results.md` shows.

use super::results::{Report, SCHEMA_VERSION, Series};

pub fn all() -> Vec<Report> {
    vec![pingpong(), commit(), decode(), drift()]
}

/// Seven runs, of which some lie far apart.
pub fn pingpong() -> Report {
    read(include_str!("sample_reports/pingpong.json"))
}

/// Six runs, and three figures that are drawn.
pub fn commit() -> Report {
    read(include_str!("sample_reports/commit.json"))
}

/// Two workloads, a negative difference, a baseline of which there is no ratio;
/// stopped before its end.
pub fn decode() -> Report {
    read(include_str!("sample_reports/decode.json"))
}

/// A server against itself and a third one, in two runs.
pub fn drift() -> Report {
    read(include_str!("sample_reports/drift.json"))
}

/// One target and one run.
pub fn alone() -> Report {
    let mut report = pingpong();
    report.targets.truncate(1);
    for point in &mut report.points {
        point.series.truncate(1);
        point.series[0].runs.truncate(1);
    }
    summarised(report)
}

/// The files have the runs; the rest is computed.
fn read(json: &str) -> Report {
    let report: Report = serde_json::from_str(json).unwrap();
    assert_eq!(report.schema_version, SCHEMA_VERSION);
    summarised(report)
}

fn summarised(mut report: Report) -> Report {
    for point in &mut report.points {
        let mut series: Vec<Series> = Vec::new();
        for Series { target, runs, .. } in point.series.drain(..) {
            let next = Series::of(target, runs, series.first());
            series.push(next);
        }
        point.series = series;
    }
    report
}
