//! A benchmark from its description to its results. What has been measured when
//! a signal arrives or something fails is reported nevertheless.

use std::time::SystemTime;

use anyhow::{Context as _, bail};
use pinpoint_servers::arguments::Targets;
use pinpoint_servers::limits;
use pinpoint_servers::server::{Server, ServerRecord, Servers};
use serde_json::Value;

use super::awake::{self, Awake};
use super::interrupt::{Interrupt, Interrupts};
use super::options::CommonArgs;
use super::order::{Recording, turns};
use super::progress::Progress;
use super::stolen::{MOST_STOLEN, ProcessorTime, share_since, undisturbed};
use crate::report::number_format;
use crate::report::output::{self, OutputFile};
use crate::report::results::{Machine, Report, SCHEMA_VERSION};
use crate::report::warnings;
use crate::workload::{Benchmark, Measurement, PointId};

/// How a measurement has ended.
#[derive(Debug)]
pub enum End {
    Complete,
    /// To its end, but the results do not meet a condition.
    Unmet,
    Interrupted(Interrupt),
}

/// A benchmark that is to be made.
pub struct Job<'a> {
    pub benchmark: Benchmark,
    pub common: &'a CommonArgs,
    /// Its options, for the record.
    pub parameters: Value,
}

impl Job<'_> {
    fn targets(&self) -> anyhow::Result<Targets> {
        self.common
            .servers
            .targets_or(self.benchmark.default_targets)
    }

    /// What it is to measure, a sentence.
    fn plan(&self, servers: usize) -> String {
        let plural = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{} {what}s", number_format::whole(count as f64)),
        };
        format!(
            "{}: {} on {}, {} each",
            self.benchmark.name,
            plural(self.benchmark.points.len(), "measurement"),
            plural(servers, "server"),
            plural(self.common.runs as usize, "run"),
        )
    }

    /// Why these servers cannot be measured, if it is for what they are.
    pub fn refusal(&self) -> anyhow::Result<Option<String>> {
        let name = self.benchmark.name;
        Ok(match self.targets()? {
            Targets::Running(_) => self.benchmark.needs_own_cluster.map(|reason| {
                format!("{name} cannot measure a running server, as {reason}: leave out --url")
            }),
            Targets::Own(targets) => targets.iter().find_map(|target| {
                let reason = (self.benchmark.objection)(target)?;
                let target = &target.name;
                Some(format!(
                    "{name} cannot measure the target \"{target}\", as {reason}"
                ))
            }),
        })
    }

    /// Measures, and writes the results: after an error, too, if there are some. The command
    /// line is for the record.
    pub async fn run(
        self,
        command_line: Vec<String>,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<End> {
        if let Some(refusal) = self.refusal()? {
            bail!(refusal);
        }
        let mut targets = self.targets()?;
        eprintln!("{}", self.plan(targets.count()));
        let runs = self.benchmark.points.len() * targets.count() * self.common.runs as usize;
        let benchmark = self.benchmark;
        if let Targets::Own(targets) = &mut targets {
            for target in targets {
                let settings = benchmark.settings.iter().cloned();
                target.settings.splice(0..0, settings);
                target.wrapper = benchmark.wrapper;
            }
        }
        let sessions = benchmark.sessions();
        limits::allow_connections(u64::from(sessions) * targets.count() as u64)?;
        let json = self.common.json.as_deref();
        let file = json.map(OutputFile::open).transpose()?;

        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let awake = Awake::keep();
        let conditions = awake::conditions(awake.is_ok());
        let temp_dir = self.common.servers.temp_dir();
        let mut servers = Servers::default();
        let mut records = Vec::new();
        let mut recording = Recording::default();
        let progress = Progress::new(runs as u64);
        let work = async {
            progress.announce(format!("{}: starting the servers", benchmark.name));
            servers
                .start(targets, &temp_dir, sessions, &benchmark.programs)
                .await?;
            for server in servers.as_mut_slice() {
                records.push(server.describe().await?);
            }
            record(
                &benchmark,
                self.common,
                servers.as_mut_slice(),
                &mut recording,
                &progress,
            )
            .await
        };
        let end = tokio::select! {
            biased;
            interrupt = interrupts.next() => Ok(End::Interrupted(interrupt)),
            result = work => result.map(|()| End::Complete),
        };
        servers.stop().await;
        let awake = awake.map(drop);

        let names: Vec<String> = records
            .iter()
            .map(|r: &ServerRecord| r.name.clone())
            .collect();
        let points = recording.finish(&names);
        if points.is_empty() {
            return end;
        }
        let complete = matches!(end, Ok(End::Complete));
        let Benchmark { axis, figures, .. } = benchmark;
        let mut warnings = Vec::new();
        if !complete {
            warnings.push(
                "the measurement was stopped before its end: only what was finished is reported"
                    .to_owned(),
            );
        }
        warnings.extend(awake.err());
        warnings.extend(warnings::too_few_runs(&figures, &points));
        warnings.extend(warnings::stolen(&points, MOST_STOLEN));
        if let Some(limit) = benchmark.backlog_limit {
            warnings.extend(warnings::backlog(&axis, &points, limit));
        }
        let report = Report {
            schema_version: SCHEMA_VERSION,
            benchmark: benchmark.name.to_owned(),
            question: benchmark.question.to_owned(),
            method: benchmark.method,
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            command_line,
            date,
            machine: Machine::detect(),
            conditions: Some(conditions),
            parameters: self.parameters,
            targets: records,
            axis,
            figures,
            points,
            complete,
            warnings,
        };
        match (progress.suspend(|| output::publish(&report, file)), end) {
            (Err(error), Ok(End::Complete)) => Err(error),
            // Two things went wrong. The later one would hide the earlier one.
            (Err(error), end) => {
                eprintln!("error: {error:#}");
                end
            }
            (Ok(()), end) => end,
        }
    }
}

