//! A benchmark from its command line to its results. What has been measured when
//! a signal arrives or something fails is reported nevertheless.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Error, bail};
use futures_util::future::LocalBoxFuture;
use pinpoint_servers::arguments::{ServerArgs, Targets};
use pinpoint_servers::limits;
use pinpoint_servers::server::{Server, ServerRecord, Servers};

use super::benchmark::{Benchmark, Description, PointId};
use super::interrupt::{Interrupt, Interrupts};
use super::order::{self, Contestant, Recording, Step};
use super::progress::{Progress, in_words};
use crate::report::noise;
use crate::report::number;
use crate::report::output::Outputs;
use crate::report::results::{Machine, Report, SCHEMA_VERSION, Values};

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

/// Why something cannot be measured, and what to do about it.
#[derive(Debug)]
pub struct Refusal {
    pub reason: String,
    pub remedy: &'static str,
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
    /// What it is to measure, and about how long that takes: a sentence and a time.
    fn plan(&self, servers: Option<&ServerArgs>) -> anyhow::Result<(String, Duration)>;

    /// Why these servers cannot be measured, if it is for what they are.
    fn refusal(&self, servers: Option<&ServerArgs>) -> anyhow::Result<Option<Refusal>>;

    /// Measures, and writes the results. An error means that there are none. `servers`
    /// are those to measure, if they are not those of its own command line.
    fn run<'a>(
        &'a self,
        servers: Option<&'a ServerArgs>,
        context: Context<'a>,
    ) -> LocalBoxFuture<'a, anyhow::Result<End>>;
}

impl<B: Benchmark> Job for B {
    fn plan(&self, servers: Option<&ServerArgs>) -> anyhow::Result<(String, Duration)> {
        let description = self.describe()?;
        let count = targets(self, servers)?.count() as u32;
        let points = description.points.len() as u32;
        let runs = self.common().runs.runs;
        let time = (description.run_time * points * runs + CLUSTER_TIME) * count;
        let plural = |count: u32, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{} {what}s", number::whole(count.into())),
        };
        let text = format!(
            "{}: {} on {}, {} each: about {}",
            description.name,
            plural(points, "measurement"),
            plural(count, "server"),
            plural(runs, "run"),
            in_words(time)
        );
        Ok((text, time))
    }

    fn refusal(&self, servers: Option<&ServerArgs>) -> anyhow::Result<Option<Refusal>> {
        let Description {
            name,
            needs_own_cluster,
            ..
        } = self.describe()?;
        Ok(match targets(self, servers)? {
            Targets::Running(_) => needs_own_cluster.map(|reason| Refusal {
                reason: format!("{name} cannot measure a running server, as {reason}"),
                remedy: "leave out --url",
            }),
            Targets::Own(targets) => targets.iter().find_map(|target| {
                let (reason, remedy) = self.objection(target)?;
                let target = &target.name;
                Some(Refusal {
                    reason: format!("{name} cannot measure the target \"{target}\", as {reason}"),
                    remedy,
                })
            }),
        })
    }

    fn run<'a>(
        &'a self,
        servers: Option<&'a ServerArgs>,
        context: Context<'a>,
    ) -> LocalBoxFuture<'a, anyhow::Result<End>> {
        Box::pin(measure(self, servers, context))
    }
}

fn targets(benchmark: &impl Benchmark, servers: Option<&ServerArgs>) -> anyhow::Result<Targets> {
    let servers = servers.unwrap_or(&benchmark.common().servers);
    servers.targets_or(|pg_config| benchmark.default_targets(pg_config))
}

