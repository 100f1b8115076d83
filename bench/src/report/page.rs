//! The HTML page that shows reports: one file, without scripts, that needs
//! nothing from anywhere else.

#[cfg(test)]
mod browser_tests;
mod glance;
#[cfg(test)]
mod tests;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart;
use super::operations;
use super::results::{Conditions, Figure, Records, Report};
use super::table::Table;
use super::text::who;
use super::verdict;

const STYLE: &str = include_str!("page/style.css");

/// The page of these reports, in the order in which they were measured.
pub fn render(records: &Records) -> anyhow::Result<String> {
    let mut reports: Vec<(&String, &Report)> = records.iter().collect();
    reports.sort_by_key(|(_, report)| &report.date);
    let sections = reports
        .iter()
        .enumerate()
        .map(|(number, (name, report))| section(number, name, report))
        .collect::<anyhow::Result<Vec<Markup>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "pinpoint-bench" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "PostgreSQL, measured side by side" }
                (glance::section(&reports))
                nav {
                    ul {
                        @for (number, (name, report)) in reports.iter().enumerate() {
                            li { a href={ "#report-" (number) } { (name) } ": " (report.question) }
                        }
                    }
                }
                @for section in sections { (section) }
                footer { p { "Made by pinpoint-bench " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

/// All about one report.
fn section(number: usize, name: &str, report: &Report) -> anyhow::Result<Markup> {
    let workloads: Vec<Markup> = if report.benchmark == operations::BENCHMARK {
        let tables = operations::tables(report);
        tables.iter().map(Table::html).collect()
    } else {
        let names = report.workloads().into_iter();
        let workloads = names.map(|name| workload(report, name));
        workloads.collect::<anyhow::Result<_>>()?
    };
    Ok(html! {
        section {
            h2 id={ "report-" (number) } { (name) }
            p.question { (report.question) }
            @for target in &report.targets { p.who { (who(target)) } }
            @for warning in &report.warnings { p.warning { "Warning: " (warning) } }
            @if workloads.is_empty() { p { "Nothing was measured." } }
            @for workload in workloads { (workload) }
            p.method { "Tables: " (verdict::legend(report)) "." }
            @for paragraph in &report.method { p.method { (paragraph) } }
            (circumstances(report))
        }
    })
}

/// What is drawn, each with its table, and what is not.
fn workload(report: &Report, workload: &str) -> anyhow::Result<Markup> {
    let charts = chart::of_report(report).into_iter();
    let charts = charts
        .filter(|chart| chart.workload == workload)
        .map(|chart| Ok((chart.figure, chart.svg()?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let table = |figure: &Figure| Table::of(report, figure, workload).map(|table| table.html());
    let others: Vec<Markup> = report
        .figures
        .iter()
        .filter(|figure| !figure.chart)
        .filter_map(table)
        .collect();
    Ok(html! {
        @if !workload.is_empty() { h3 { (workload) } }
        @for (figure, svg) in charts {
            div.figure {
                (PreEscaped(svg))
                @if let Some(table) = table(figure) { (table) }
            }
        }
        @if !others.is_empty() {
            details {
                summary { "More figures" }
                @for table in others { (table) }
            }
        }
    })
}

/// With what and on what it was measured.
fn circumstances(report: &Report) -> Markup {
    let machine = &report.machine;
    html! {
        details {
            summary { "Command, machine, versions and settings" }
            dl {
                dt { "Command" } dd { code { (report.command_line.join(" ")) } }
                dt { "Options" } dd { code { (report.parameters) } }
                dt { "Date" } dd { (report.date) }
                dt { "Machine" }
                dd { (machine.cpu_count) " × " (machine.cpu_model) ", " (machine.os) ", kernel " (machine.kernel) }
                @if let Some(conditions) = &report.conditions {
                    dt { "Processors" } dd { (processors(conditions)) }
                }
                dt { "pinpoint-bench" } dd { (report.program_version) }
                @for target in &report.targets {
                    dt { (target.name) }
                    dd {
                        p { (target.server_version) }
                        @if let Some(url) = &target.url { p { code { (url) } } }
                        @for (name, version) in &target.extensions { p { (name) " " (version) } }
                        @for (name, value) in &target.settings { p { code { (name) " = " (value) } } }
                    }
                }
            }
        }
    }
}

/// A sentence without its full stop.
fn processors(conditions: &Conditions) -> String {
    let awake = match conditions.kept_awake {
        true => "kept awake",
        false => "may halt",
    };
    let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
    format!(
        "{awake}, idle driver {}, governor {}, load at the start {:.2}",
        known(&conditions.idle_driver),
        known(&conditions.idle_governor),
        conditions.load_at_start
    )
}
