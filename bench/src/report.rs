//! What was measured, and everything that shows it.
//!
//! ```text
//! results_folder ──► page ──┬──► chart
//!   │                       └──► table ──► verdict ──► results ──► interval
//!   └──► markdown ──► chart, slower ──► source ──► table ▲
//! output ──► text ──► table                              │
//!   └──────► json                       warnings, stats ─┘
//! ```

pub mod chart;
pub mod comment;
pub mod interval;
pub mod json;
pub mod markdown;
pub mod number_format;
pub mod operations;
pub mod output;
pub mod page;
pub mod repeated;
pub mod results;
pub mod results_folder;
#[cfg(test)]
pub mod sample_reports;
pub mod slower;
pub mod source;
pub mod stats;
pub mod table;
pub mod text;
pub mod verdict;
pub mod warnings;
