//! What was measured, and everything that shows it.
//!
//! ```text
//! folder ──► assert, page ──► chart, words ──► verdict ──► results
//! output ──► table, export ──────┘                           ▲
//!                                noise, stats, lookup ───────┘
//! ```

pub mod assert;
pub mod chart;
pub mod export;
pub mod folder;
pub mod lookup;
pub mod machine;
pub mod noise;
pub mod number;
pub mod output;
pub mod page;
pub mod results;
#[cfg(test)]
pub mod samples;
pub mod stats;
pub mod table;
pub mod verdict;
pub mod words;
