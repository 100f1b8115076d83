//! What every benchmark is.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use pinpoint_servers::server::Server;
use pinpoint_servers::target::{Setting, Target};
use serde::Serialize;

use super::options::CommonArgs;
use crate::report::results::{Axis, Figure, Point, Values};

/// A place on the axis that is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointId {
    /// Empty where the benchmark has one workload only.
    pub workload: String,
    pub x: u32,
}

impl PointId {
    /// Of a benchmark with several workloads.
    pub fn of_workload(workload: impl fmt::Display, x: u32) -> Self {
        Self {
            workload: workload.to_string(),
            x,
        }
    }

    /// Of a benchmark with one workload.
    pub fn at(x: u32) -> Self {
        Self::of_workload("", x)
    }
}

/// All that there is to know of a benchmark before it begins.
#[derive(Debug, Clone)]
pub struct Description {
    pub name: &'static str,
    /// The question it answers, one sentence.
    pub question: &'static str,
    /// How it measures: paragraphs of plain text.
    pub method: Vec<String>,
    pub axis: Axis,
    /// All figures that `measure` returns; the main one first.
    pub figures: Vec<Figure>,
    /// In the order in which they are measured.
    pub points: Vec<PointId>,
    /// About how long one run takes.
    pub run_time: Duration,
    /// Sessions at a time, to one server.
    pub sessions: u32,
    /// Programs of PostgreSQL that it starts ("pgbench"), and gets by `Server::program`.
    /// They are looked for before anything starts.
    pub programs: &'static [&'static str],
    /// Settings that it needs; those of a target come after them.
    pub settings: Vec<Setting>,
    /// Why a running server (`--url`) cannot be measured, if it cannot, as the end of
    /// the sentence "commit cannot measure a running server, as ...".
    pub needs_own_cluster: Option<&'static str>,
}

/// A subcommand that measures, with its parameters, which are those of its command line,
/// and are recorded.
///
/// `set_up` is called once for each server; then, for each point, `prepare` for
/// each server; then, run by run and server by server in turn, `measure`. Any of
/// them may be dropped in the middle, when a signal arrives.
pub trait Benchmark: Serialize {
    /// What is kept of a server between its runs: sessions that stay connected, ...
    type State;

    fn describe(&self) -> anyhow::Result<Description>;

    fn common(&self) -> &CommonArgs;

    /// What is measured if the command line does not say. The first one is the baseline.
    fn default_targets(&self, pg_config: &Path) -> Vec<Target> {
        vec![Target::stock(pg_config), Target::pinpoint(pg_config)]
    }

    /// Why a target cannot be measured, if it cannot, as the end of the sentence
    /// "standby cannot measure the target "stock", as ...", and what to do about it.
    fn objection(&self, _target: &Target) -> Option<(&'static str, &'static str)> {
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
