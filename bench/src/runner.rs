//! Takes the measurements of a benchmark, whichever it is.
//!
//! ```text
//! job ──► order ──► benchmark
//!   └───► options, progress, interrupt
//! ```

pub mod benchmark;
pub mod interrupt;
pub mod job;
pub mod options;
pub mod order;
pub mod progress;
