//! Takes the measurements of a benchmark, whichever it is.
//!
//! ```text
//! measure ──► order
//!   └───────► options, progress, interrupt, awake, stolen
//! ```

pub mod awake;
pub mod interrupt;
pub mod measure;
pub mod options;
pub mod order;
pub mod progress;
pub mod stolen;
