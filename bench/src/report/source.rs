//! What a comment of a page names: a figure of records, at one point, at each point, or pooled.
//!
//! `RECORD[/WORKLOAD][.FIGURE][@X]: COLUMN...`, with the main figure if none is named. A column
//! is a target, `A/B` for the ratio of target A to B, or `-` for an empty cell. With `@*` instead
//! of @X, all points are pooled in one ratio: see [`Ratio::pooled`]. `RECORD/WORKLOAD` can then
//! be several ones with a plus between them.

use anyhow::{Context, bail, ensure};

use super::interval::Confidence;
use super::results::{Figure, Kind, Point, Ratio, Records, Report, Series};
use super::table::Cell;
use super::verdict::LEAST_PAIRS;

/// The column that is empty.
pub const EMPTY: &str = "-";

/// Where figures are from.
#[derive(Debug)]
pub struct Source<'a> {
    /// More than one only if they are pooled.
    parts: Vec<Part<'a>>,
    pub figure: &'a Figure,
    pub at: At,
    pub columns: Vec<&'a str>,
}

/// The points of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub record: &'a str,
    pub report: &'a Report,
    pub workload: &'a str,
}

/// Which points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Each,
    One(u64),
    Pooled,
}

impl<'a> Source<'a> {
    pub fn parse(text: &'a str, records: &'a Records) -> anyhow::Result<Self> {
        let (what, columns) = text
            .trim()
            .split_once(": ")
            .context("write a source as RECORD[/WORKLOAD][.FIGURE][@X]: TARGET...")?;
        let (what, at) = split(what, '@');
        let at = match at {
            None => At::Each,
            Some("*") => At::Pooled,
            Some(x) => At::One(x.parse().context("after the @")?),
        };
        let (what, name) = split(what, '.');
        let parts = what
            .split('+')
            .map(|part| Part::parse(part, records))
            .collect::<anyhow::Result<Vec<Part>>>()?;
        ensure!(
            parts.len() == 1 || at == At::Pooled,
            "several workloads are only pooled: write @*"
        );
        let mut figures = parts[0].report.figures.iter();
        let figure = match name {
            Some(name) => figures.find(|figure| figure.name == name),
            None => figures.next(),
        };
        Ok(Self {
            parts,
            figure: figure.context("there is no such figure")?,
            at,
            columns: columns.split_whitespace().collect(),
        })
    }

    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// The only part of a source that is not pooled.
    pub fn part(&self) -> Part<'a> {
        self.parts[0]
    }

    /// What stands in a column at a point. Fewer runs than a verdict takes are not shown, except of
    /// counts.
    pub fn cell(
        &self,
        point: &'a Point,
        column: &str,
        confidence: Confidence,
    ) -> anyhow::Result<Cell> {
        let counts = self.figure.kind == Kind::Count;
        let cell = match column.split_once('/') {
            None => Cell::of_target(self.figure, self.part().series(point, column)?),
            Some((target, base)) => {
                let series = self.part().series(point, target)?;
                let base = self.part().series(point, base)?;
                let ratio = Ratio::of(&self.figure.name, series, base, confidence);
                ratio.map(|ratio| match counts {
                    true => Cell::of_counts(&ratio),
                    false => Cell::with_verdict(&ratio, confidence),
                })
            }
        };
        let cell = cell.with_context(|| {
            let name = &self.figure.name;
            format!("{name} of {column} was not measured at {}", point.x)
        })?;
        if !counts {
            enough(column, cell.runs)?;
        }
        Ok(cell)
    }

    /// The ratio of a column over all points.
    pub fn pooled(&self, column: &str, confidence: Confidence) -> anyhow::Result<Ratio> {
        let (target, base) = column
            .split_once('/')
            .context("only ratios are pooled: write TARGET/TARGET")?;
        let mut points = Vec::new();
        for part in &self.parts {
            for point in part.report.points_of(part.workload) {
                points.push((part.series(point, target)?, part.series(point, base)?));
            }
        }
        let name = &self.figure.name;
        let ratio = Ratio::pooled(name, &points, confidence)
            .with_context(|| format!("{name} of {column} cannot be pooled"))?;
        enough(column, ratio.pairs)?;
        Ok(ratio)
    }
}

impl<'a> Part<'a> {
    fn parse(text: &'a str, records: &'a Records) -> anyhow::Result<Self> {
        let (record, workload) = split(text, '/');
        let report = self::record(record, records)?;
        let workloads = report.workloads();
        let workload = match (workload, &workloads[..]) {
            (None, &[only]) => only,
            (Some(name), names) if names.contains(&name) => name,
            _ => bail!("name one of the workloads {}", workloads.join(", ")),
        };
        Ok(Self {
            record,
            report,
            workload,
        })
    }

    pub fn targets(&self) -> String {
        let targets = self.report.targets.iter();
        let names: Vec<&str> = targets.map(|target| target.name.as_str()).collect();
        names.join(", ")
    }

    pub fn point(&self, x: u64) -> anyhow::Result<&'a Point> {
        let mut points = self.report.points_of(self.workload);
        points
            .find(|point| point.x == x)
            .with_context(|| format!("{x} was not measured"))
    }

    fn series(&self, point: &'a Point, target: &str) -> anyhow::Result<&'a Series> {
        let series = point.of_target(target);
        series.with_context(|| format!("there is no target {target}, only {}", self.targets()))
    }
}

/// A complete record.
pub fn record<'a>(name: &str, records: &'a Records) -> anyhow::Result<&'a Report> {
    let report = records.get(name).with_context(|| {
        let names: Vec<&str> = records.keys().map(String::as_str).collect();
        format!("there is no record {name}.json, only {}", names.join(", "))
    })?;
    ensure!(report.complete, "{name}.json was stopped before its end");
    Ok(report)
}

fn split(what: &str, at: char) -> (&str, Option<&str>) {
    match what.split_once(at) {
        Some((what, rest)) => (what, Some(rest)),
        None => (what, None),
    }
}

fn enough(column: &str, runs: usize) -> anyhow::Result<()> {
    ensure!(
        runs >= LEAST_PAIRS,
        "{runs} runs of {column} are too few: measure {LEAST_PAIRS}"
    );
    Ok(())
}
