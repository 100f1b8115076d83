//! Where the results go.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::assert::Condition;

/// Where the results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Form of the results on standard output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Also write every single run to FILE, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Also write everything that was measured, and on what, to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    #[command(flatten)]
    pub conditions: ConditionArgs,
}

/// What the results have to be like.
#[derive(Debug, Args)]
pub struct ConditionArgs {
    /// Exit with 1 unless the results meet this, such as 'pingpong.ratio@1000>=100' (repeatable)
    ///
    /// BENCHMARK[/WORKLOAD].WHAT[:TARGET]@X, one of >=, <=, > and <, and a
    /// number. WHAT is FIGURE.STATISTIC, a STATISTIC of the benchmark's main
    /// figure, or the median of a FIGURE. STATISTIC is one of ratio (of the
    /// medians, to the first target), median, min and max. Without TARGET it is
    /// that of the second one. X is the place: a number of idle listeners, of
    /// writers, ...
    #[arg(long = "assert", value_name = "CONDITION")]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// Tab-separated values, for programs
    Tsv,
}
