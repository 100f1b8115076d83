//! A report on the terminal: what was measured on what, and the tables.

use super::operations;
use super::results::{Report, ServerRecord};
use super::table::Table;
use super::verdict::{self, Differences};

pub fn text(report: &Report) -> String {
    let machine = &report.machine;
    let mut lines = vec![format!("{}: {}\n", report.benchmark, report.question)];
    lines.extend(
        report
            .targets
            .iter()
            .map(|target| format!("- {}", who(target))),
    );
    lines.push(format!(
        "- {} x {}, {}, kernel {}\n- {}\n",
        machine.cpu_count,
        machine.cpu_model,
        machine.os,
        machine.kernel,
        verdict::legend(report)
    ));
    if report.benchmark == operations::BENCHMARK {
        let tables = operations::tables(report);
        lines.extend(tables.iter().map(Table::markdown));
        return lines.join("\n");
    }
    for workload in report.workloads() {
        let figures = report.figures.iter().enumerate();
        let shown = figures.filter(|(position, figure)| *position == 0 || figure.chart);
        let tables = shown.filter_map(|(_, figure)| Table::of(report, figure, workload));
        lines.extend(tables.map(|table| table.markdown()));
    }
    lines.extend(Differences::of([report]).map(|differences| format!("{differences}\n")));
    lines.join("\n")
}

/// One line on a server: `pinpoint: PostgreSQL 15.20 with pg_pinpoint`.
pub fn who(target: &ServerRecord) -> String {
    // "PostgreSQL 15.1 (Debian 15.1-1) on x86_64-pc-linux-gnu, compiled by ..."
    let version = target.server_version.split(" on ").next();
    let with = match target.preload.join(", ") {
        libraries if libraries.is_empty() => String::new(),
        libraries => format!(" with {libraries}"),
    };
    format!("{}: {}{with}", target.name, version.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    #[test]
    fn of_all_samples() {
        for report in sample_reports::all() {
            insta::assert_snapshot!(report.benchmark.clone(), text(&report));
        }
        insta::assert_snapshot!("alone", text(&sample_reports::alone()));
    }
}
