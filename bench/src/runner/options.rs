//! Options that the benchmarks share: how long, how often, and where the results go.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use pinpoint_servers::arguments::ServerArgs;
use pinpoint_servers::options::{as_seconds, duration, positive_duration};
use serde::Serialize;

use crate::report::output::OutputArgs;

/// More transactions or round trips take longer than anybody waits.
const MOST: i64 = 1_000_000_000;

/// How often, and for how long at most.
#[derive(Debug, Clone, Args, Serialize)]
pub struct RunArgs {
    /// Runs at each point, for each target; a verdict takes six
    #[arg(
        long,
        value_name = "N",
        default_value = "6",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    pub runs: u32,

    /// Give up when anything takes longer that no server should take so long for
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = positive_duration)]
    #[serde(serialize_with = "as_seconds")]
    pub timeout: Duration,
}

/// How long one run is.
#[derive(Debug, Clone, Args, Serialize)]
pub struct TimeArgs {
    /// Make every run this long, in seconds or as 500ms
    #[arg(long, value_name = "TIME", default_value = "3", value_parser = positive_duration)]
    #[serde(serialize_with = "as_seconds")]
    pub duration: Duration,

    /// Do the same this long before each run, without measuring
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration)]
    #[serde(serialize_with = "as_seconds")]
    pub warmup: Duration,
}

/// Instead of a time, a number.
pub fn count(text: &str) -> Result<NonZeroU32, String> {
    let count = text.parse::<NonZeroU32>().map_err(|e| e.to_string())?;
    if i64::from(count.get()) > MOST {
        return Err(format!("{count} is not in 1..={MOST}"));
    }
    Ok(count)
}

/// How often, on which servers, and where the results go.
#[derive(Debug, Args, Serialize)]
pub struct CommonArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub runs: RunArgs,

    #[command(flatten)]
    #[serde(skip)]
    pub servers: ServerArgs,

    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}
