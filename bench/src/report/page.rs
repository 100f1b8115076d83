//! The HTML page that shows reports: one file, without scripts, that needs
//! nothing from anywhere else.

mod headline;
mod section;
mod table;

#[cfg(test)]
mod browser_tests;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::results::Report;
use super::table::who;

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
        .map(|(entry, id)| section::render(entry, id))
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
                            @for (entry, id) in with_ids() { (headline::cards(entry, id)) }
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
