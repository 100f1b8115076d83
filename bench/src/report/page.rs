//! The HTML page that shows reports: one file, without scripts, that needs
//! nothing from anywhere else.

#[cfg(test)]
mod browser_tests;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use serde_json::Value;

use super::chart::{self, Chart, better};
use super::results::{Figure, Point, Ratio, Report, ServerRecord, Summary};
use super::table::who;
use super::verdict::{Place, Verdict, best_and_worst};
use super::{number_format, sentences};

const STYLE: &str = include_str!("page/style.css");

/// A report and what it is called, which is unlike the others' names.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: String,
    pub report: Report,
}

impl Entry {
    /// The benchmark, and the entry's own name if that is another one.
    fn title(&self) -> String {
        if self.name == self.report.benchmark {
            self.name.clone()
        } else {
            format!("{} ({})", self.report.benchmark, self.name)
        }
    }
}

/// The page of these reports, in this order.
pub fn render(entries: &[Entry]) -> anyhow::Result<String> {
    let ids = ids(entries);
    let with_ids = || entries.iter().zip(&ids);
    let sections = with_ids()
        .map(|(entry, id)| section(entry, id))
        .collect::<anyhow::Result<Vec<Markup>>>()?;
    let compared = entries
        .iter()
        .any(|entry| entry.report.compared().next().is_some());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "pinpoint-bench: " (subject(entries)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "PostgreSQL, measured side by side" }
                    p.subject { (subject(entries)) }
                    p.who { (who_is_who(entries)) }
                }
                main {
                    section aria-labelledby="at-a-glance" {
                        h2 #at-a-glance { "At a glance" }
                        ul.cards {
                            @for (entry, id) in with_ids() { (cards(entry, id)) }
                        }
                        @if compared { p.note {
                            "Where each does best and where it does worst: the median of the paired runs' ratios, and the "
                            "least and the greatest of them. There is a verdict, and a colour, only with six pairs or "
                            "more that agree, if the servers' runs lie further apart than those of either among themselves."
                        } }
                    }
                    nav aria-labelledby="contents" {
                        h2 #contents { "Benchmarks" }
                        ul {
                            @for (entry, id) in with_ids() {
                                li { a href={ "#" (id) } { (entry.title()) } ": " (entry.report.question) }
                            }
                        }
                    }
                    @for section in &sections { (section) }
                }
                footer {
                    p { "Made by pinpoint-bench " (env!("CARGO_PKG_VERSION")) "." }
                }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

/// A card for each target that is compared with the baseline; where there is
/// nothing to compare, for the baseline.
fn cards(entry: &Entry, id: &str) -> Markup {
    let report = &entry.report;
    let Some(figure) = report.figures.first() else {
        return html! {};
    };
    html! {
        @for target in report.compared() {
            (card(entry, id, html! {
                p { (figure.label) ", " b { (target) } " and " (report.baseline().unwrap_or_default()) }
                @match best_and_worst(report, target) {
                    Some((best, worst)) => {
                        (line(report, figure, &best))
                        @if best.point != worst.point { (line(report, figure, &worst)) }
                    }
                    None => { p.number { "no ratio" } }
                }
            }))
        }
        @if report.compared().next().is_none() {
            @let last = report.points.iter().rev().find_map(|point| {
                let summary = point.series.first()?.summary.get(&figure.name)?;
                Some((point, summary.median))
            });
            @if let Some((point, median)) = last {
                (card(entry, id, html! {
                    p.number { (number_format::of_figure(figure, median)) }
                    p { (figure.label) ", " (sentences::place(report, point)) }
                }))
            }
        }
    }
}

/// The comparison at a place; without a verdict there is no figure to show.
fn line(report: &Report, figure: &Figure, place: &Place) -> Markup {
    let ratio = &place.series.ratio[&figure.name];
    let at = sentences::place(report, place.point);
    html! {
        @match place.verdict {
            Verdict::Better | Verdict::Worse => {
                p class={ "number " (class(place.verdict)) } { (sentences::times(figure, ratio.median)) }
                p { "with " (at) ": " span.range { (sentences::range(figure, ratio)) } }
            }
            Verdict::TooFew(pairs) => {
                p.number.unclear { "no verdict" }
                p { "with " (at) ": " span.range { "only " (pairs) @if pairs == 1 { " pair" } @else { " pairs" } } }
            }
            Verdict::Unclear | Verdict::NoRatio => {
                p.number.unclear { "no clear difference" }
                p { "with " (at) ": " span.range { (ratio.pairs) " pairs" } }
            }
        }
    }
}

/// That of a style: only a clear difference has a colour.
fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        _ => "unclear",
    }
}

