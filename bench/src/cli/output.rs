//! Where the results go.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// Tab-separated values, for programs
    Tsv,
}
