//! Takes the measurements of a benchmark.
//!
//! Within a run the servers take turns: whatever disturbs the machine for a
//! while disturbs all that is compared. What has been measured when a signal
//! arrives or something fails is reported nevertheless.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use futures_util::future::LocalBoxFuture;

use crate::assert::{self, Scope};
use crate::benchmark::{Benchmark, PointId};
use crate::cli::{CommonArgs, ServerArgs, Targets};
use crate::interrupt::{Interrupt, Interrupts};
use crate::limits;
use crate::noise;
use crate::output::Outputs;
use crate::progress::Progress;
use crate::results::{Machine, Point, Report, SCHEMA_VERSION, Series, TargetRecord, Values};
use crate::server::Servers;

/// About how long it takes to make a cluster, to start its server and to stop it.
const CLUSTER_TIME: Duration = Duration::from_secs(4);

/// How a measurement has ended.
#[derive(Debug)]
pub enum End {
    Complete,
    /// To its end, but the results do not meet a condition.
    Unmet,
    Interrupted(Interrupt),
    Failed(anyhow::Error),
}

/// What goes on around a measurement.
pub struct Context<'a> {
    /// For the record.
    pub command_line: Vec<String>,
    pub progress: &'a Progress,
    pub interrupts: &'a mut Interrupts,
}

/// A benchmark, whichever it is, with all that the command line says.
pub trait Job {
    /// About how long it takes.
    fn time(&self) -> Duration;

    /// Replaces what the command line says of the servers.
    fn set_servers(&mut self, servers: ServerArgs);

    /// Why these servers cannot be measured, if it is for what they are.
    fn refusal(&self) -> Option<String>;

    /// What is wrong with the servers, or the conditions on the results, as far as
    /// it can be known before anything starts.
    fn check(&self) -> anyhow::Result<()>;

    /// Measures, and writes the results. An error means that there are none.
    fn run<'a>(&'a self, context: Context<'a>) -> LocalBoxFuture<'a, anyhow::Result<End>>;
}

/// The job of a benchmark.
pub struct JobOf<B> {
    pub benchmark: B,
    pub common: CommonArgs,
}

impl<B: Benchmark> JobOf<B> {
    /// What to measure, with the settings that the benchmark needs.
    fn targets(&self) -> anyhow::Result<Targets> {
        let benchmark = &self.benchmark;
        Ok(match self.all_targets()? {
            Targets::Own(targets) => Targets::Own(
                targets
                    .into_iter()
                    .map(|target| {
                        let name = target.name.clone();
                        let configured = benchmark.configure(target);
                        configured.with_context(|| format!("target \"{name}\""))
                    })
                    .collect::<Result<_, _>>()?,
            ),
            Targets::Running(targets) => {
                if let Some(reason) = self.refusal() {
                    bail!("{reason}: leave out --url");
                }
                Targets::Running(targets)
            }
        })
    }

    fn all_targets(&self) -> anyhow::Result<Targets> {
        let default = |pg_config: &_| self.benchmark.default_targets(pg_config);
        self.common.servers.targets_or(default)
    }

    /// The same. A condition that cannot be met, as it is on something that is not
    /// measured, is an error.
    fn checked_targets(&self) -> anyhow::Result<Targets> {
        let targets = self.targets()?;
        let benchmark = &self.benchmark;
        let (figures, points) = (benchmark.figures(), benchmark.points());
        let names = names(&targets);
        let scope = Scope {
            benchmark: benchmark.name(),
            figures: &figures,
            points: &points,
            targets: &names,
        };
        for condition in &self.common.output.conditions.conditions {
            condition.check(scope)?;
        }
        Ok(targets)
    }

