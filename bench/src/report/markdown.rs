//! `report --markdown`: the figures, tables and charts of Markdown files, from records.
//!
//! A comment says what stands between it and `<!-- end -->`:
//!
//! ```text
//! <!-- figure pingpong@1000: pinpoint-15/stock-15 -->146<!-- end --> times as fast
//!
//! <!-- table
//! Round trips with 1,000 idle listeners = pingpong@1000: stock-15 pinpoint-15 pinpoint-15/stock-15
//! commit.notify_tps: stock-15 pinpoint-15 pinpoint-15/stock-15
//! -->
//! | | stock 15 | pg_pinpoint | ratio |
//! | --- | ---: | ---: | ---: |
//! <!-- end -->
//!
//! <!-- chart pingpong: stock-15 pinpoint-15 -->
//! <img src="docs/images/pingpong.svg" width="480" alt="...">
//! <!-- end -->
//! ```
//!
//! A source is `RECORD[/WORKLOAD][.FIGURE][@X]: TARGET...`, with the main figure if none is
//! named. `A/B` instead of a target is the ratio of target A to B, of paired runs. A line of
//! a table with @X makes one row of medians; one without makes a row for each point, which
//! begins with X and has the ranges of the runs. A ratio has its interval everywhere. The label before the = is the next cell. The
//! two lines of a table's heading are written by hand. The file of a chart is that which the
//! image names.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::chart;
use super::number_format;
use super::results::{Figure, Point, Records, Report, Series};
use super::table::{Cell, row};
use super::verdict::LEAST_PAIRS;

const OPEN: &str = "<!-- ";
const CLOSE: &str = "-->";
const END: &str = "<!-- end -->";

/// A page with the figures of the records, and its charts: the path that the page has for
/// each, and the SVG.
#[derive(Debug, PartialEq)]
pub struct Filled {
    pub text: String,
    pub charts: Vec<(String, String)>,
}

/// Brings the figures of these files, and their charts, up to date.
pub fn update(records: &Records, files: &[impl AsRef<Path>]) -> anyhow::Result<()> {
    for file in files {
        let file = file.as_ref();
        let cannot = |what| format!("could not {what} \"{}\"", file.display());
        let text = fs::read_to_string(file).with_context(|| cannot("read"))?;
        let filled = fill(&text, records).with_context(|| format!("in {}", file.display()))?;
        if filled.text != text {
            fs::write(file, filled.text).with_context(|| cannot("write"))?;
            println!("{}", file.display());
        }
        for (path, svg) in filled.charts {
            let path = file.with_file_name(path);
            fs::write(&path, svg).with_context(|| format!("could not write {}", path.display()))?;
        }
    }
    Ok(())
}

/// A page with everything between its comments made anew.
pub fn fill(page: &str, records: &Records) -> anyhow::Result<Filled> {
    let mut text = String::new();
    let mut charts = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(OPEN) {
        let length = rest[at..].find(CLOSE).context("a comment has no end")? + CLOSE.len();
        let (done, after) = rest.split_at(at + length);
        text.push_str(done);
        rest = after;
        let comment = done[at + OPEN.len()..done.len() - CLOSE.len()].trim();
        let (kind, sources) = comment
            .split_once(char::is_whitespace)
            .unwrap_or((comment, ""));
        if !["figure", "table", "chart"].contains(&kind) {
            continue;
        }
        let place = || format!("\"{kind} {sources}\"");
        let end = rest.find(END).filter(|end| {
            let next = rest.find(OPEN);
            next.is_none_or(|next| next >= *end)
        });
        let (old, after) = rest.split_at(end.with_context(|| format!("{} has no end", place()))?);
        match kind {
            "figure" => text.push_str(&figure(sources, records).with_context(place)?),
            "table" => text.push_str(&table(sources, old, records).with_context(place)?),
            _ => {
                charts.push(image(sources, old, records).with_context(place)?);
                text.push_str(old);
            }
        }
        text.push_str(END);
        rest = &after[END.len()..];
    }
    text.push_str(rest);
    Ok(Filled { text, charts })
}

/// One number.
fn figure(source: &str, records: &Records) -> anyhow::Result<String> {
    let source = Source::parse(source, records)?;
    let (Some(x), &[column]) = (source.x, &source.columns[..]) else {
        bail!("a figure has one @X and one target");
    };
    Ok(source.cell(source.point(x)?, column)?.alone)
}

