//! What every benchmark is; `runner.rs` takes the measurements.

use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use serde::Serializer;

use crate::results::{Axis, Figure, Point, Values};
use crate::server::Server;
use crate::target::Target;

/// A place on the axis that is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointId {
    /// Empty where the benchmark has one workload only.
    pub workload: String,
    pub x: u64,
}

impl PointId {
    /// Of a benchmark with several workloads.
    pub fn of_workload(workload: impl fmt::Display, x: impl Into<u64>) -> Self {
        Self {
            workload: workload.to_string(),
            x: x.into(),
        }
    }

    /// Of a benchmark with one workload.
    pub fn at(x: impl Into<u64>) -> Self {
        Self::of_workload("", x)
    }
}

/// A subcommand that measures, with its parameters.
///
/// The runner calls `set_up` once for each server; then, for each point,
/// `prepare` for each server; then, run by run and server by server in turn,
/// `measure`. Any of them may be dropped in the middle, when a signal arrives.
pub trait Benchmark {
    /// What is kept of a server between its runs: sessions that stay connected, ...
    type State;

    /// The subcommand.
    fn name(&self) -> &'static str;

    /// The question it answers, one sentence.
    fn question(&self) -> &'static str;

    /// How it measures: paragraphs of plain text.
    fn method(&self) -> Vec<String>;

    fn axis(&self) -> Axis;

    /// All figures that `measure` returns; the main one first.
    fn figures(&self) -> Vec<Figure>;

    /// In the order in which they are measured.
    fn points(&self) -> Vec<PointId>;

    /// At each point, of each server.
    fn runs(&self) -> NonZeroU32;

    /// About how long one run takes, for the time that is left to be told.
    fn run_time(&self) -> Duration;

    /// Sessions at a time, to one server.
    fn sessions(&self) -> u32;

    /// For the record.
    fn parameters(&self) -> serde_json::Value;

    /// What is measured if the command line does not say. The first one is the baseline.
    fn default_targets(&self, pg_config: &Path) -> Vec<Target> {
        vec![Target::stock(pg_config), Target::pinpoint(pg_config)]
    }

    /// Gives a target the settings that the benchmark needs; its own come after them.
    fn configure(&self, target: Target) -> anyhow::Result<Target> {
        Ok(target)
    }

    /// Programs of PostgreSQL that it starts ("pgbench"), and gets by `Server::program`.
    /// They are looked for before anything starts.
    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Why a running server (`--url`) cannot be measured, if it cannot, as the end of
    /// the sentence "commit cannot measure a running server, as ...".
    fn needs_own_cluster(&self) -> Option<&'static str> {
        None
    }

    /// What makes its figures doubtful, beside runs that lie far apart: sentences.
    fn warnings(&self, _points: &[Point]) -> Vec<String> {
        Vec::new()
    }

    /// Makes what all runs need: tables, functions.
    async fn set_up(&self, server: &Server) -> anyhow::Result<Self::State>;

    /// Makes what all runs at this point need: more sessions.
    async fn prepare(
        &self,
        _server: &Server,
        _state: &mut Self::State,
        _point: &PointId,
    ) -> anyhow::Result<()> {
        Ok(())
    }

    /// One run, its own warm-up included. `run` counts from 1.
    async fn measure(
        &self,
        server: &Server,
        state: &mut Self::State,
        point: &PointId,
        run: u32,
    ) -> anyhow::Result<Values>;
}

/// How durations are recorded among the parameters.
pub fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
