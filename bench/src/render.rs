//! A report, as people and programs read it.

mod export;
mod table;

pub use self::export::{write_csv, write_json, write_tsv};
pub use self::table::table;
use crate::results::Report;

/// Whether a column has to tell the workloads apart.
fn has_workloads(report: &Report) -> bool {
    report.points.iter().any(|point| !point.workload.is_empty())
}