async fn measure<B: Benchmark>(
    benchmark: &B,
    servers: Option<&ServerArgs>,
    context: Context<'_>,
) -> anyhow::Result<End> {
    let description = benchmark.describe()?;
    if let Some(Refusal { reason, remedy }) = benchmark.refusal(servers)? {
        bail!("{reason}: {remedy}");
    }
    let mut targets = targets(benchmark, servers)?;
    if let Targets::Own(targets) = &mut targets {
        for target in targets {
            let settings = description.settings.iter().cloned();
            target.settings.splice(0..0, settings);
        }
    }
    limits::allow_connections(u64::from(description.sessions) * targets.count() as u64)?;
    let outputs = Outputs::open(&benchmark.common().output)?;

    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let temp_dir = servers.unwrap_or(&benchmark.common().servers).temp_dir();
    let mut started = Servers::default();
    let mut records = Vec::new();
    let mut recording = Recording::default();
    let progress = context.progress;
    let work = async {
        progress.announce(format!("{}: starting the servers", description.name));
        let (sessions, programs) = (description.sessions, description.programs);
        started
            .start(targets, &temp_dir, sessions, programs)
            .await?;
        record(
            benchmark,
            &description,
            &mut started,
            &mut records,
            &mut recording,
            progress,
        )
        .await
    };
    let end = tokio::select! {
        biased;
        interrupt = context.interrupts.next() => End::Interrupted(interrupt),
        result = work => match result {
            Ok(()) => End::Complete,
            Err(error) => End::Failed(error),
        },
    };
    started.stop().await;

    let names: Vec<String> = records
        .iter()
        .map(|r: &ServerRecord| r.name.clone())
        .collect();
    let points = recording.finish(&names);
    if points.is_empty() {
        return match end {
            End::Failed(error) => Err(error),
            end => Ok(end),
        };
    }
    let complete = matches!(end, End::Complete);
    let mut warnings = Vec::new();
    if !complete {
        warnings.push(
            "the measurement was stopped before its end: only what was finished is reported"
                .to_owned(),
        );
    }
    let Description { axis, figures, .. } = description;
    warnings.extend(noise::warnings(&axis, &figures, &points));
    warnings.extend(benchmark.warnings(&points));
    let report = Report {
        schema_version: SCHEMA_VERSION,
        benchmark: description.name.to_owned(),
        question: description.question.to_owned(),
        method: description.method,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: context.command_line,
        date,
        machine: Machine::detect(),
        parameters: serde_json::json!(benchmark),
        targets: records,
        axis,
        figures,
        points,
        complete,
        warnings,
    };
    match (progress.suspend(|| outputs.publish(&report)), end) {
        (Ok(()), end) => Ok(end),
        (Err(error), End::Complete) => Err(error),
        // Two things went wrong. The later one would hide the earlier one.
        (Err(error), end) => {
            eprintln!("error: {error:#}");
            Ok(end)
        }
    }
}

/// A server and what a benchmark keeps of it.
struct Entrant<'a, B: Benchmark> {
    benchmark: &'a B,
    server: &'a mut Server,
    state: B::State,
    /// Of the axis.
    label: &'a str,
}

impl<B: Benchmark> Contestant for Entrant<'_, B> {
    fn name(&self) -> &str {
        self.server.name()
    }

    async fn prepare(&mut self, point: &PointId) -> anyhow::Result<()> {
        let prepared = self.benchmark.prepare(self.server, &mut self.state, point);
        prepared.await.with_context(|| with(point, self.label))
    }

    async fn measure(&mut self, point: &PointId, run: u32) -> anyhow::Result<Values> {
        let measured = self
            .benchmark
            .measure(self.server, &mut self.state, point, run);
        measured.await.with_context(|| with(point, self.label))
    }

    async fn explain(&mut self, error: Error) -> Error {
        self.server.explain(error).await
    }
}

fn with(point: &PointId, label: &str) -> String {
    format!("with {}", place(point, label))
}

/// A point in words: `16 writers`.
fn place(PointId { workload, x }: &PointId, label: &str) -> String {
    if workload.is_empty() {
        format!("{x} {label}")
    } else {
        format!("{x} {label}, {workload}")
    }
}

/// Sets everything up, and makes all runs.
async fn record<B: Benchmark>(
    benchmark: &B,
    description: &Description,
    servers: &mut Servers,
    records: &mut Vec<ServerRecord>,
    recording: &mut Recording,
    progress: &Progress,
) -> anyhow::Result<()> {
    let name = description.name;
    let label = description.axis.label.as_str();
    let mut entrants = Vec::new();
    for server in servers.iter_mut() {
        records.push(server.describe().await?);
        progress.announce(format!("{name}: preparing {}", server.name()));
        match benchmark.set_up(server).await {
            Ok(state) => entrants.push(Entrant {
                benchmark,
                server,
                state,
                label,
            }),
            Err(error) => return Err(server.explain(error).await),
        }
    }
    settle(&mut entrants).await?;
    progress.advance(CLUSTER_TIME * entrants.len() as u32);
    let runs = benchmark.common().runs.runs;
    let tell = |step: Step| match step {
        Step::Preparing(server, point) => {
            progress.announce(format!(
                "{name}: preparing {server}, {}",
                place(point, label)
            ));
        }
        Step::Measuring(server, point, run) => progress.announce(format!(
            "{name}: {server}, {}, run {run} of {runs}",
            place(point, label)
        )),
        Step::Measured => progress.advance(description.run_time),
    };
    order::measure(&mut entrants, &description.points, runs, recording, tell).await
}

/// New clusters are slow for a while, since what initdb has written is still on
/// its way to the disk. That must not be part of what is measured first.
async fn settle<B: Benchmark>(entrants: &mut [Entrant<'_, B>]) -> anyhow::Result<()> {
    for entrant in entrants {
        if let Err(error) = entrant.server.checkpoint().await {
            return Err(entrant.server.explain(error.into()).await);
        }
    }
    tokio::task::spawn_blocking(nix::unistd::sync).await?;
    Ok(())
}