/// The heading as it is, and a row for each place.
fn table(sources: &str, old: &str, records: &Records) -> anyhow::Result<String> {
    let heading: Vec<&str> = old
        .lines()
        .filter(|line| !line.is_empty())
        .take(2)
        .collect();
    ensure!(
        heading.len() == 2 && heading.iter().all(|line| line.starts_with('|')),
        "the two lines of the heading are missing"
    );
    let mut lines: Vec<String> = heading.into_iter().map(str::to_owned).collect();
    for line in sources.lines() {
        let (label, source) = match line.rsplit_once(" = ") {
            Some((label, source)) => (Some(label), source),
            None => (None, line),
        };
        let source = Source::parse(source, records)?;
        let points: Vec<&Point> = match source.x {
            Some(x) => vec![source.point(x)?],
            None => source.report.points_of(source.workload).collect(),
        };
        for point in points {
            let mut cells = Vec::new();
            if source.x.is_none() {
                cells.push(number_format::whole(point.x as f64));
            }
            cells.extend(label.map(str::to_owned));
            for column in &source.columns {
                let cell = source.cell(point, column)?;
                cells.push(if source.x.is_none() {
                    cell.with_range
                } else {
                    cell.alone
                });
            }
            lines.push(row(cells));
        }
    }
    Ok(format!("\n{}\n", lines.join("\n")))
}

/// The path that an image names, and what it shows.
fn image(source: &str, old: &str, records: &Records) -> anyhow::Result<(String, String)> {
    let path = [("src=\"", '"'), ("](", ')')]
        .into_iter()
        .find_map(|(before, after)| old.split_once(before)?.1.split_once(after))
        .context("there is no image")?
        .0;
    let source = Source::parse(source, records)?;
    let mut shown = source.report.clone();
    shown
        .targets
        .retain(|target| source.columns.contains(&target.name.as_str()));
    ensure!(
        shown.targets.len() == source.columns.len(),
        "the targets are {}",
        source.targets()
    );
    let charts = chart::of_report(&shown);
    let chart = charts
        .iter()
        .find(|chart| chart.figure.name == source.figure.name && chart.workload == source.workload)
        .context("no chart shows this figure")?;
    Ok((path.to_owned(), chart.svg()?))
}

/// Where figures are from.
struct Source<'a> {
    report: &'a Report,
    workload: &'a str,
    figure: &'a Figure,
    x: Option<u64>,
    columns: Vec<&'a str>,
}