    async fn measure(&self, context: Context<'_>) -> anyhow::Result<End> {
        let benchmark = &self.benchmark;
        let targets = self.checked_targets()?;
        limits::allow_connections(u64::from(benchmark.sessions()) * targets.count() as u64)?;
        let outputs = Outputs::open(&self.common.output)?;

        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let mut recording = Recording::default();
        let mut servers = Servers::default();
        let end = tokio::select! {
            biased;
            interrupt = context.interrupts.next() => End::Interrupted(interrupt),
            result = self.record(targets, &mut servers, &mut recording, context.progress) =>
                match result {
                    Ok(()) => End::Complete,
                    Err(error) => End::Failed(error),
                },
        };
        servers.stop().await;

        let (targets, points) = recording.finish();
        if points.is_empty() {
            return match end {
                End::Failed(error) => Err(error),
                end => Ok(end),
            };
        }
        let figures = benchmark.figures();
        let mut warnings = Vec::new();
        if !matches!(end, End::Complete) {
            warnings.push(
                "the measurement was stopped before its end: only what was finished is reported"
                    .to_owned(),
            );
        }
        warnings.extend(noise::warning(&benchmark.axis(), &figures, &points));
        warnings.extend(benchmark.warnings(&points));
        let report = Report {
            schema_version: SCHEMA_VERSION,
            benchmark: benchmark.name().to_owned(),
            question: benchmark.question().to_owned(),
            method: benchmark.method(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            command_line: context.command_line,
            date,
            machine: Machine::detect(),
            parameters: benchmark.parameters(),
            targets,
            axis: benchmark.axis(),
            figures,
            points,
            complete: matches!(end, End::Complete),
            warnings,
        };
        let published = context.progress.suspend(|| outputs.publish(&report));
        let conditions = &self.common.output.conditions.conditions;
        let met = context
            .progress
            .suspend(|| assert::judge(conditions, &report));
        match (published, end) {
            (Ok(()), End::Complete) if !met => Ok(End::Unmet),
            (Ok(()), end) => Ok(end),
            (Err(error), End::Complete) => Err(error),
            // Two things went wrong. The later one would hide the earlier one.
            (Err(error), end) => {
                eprintln!("error: {error:#}");
                Ok(end)
            }
        }
    }

    /// Starts the servers and makes all runs. What is recorded stays if this
    /// fails or is dropped.
    async fn record(
        &self,
        targets: Targets,
        servers: &mut Servers,
        recording: &mut Recording,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let benchmark = &self.benchmark;
        let name = benchmark.name();
        let count = targets.count() as u32;
        progress.announce(format!("{name}: starting the servers"));
        let temp_dir = self.common.servers.temp_dir();
        servers
            .start(
                targets,
                &temp_dir,
                benchmark.sessions(),
                benchmark.programs(),
            )
            .await?;

        let mut states = Vec::new();
        for server in servers.iter_mut() {
            recording.targets.push(server.describe().await?);
            progress.announce(format!("{name}: preparing {}", server.name()));
            match benchmark.set_up(server).await {
                Ok(state) => states.push(state),
                Err(error) => return Err(server.explain(error).await),
            }
        }
        settle(servers).await?;
        progress.advance(CLUSTER_TIME * count);

        let axis = benchmark.axis();
        for point in benchmark.points() {
            let place = place(&point, &axis.label);
            recording.begin(point.clone());
            for (server, state) in servers.iter_mut().zip(&mut states) {
                progress.announce(format!("{name}: preparing {}, {place}", server.name()));
                if let Err(error) = benchmark.prepare(server, state, &point).await {
                    let error = error.context(format!("with {place}"));
                    return Err(server.explain(error).await);
                }
            }
            let runs = benchmark.runs();
            for run in 1..=runs.get() {
                for (position, (server, state)) in servers.iter_mut().zip(&mut states).enumerate() {
                    progress.announce(format!(
                        "{name}: {}, {place}, run {run} of {runs}",
                        server.name()
                    ));
                    match benchmark.measure(server, state, &point, run).await {
                        Ok(values) => recording.add(position, values),
                        Err(error) => {
                            let error = error.context(format!("with {place}"));
                            return Err(server.explain(error).await);
                        }
                    }
                    progress.advance(benchmark.run_time());
                }
            }
        }
        Ok(())
    }
}

impl<B: Benchmark> Job for JobOf<B> {
    fn time(&self) -> Duration {
        let benchmark = &self.benchmark;
        let targets = self.all_targets().map_or(0, |targets| targets.count());
        let runs = benchmark.points().len() as u32 * benchmark.runs().get();
        (benchmark.run_time() * runs + CLUSTER_TIME) * targets as u32
    }

    fn set_servers(&mut self, servers: ServerArgs) {
        self.common.servers = servers;
    }

