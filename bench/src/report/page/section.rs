//! All about one report.

use maud::{Markup, PreEscaped, html};
use serde_json::Value;

use super::{Entry, table};
use crate::report::chart::Chart;
use crate::report::results::{Figure, Report, ServerRecord};
use crate::report::words;

pub fn render(entry: &Entry, id: &str) -> anyhow::Result<Markup> {
    let report = &entry.report;
    let workloads = report
        .workloads()
        .into_iter()
        .map(|workload| self::workload(report, workload))
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
            @for sentence in words::closing(report) { p.closing { (sentence) } }
            @for workload in workloads { (workload) }
            h3 { "Method" }
            @for paragraph in &report.method { p.method { (paragraph) } }
            (circumstances(report))
        }
    })
}

/// What is drawn, each with its table, and what is not.
fn workload(report: &Report, workload: &str) -> anyhow::Result<Markup> {
    let measured = |figure: &&Figure| report.has(figure, workload);
    let figures: Vec<&Figure> = report.figures.iter().filter(measured).collect();
    let (drawn, others): (Vec<&Figure>, Vec<&Figure>) =
        figures.into_iter().partition(|figure| figure.chart);
    let mut charts = Vec::new();
    for figure in drawn {
        let chart = Chart::of(report, figure, workload);
        let svg = chart.map(|chart| chart.svg()).transpose()?;
        charts.push((figure, svg.unwrap_or_default()));
    }
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
                (table::render(report, figure, workload))
            }
        }
        @if !others.is_empty() {
            details {
                summary { "More figures" }
                @for figure in others { (table::render(report, figure, workload)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed() {
        let arguments = ["pinpoint-bench", "pingpong", "--target", "a=b,c='d e'", ""];
        assert_eq!(
            command_line(&arguments.map(str::to_owned)),
            r"pinpoint-bench pingpong --target 'a=b,c='\''d e'\''' ''"
        );
    }
}