fn card(entry: &Entry, id: &str, content: Markup) -> Markup {
    html! {
        li.card {
            p.title {
                a href={ "#" (id) } { (entry.title()) }
                @if !entry.report.complete { " " span.incomplete { "incomplete" } }
            }
            (content)
        }
    }
}

/// All about one report.
fn section(entry: &Entry, id: &str) -> anyhow::Result<Markup> {
    let report = &entry.report;
    let charts = chart::of_report(report);
    let workloads = report
        .workloads()
        .into_iter()
        .map(|name| workload(report, name, &charts))
        .collect::<anyhow::Result<Vec<Markup>>>()?;
    Ok(html! {
        section aria-labelledby=(id) {
            h2 id=(id) {
                (entry.title())
                @if !report.complete { " " span.incomplete { "incomplete" } }
            }
            p.question { (report.question) }
            @if !report.complete {
                p.warning { "The measurement was stopped before its end: this is what it had measured until then." }
            }
            @for warning in &report.warnings { p.warning { "Warning: " (warning) } }
            @if workloads.is_empty() { p { "Nothing was measured." } }
            @for sentence in sentences::closing(report) { p.closing { (sentence) } }
            @for workload in workloads { (workload) }
            h3 { "Method" }
            @for paragraph in &report.method { p.method { (paragraph) } }
            (circumstances(report))
        }
    })
}

