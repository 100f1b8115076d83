//! What was measured, and everything that shows it.
//!
//! ```text
//! results_folder ──► page ──► chart, sentences ──► verdict ──► results
//! output ──► table, export ─────┘                               ▲
//! results_folder ──► markdown ──► chart, verdict                │
//!                           warnings, stats ────────────────────┘
//! ```

pub mod chart;
pub mod export;
pub mod markdown;
pub mod number_format;
pub mod output;
pub mod page;
pub mod results;
pub mod results_folder;
#[cfg(test)]
pub mod sample_reports;
pub mod sentences;
pub mod stats;
pub mod table;
pub mod verdict;
pub mod warnings;
