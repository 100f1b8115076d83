//! Options that all benchmarks have: how often, on which servers, and where the results go.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pinpoint_servers::arguments::ServerArgs;
use pinpoint_servers::options::{as_seconds, number, positive_duration};
use serde::Serialize;

#[derive(Debug, Args, Serialize)]
pub struct CommonArgs {
    /// Runs per point and server; an interval needs at least six
    #[arg(long, value_name = "N", default_value = "12", value_parser = number(1..=1_000_000))]
    pub runs: u32,

    /// Fail if a step takes longer, such as connecting or the arrival of a notification
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = positive_duration)]
    #[serde(serialize_with = "as_seconds")]
    pub timeout: Duration,

    #[command(flatten)]
    #[serde(skip)]
    pub servers: ServerArgs,

    /// Also write the report to FILE, as JSON: runs, settings, servers and machine
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}