/// What is drawn, each with its table, and what is not.
fn workload(report: &Report, workload: &str, charts: &[Chart]) -> anyhow::Result<Markup> {
    let charts = charts.iter().filter(|chart| chart.workload == workload);
    let charts = charts
        .map(|chart| Ok((chart.figure, chart.svg()?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let is_other = |figure: &&Figure| !figure.chart && report.has(figure, workload);
    let others: Vec<&Figure> = report.figures.iter().filter(is_other).collect();
    Ok(html! {
        @if !workload.is_empty() { h3 { (workload) } }
        @for (figure, svg) in charts {
            div.figure {
                figure {
                    (PreEscaped(svg))
                    @if has_several_runs(report) {
                        figcaption { "Medians, with lines from the least to the greatest run." }
                    }
                }
                (figure_table(report, figure, workload))
            }
        }
        @if !others.is_empty() {
            details {
                summary { "More figures" }
                @for figure in others { (figure_table(report, figure, workload)) }
            }
        }
    })
}

fn has_several_runs(report: &Report) -> bool {
    let mut series = report.points.iter().flat_map(|point| &point.series);
    series.any(|series| series.runs.len() > 1)
}

/// With what and on what it was measured.
fn circumstances(report: &Report) -> Markup {
    let machine = &report.machine;
    html! {
        details {
            summary { "Command, machine, versions and settings" }
            dl {
                dt { "Command" } dd { code { (command_line(&report.command_line)) } }
                dt { "Date" } dd { (report.date) }
                dt { "Machine" }
                dd { (machine.cpu_count) " × " (machine.cpu_model) ", " (machine.os) ", kernel " (machine.kernel) }
                dt { "pinpoint-bench" } dd { (report.program_version) }
                @for (name, value) in parameters(&report.parameters) {
                    dt { (name) } dd { code { (value) } }
                }
            }
            table.stack.servers {
                caption { "Servers" }
                thead {
                    tr {
                        th scope="col" { "name" }
                        th scope="col" { "version" }
                        th scope="col" { "libraries and extensions" }
                        th scope="col" { "settings that differ" }
                    }
                }
                tbody {
                    @for target in &report.targets {
                        tr {
                            th scope="row" data-label="name" { (target.name) }
                            td data-label="version" { div { (target.server_version) @if let Some(url) = &target.url { p { code { (url) } } } } }
                            td data-label="libraries and extensions" { div {
                                @for library in &target.preload { p { (library) } }
                                @for (name, version) in &target.extensions { p { (name) " " (version) } }
                            } }
                            td data-label="settings that differ" { div {
                                @for setting in settings(report, target, false) { p { code { (setting) } } }
                            } }
                        }
                    }
                }
            }
            @if let Some(first) = report.targets.first() {
                p { "The same for all: " code { (settings(report, first, true).join(", ")) } }
            }
        }
    }
}

/// The settings of a target that all targets share, or the others.
fn settings(report: &Report, target: &ServerRecord, shared: bool) -> Vec<String> {
    let is_shared = |name: &String, value: &String| {
        let mut targets = report.targets.iter();
        targets.all(|other| other.settings.get(name) == Some(value))
    };
    target
        .settings
        .iter()
        .filter(|(name, value)| is_shared(name, value) == shared)
        .map(|(name, value)| format!("{name} = {value}"))
        .collect()
}

/// As it can be typed.
fn command_line(arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    let quoted = arguments.iter().map(|argument| {
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn parameters(parameters: &Value) -> Vec<(String, String)> {
    let Value::Object(parameters) = parameters else {
        return Vec::new();
    };
    let shown = parameters.iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (name.replace('_', " "), value)
    });
    shown.collect()
}

/// One figure of one workload: a row for each point, a column for each target,
/// and one for each comparison. On a phone the cells of a row are below each other,
/// each with the heading of its column.
fn figure_table(report: &Report, figure: &Figure, workload: &str) -> Markup {
    let baseline = report.baseline().unwrap_or_default();
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Table: " (figure.label) } { table.stack {
            caption { (figure.label) @if let Some(better) = better(figure) { ", " (better) } " " code { (figure.name) } }
            thead {
                tr {
                    th scope="col" { (report.axis.label) }
                    @for target in &report.targets { th scope="col" { (target.name) } }
                    @for target in report.compared() { th scope="col" { (target) " and " (baseline) } }
                }
            }
            tbody {
                @for point in report.points_of(workload) {
                    tr {
                        th scope="row" data-label=(report.axis.label) { (number_format::whole(point.x as f64)) }
                        @for target in &report.targets {
                            td data-label=(target.name) { (value(figure, point, &target.name)) }
                        }
                        @for target in report.compared() {
                            (comparison(figure, point, target, baseline))
                        }
                    }
                }
            }
        } }
    }
}

fn value(figure: &Figure, point: &Point, target: &str) -> Markup {
    let series = point.of_target(target);
    match series.and_then(|series| series.summary.get(&figure.name)) {
        Some(Summary { median, min, max }) => with_range(
            number_format::of_figure(figure, *median),
            [*min, *max].map(|value| number_format::of_figure(figure, value)),
        ),
        None => html! { span.range { "not measured" } },
    }
}

/// In words if it is clear, else as a number.
fn comparison(figure: &Figure, point: &Point, target: &str, baseline: &str) -> Markup {
    let label = format!("{target} and {baseline}");
    let (series, base) = (point.of_target(target), point.of_target(baseline));
    let (Some(series), Some(base)) = (series, base) else {
        return html! { td.ratio data-label=(label) { span.range { "not measured" } } };
    };
    let verdict = Verdict::of(figure, series, base);
    let content = match series.ratio.get(&figure.name) {
        None => html! { span.range { "no ratio" } },
        Some(ratio) if verdict.is_clear() => with_range(
            sentences::times(figure, ratio.median),
            sentences::ends(figure, ratio),
        ),
        Some(Ratio {
            median, min, max, ..
        }) => with_range(
            format!("× {}", number_format::ratio(*median)),
            [*min, *max].map(number_format::ratio),
        ),
    };
    html! { td class={ "ratio " (class(verdict)) } data-label=(label) { (content) } }
}

/// The range is left out where it says nothing more: after a single run.
fn with_range(value: String, [min, max]: [String; 2]) -> Markup {
    html! {
        span {
            (value)
            @if min != max { " " span.range { "(" (min) "–" (max) ")" } }
        }
    }
}

/// Which servers are compared, where and when.
fn subject(entries: &[Entry]) -> String {
    let reports = || entries.iter().map(|entry| &entry.report);
    let targets = || reports().flat_map(|report| &report.targets);
    let mut parts: Vec<&str> = Vec::new();
    for part in targets()
        .map(|target| target.name.as_str())
        .chain(targets().map(|target| version(&target.server_version)))
        .chain(reports().map(|report| report.machine.cpu_model.as_str()))
        .chain(reports().filter_map(|report| report.date.split('T').next()))
    {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(", ")
}

/// What the names of the servers stand for.
fn who_is_who(entries: &[Entry]) -> String {
    let mut all: Vec<String> = Vec::new();
    for target in entries.iter().flat_map(|entry| &entry.report.targets) {
        let line = who(target);
        if !all.contains(&line) {
            all.push(line);
        }
    }
    all.join("; ")
}

/// Of `PostgreSQL 15.20 (Debian 15.20-0+deb12u1) on x86_64-pc-linux-gnu, ...` the beginning.
fn version(server_version: &str) -> &str {
    let end = [" (", " on "]
        .iter()
        .filter_map(|sign| server_version.find(sign));
    &server_version[..end.min().unwrap_or(server_version.len())]
}

/// What links lead to: the names, as far as their characters are fit for a link.
fn ids(entries: &[Entry]) -> Vec<String> {
    let mut taken = HashSet::from(["at-a-glance".to_owned(), "contents".to_owned()]);
    entries
        .iter()
        .map(|entry| {
            let fit = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            let mut id: String = entry.name.chars().map(fit).collect();
            while !taken.insert(id.clone()) {
                id.push('-');
            }
            id
        })
        .collect()
}