    fn refusal(&self) -> Option<String> {
        let name = self.benchmark.name();
        match self.all_targets() {
            Ok(Targets::Own(_)) | Err(_) => None,
            Ok(Targets::Running(_)) => self
                .benchmark
                .needs_own_cluster()
                .map(|reason| format!("{name} cannot measure a running server, as {reason}")),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        self.checked_targets().map(drop)
    }

    fn run<'a>(&'a self, context: Context<'a>) -> LocalBoxFuture<'a, anyhow::Result<End>> {
        Box::pin(self.measure(context))
    }
}

/// New clusters are slow for a while, since what initdb has written is still on
/// its way to the disk. That must not be part of what is measured first.
async fn settle(servers: &mut Servers) -> anyhow::Result<()> {
    for server in servers.iter_mut() {
        if let Err(error) = server.checkpoint().await {
            return Err(server.explain(error.into()).await);
        }
    }
    tokio::task::spawn_blocking(nix::unistd::sync).await?;
    Ok(())
}

/// The names of all targets, the baseline first.
fn names(targets: &Targets) -> Vec<String> {
    match targets {
        Targets::Own(targets) => targets.iter().map(|target| target.name.clone()).collect(),
        Targets::Running(targets) => targets.iter().map(|target| target.name.clone()).collect(),
    }
}

/// A point in words: `16 writers`.
fn place(point: &PointId, axis: &str) -> String {
    let PointId { workload, x } = point;
    if workload.is_empty() {
        format!("{x} {axis}")
    } else {
        format!("{x} {axis}, {workload}")
    }
}

/// What has been measured so far.
#[derive(Debug, Default)]
struct Recording {
    targets: Vec<TargetRecord>,
    /// The runs of each target.
    points: Vec<(PointId, Vec<Vec<Values>>)>,
}

impl Recording {
    fn begin(&mut self, point: PointId) {
        let runs = vec![Vec::new(); self.targets.len()];
        self.points.push((point, runs));
    }

    fn add(&mut self, target: usize, mut values: Values) {
        // JSON has no others.
        values.retain(|_, value| value.is_finite());
        if let Some((_, runs)) = self.points.last_mut() {
            runs[target].push(values);
        }
    }

    /// The points at which there is something.
    fn finish(self) -> (Vec<TargetRecord>, Vec<Point>) {
        let Self { targets, points } = self;
        let points = points
            .into_iter()
            .filter(|(_, runs)| runs.iter().any(|runs| !runs.is_empty()))
            .map(|(point, runs)| {
                let mut series: Vec<Series> = Vec::new();
                for (target, runs) in targets.iter().zip(runs) {
                    let next = Series::of(target.name.clone(), runs, series.first());
                    series.push(next);
                }
                Point {
                    workload: point.workload,
                    x: point.x,
                    series,
                }
            })
            .collect();
        (targets, points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::targets;

    fn values(tps: f64) -> Values {
        Values::from([("tps".to_owned(), tps)])
    }

    #[test]
    fn what_was_recorded_before_the_end_is_kept() {
        let mut recording = Recording {
            targets: targets(),
            points: Vec::new(),
        };
        recording.begin(PointId::at(1u32));
        recording.add(0, values(10.0));
        recording.add(1, values(30.0));
        recording.begin(PointId::at(2u32));
        recording.add(0, values(20.0));
        recording.begin(PointId::at(3u32));
        let (_, points) = recording.finish();

        let runs: Vec<_> = points
            .iter()
            .map(|point| {
                (
                    point.x,
                    [0, 1].map(|target| point.series[target].runs.len()),
                )
            })
            .collect();
        assert_eq!(runs, [(1, [1, 1]), (2, [1, 0])]);
        assert_eq!(points[0].series[1].ratio["tps"].of_medians, 3.0);
        assert!(points[1].series[1].summary.is_empty());
    }

    #[test]
    fn what_json_cannot_hold_is_left_out() {
        let mut recording = Recording {
            targets: targets(),
            points: Vec::new(),
        };
        recording.begin(PointId::at(1u32));
        recording.add(0, values(f64::NAN));
        let (_, points) = recording.finish();
        assert!(points[0].series[0].runs[0].is_empty());
    }

    #[test]
    fn places_in_words() {
        assert_eq!(place(&PointId::at(16u32), "writers"), "16 writers");
        let point = PointId::of_workload("listen_unique", 4u32);
        assert_eq!(place(&point, "connections"), "4 connections, listen_unique");
    }
}