impl<'a> Source<'a> {
    fn parse(text: &'a str, records: &'a Records) -> anyhow::Result<Self> {
        let (what, columns) = text
            .trim()
            .split_once(": ")
            .context("write a source as RECORD[/WORKLOAD][.FIGURE][@X]: TARGET...")?;
        let split = |what: &'a str, at: char| match what.split_once(at) {
            Some((what, rest)) => (what, Some(rest)),
            None => (what, None),
        };
        let (what, x) = split(what, '@');
        let x = x.map(str::parse).transpose().context("after the @")?;
        let (what, figure) = split(what, '.');
        let (record, workload) = split(what, '/');
        let report = records.get(record).with_context(|| {
            let names: Vec<&str> = records.keys().map(String::as_str).collect();
            format!(
                "there is no record {record}.json, only {}",
                names.join(", ")
            )
        })?;
        ensure!(report.complete, "{record}.json was stopped before its end");
        let workloads = report.workloads();
        let workload = match (workload, &workloads[..]) {
            (None, &[only]) => only,
            (Some(name), names) if names.contains(&name) => name,
            _ => bail!("name one of the workloads {}", workloads.join(", ")),
        };
        let mut figures = report.figures.iter();
        let figure = match figure {
            Some(name) => figures.find(|figure| figure.name == name),
            None => figures.next(),
        };
        Ok(Self {
            report,
            workload,
            figure: figure.context("there is no such figure")?,
            x,
            columns: columns.split_whitespace().collect(),
        })
    }

    fn targets(&self) -> String {
        let names = self
            .report
            .targets
            .iter()
            .map(|target| target.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    fn point(&self, x: u64) -> anyhow::Result<&'a Point> {
        let mut points = self.report.points_of(self.workload);
        points
            .find(|point| point.x == x)
            .with_context(|| format!("{x} was not measured"))
    }

    fn series(&self, point: &'a Point, target: &str) -> anyhow::Result<&'a Series> {
        let series = point.of_target(target);
        series.with_context(|| format!("there is no target {target}, only {}", self.targets()))
    }

    /// What stands in a column. Fewer runs than a verdict takes are not shown.
    fn cell(&self, point: &'a Point, column: &str) -> anyhow::Result<Cell> {
        let figure = self.figure;
        let cell = match column.split_once('/') {
            None => Cell::of_target(figure, self.series(point, column)?),
            Some((target, base)) => {
                let base = self.series(point, base)?;
                let runs = self.series(point, target)?.runs.clone();
                let series = Series::of(target.to_owned(), runs, Some(base));
                Cell::of_ratio(figure, &series)
            }
        };
        let cell = cell.with_context(|| {
            let name = &figure.name;
            format!("{name} of {column} was not measured at {}", point.x)
        })?;
        ensure!(
            cell.runs >= LEAST_PAIRS,
            "{} runs of {column} are too few: measure {LEAST_PAIRS}",
            cell.runs
        );
        Ok(cell)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::report::{results_folder, sample_reports};

    fn records() -> Records {
        Records::from([
            ("pingpong".to_owned(), sample_reports::pingpong()),
            ("decode".to_owned(), sample_reports::decode()),
            ("drift".to_owned(), sample_reports::drift()),
        ])
    }

    #[test]
    fn everything_between_the_comments_is_made_anew() {
        let page = "\
It is <!-- figure pingpong@1000: pinpoint/stock -->7<!-- end --> times as fast,
<!-- figure pingpong.p99_latency_usec@1000: stock --><!-- end --> microseconds. <!-- A note -->

<!-- table
Round trips = pingpong@1000: stock pinpoint pinpoint/stock stock/pinpoint
pingpong: stock pinpoint pinpoint/stock
-->
| | stock | pg_pinpoint |
| --- | ---: | ---: |
| old |
<!-- end -->

<!-- chart pingpong: stock pinpoint -->
<img src=\"images/pingpong.svg\" alt=\"\">
<!-- end -->
The end.
";
        let filled = fill(page, &records()).unwrap();
        insta::assert_snapshot!(filled.text);
        let [(path, svg)] = &filled.charts[..] else {
            panic!("there is one chart");
        };
        assert_eq!(path, "images/pingpong.svg");
        assert!(svg.starts_with("<svg "));
        assert_eq!(fill(&filled.text, &records()).unwrap(), filled);
    }

    #[test]
    fn what_no_record_has_is_told() {
        let errors = [
            "figure pingpong@7: stock -->1<!-- end -->",
            "figure pingpong@1000: nobody -->1<!-- end -->",
            "figure pingpong.nothing@1000: stock -->1<!-- end -->",
            "figure nothing@1000: stock -->1<!-- end -->",
            "figure pingpong: stock -->1<!-- end -->",
            "figure drift@8: stock -->1<!-- end -->",
            "figure decode/single_transaction@1000: stock -->1<!-- end -->",
            "figure pingpong@1000: stock -->1",
            "table pingpong: stock -->\n<!-- end -->",
            "chart pingpong: stock -->\n<!-- end -->",
        ]
        .map(|text| {
            format!(
                "{:#}",
                fill(&format!("<!-- {text}"), &records()).unwrap_err()
            )
        });
        insta::assert_snapshot!(errors.join("\n"));
    }

    /// What `script/figures` does has nothing left to do.
    #[test]
    fn the_figures_of_the_documentation_are_those_of_the_records() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = root.join("docs/results");
        let records = if folder.exists() {
            results_folder::records(&folder).unwrap()
        } else {
            Records::new()
        };
        let mut pages = vec![root.join("README.md")];
        for folder in ["docs", "bench"] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                pages.push(entry.unwrap().path());
            }
        }
        pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
        assert!(pages.len() > 10);
        let mut figures = 0;
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            let filled = fill(&text, &records);
            let filled = filled.unwrap_or_else(|error| panic!("{}: {error:#}", page.display()));
            for (here, there) in text.lines().zip(filled.text.lines()) {
                assert_eq!(here, there, "{}: run script/figures", page.display());
            }
            assert_eq!(text, filled.text, "{}: run script/figures", page.display());
            for (path, svg) in filled.charts {
                let image = fs::read_to_string(page.with_file_name(&path)).unwrap_or_default();
                assert!(image == svg, "{path} is not up to date: run script/figures");
            }
            figures += text.matches(END).count();
        }
        assert!(records.is_empty() || figures > 5, "{figures}");
    }
}