/// A point in words: `16 writers`.
fn place(PointId { workload, x }: &PointId, label: &str) -> String {
    if workload.is_empty() {
        format!("{x} {label}")
    } else {
        format!("{x} {label}, {workload}")
    }
}

/// Sets everything up, and makes all runs. What is recorded stays if this fails or is dropped.
async fn record(
    benchmark: &Benchmark,
    common: &CommonArgs,
    servers: &mut [Server],
    recording: &mut Recording,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut current = 0;
    let recorded = record_on(
        servers,
        &mut current,
        benchmark,
        common,
        recording,
        progress,
    );
    match recorded.await {
        Err(error) => Err(servers[current].explain(error).await),
        Ok(()) => Ok(()),
    }
}

/// The same, where `current` is the position of the server with which something is done.
async fn record_on(
    servers: &[Server],
    current: &mut usize,
    benchmark: &Benchmark,
    common: &CommonArgs,
    recording: &mut Recording,
    progress: &Progress,
) -> anyhow::Result<()> {
    let announce = |what: &str, server: &Server, rest: &str| {
        progress.announce(format!("{}: {what}{}{rest}", benchmark.name, server.name));
    };
    let mut measurements = Vec::new();
    for (position, server) in servers.iter().enumerate() {
        *current = position;
        announce("preparing ", server, "");
        measurements.push(Measurement::set_up(benchmark, server, common.timeout).await?);
    }
    // New clusters are slow for a while, since what initdb has written is still on
    // its way to the disk. That must not be part of what is measured first.
    for (position, server) in servers.iter().enumerate() {
        *current = position;
        server.checkpoint().await?;
    }
    tokio::task::spawn_blocking(nix::unistd::sync).await?;

    for (point, workload) in &benchmark.points {
        let place = place(point, &benchmark.axis.label);
        let failed = || format!("with {place}");
        recording.begin(point.clone(), servers.len());
        for (position, server) in servers.iter().enumerate() {
            *current = position;
            announce("preparing ", server, &format!(", {place}"));
            let prepared = measurements[position].prepare(server, workload).await;
            prepared.with_context(failed)?;
        }
        for (run, position) in turns(servers.len(), common.runs) {
            *current = position;
            let server = &servers[position];
            let rest = format!(", {place}, run {run} of {}", common.runs);
            announce("", server, &rest);
            let measured = undisturbed(async || {
                let begin = ProcessorTime::now();
                let measurement = &mut measurements[position];
                let values = measurement.measure(server, workload, run).await?;
                Ok((values, share_since(begin)))
            })
            .await;
            let mut measured = measured.with_context(failed)?;
            let figures = &benchmark.figures;
            let is_reported = |name: &String| figures.iter().any(|figure| figure.name == *name);
            measured.values.retain(|name, _| is_reported(name));
            recording.add(position, measured);
            progress.advance(1);
        }
    }
    Ok(())
}
