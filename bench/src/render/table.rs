//! The tables on the terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::has_workloads;
use crate::results::{Figure, Point, Ratio, Report, Series, Summary, format_ratio};

/// Where there is no terminal that says how wide it is.
const WIDTH: u16 = 100;

/// As wide as the ranges of most figures.
const HEADING_WIDTH: usize = 13;

/// More of them do not fit beside each other.
const FIGURES_PER_TABLE: usize = 4;

/// For people, no wider than `width` characters: what was measured on what, a
/// table with the figures that are drawn, and others with the rest.
pub fn table(report: &Report, width: Option<u16>) -> String {
    let width = width.unwrap_or(WIDTH);
    let mut parts = vec![caption(report).join("\n"), main_table(report, width)];
    let others: Vec<&Figure> = report.figures[1..].iter().filter(|f| !f.chart).collect();
    for figures in others.chunks(FIGURES_PER_TABLE) {
        parts.push(other_table(report, figures, width));
    }
    parts.join("\n\n") + "\n"
}

/// The figures that are drawn: a row for each point, and the targets beside
/// each other.
fn main_table(report: &Report, width: u16) -> String {
    let main = &report.figures[0];
    let drawn: Vec<&Figure> = report
        .figures
        .iter()
        .enumerate()
        .filter(|(position, figure)| *position == 0 || figure.chart)
        .map(|(_, figure)| figure)
        .collect();

    let mut table = empty_table(width);
    let mut header = place_header(report);
    for (position, target) in report.targets.iter().enumerate() {
        let name = &target.name;
        header.extend(
            drawn
                .iter()
                .map(|figure| heading(&format!("{name}\n{}", figure.name))),
        );
        if position > 0 {
            header.push(heading(&format!("{name}\nratio")));
        }
    }
    table.set_header(header);

    for point in &report.points {
        let mut row = place(report, point);
        for (position, series) in point.series.iter().enumerate() {
            row.extend(drawn.iter().map(|figure| value(series, figure)));
            if position > 0 {
                row.push(ratio(series, main));
            }
        }
        table.add_row(row);
    }
    finish(table)
}

/// Some of the other figures: a row for each point and target.
fn other_table(report: &Report, figures: &[&Figure], width: u16) -> String {
    let mut table = empty_table(width);
    let mut header = place_header(report);
    header.push(heading("target"));
    header.extend(figures.iter().map(|figure| heading(&figure.name)));
    table.set_header(header);
    for point in &report.points {
        for series in &point.series {
            let mut row = place(report, point);
            row.push(series.target.clone());
            row.extend(figures.iter().map(|figure| value(series, figure)));
            table.add_row(row);
        }
    }
    finish(table)
}

fn empty_table(width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    table
}

fn finish(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Divided between its words, so that it is not much wider than what is below it.
fn heading(name: &str) -> Cell {
    let mut lines = Vec::new();
    for line in name.lines() {
        let mut current = String::new();
        for word in line.split_inclusive('_') {
            if !current.is_empty() && current.len() + word.len() > HEADING_WIDTH {
                lines.push(std::mem::take(&mut current));
            }
            current.push_str(word);
        }
        lines.push(current);
    }
    Cell::new(lines.join("\n")).set_delimiter('_')
}

fn place_header(report: &Report) -> Vec<Cell> {
    let mut header = Vec::new();
    if has_workloads(report) {
        header.push(heading("workload"));
    }
    header.push(heading(&report.axis.name));
    header
}

fn place(report: &Report, point: &Point) -> Vec<String> {
    let mut cells = Vec::new();
    if has_workloads(report) {
        cells.push(point.workload.clone());
    }
    cells.push(point.x.to_string());
    cells
}

/// The median, and how far the runs lie apart if there are several.
fn value(series: &Series, figure: &Figure) -> String {
    let Some(&Summary { median, min, max }) = series.summary.get(&figure.name) else {
        return "-".to_owned();
    };
    let [median, min, max] = [median, min, max].map(|value| figure.format(value));
    if series.runs.len() > 1 {
        format!("{median}\n({min}-{max})")
    } else {
        median
    }
}

fn ratio(series: &Series, figure: &Figure) -> String {
    let Some(&Ratio {
        of_medians,
        min,
        max,
    }) = series.ratio.get(&figure.name)
    else {
        return "-".to_owned();
    };
    let [of_medians, min, max] = [of_medians, min, max].map(format_ratio);
    if series.runs.len() > 1 {
        format!("{of_medians}\n({min}-{max})")
    } else {
        of_medians
    }
}

/// What was measured, on what machine, and what the figures are.
fn caption(report: &Report) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", report.benchmark, report.question)];
    for target in &report.targets {
        let with = match target.preload.join(", ") {
            libraries if libraries.is_empty() => String::new(),
            libraries => format!(", with {libraries}"),
        };
        // "PostgreSQL 15.1 on x86_64-pc-linux-gnu, compiled by ..."
        let version = target
            .server_version
            .split(" on ")
            .next()
            .unwrap_or_default();
        lines.push(format!("{}: {version}{with}", target.name));
    }
    let machine = &report.machine;
    lines.push(format!(
        "on {} x {}, {}, kernel {}",
        machine.cpu_count, machine.cpu_model, machine.os, machine.kernel
    ));
    lines.extend(
        report
            .figures
            .iter()
            .map(|figure| format!("{}: {}", figure.name, figure.label)),
    );
    let runs = report
        .points
        .iter()
        .flat_map(|point| &point.series)
        .map(|series| series.runs.len())
        .max()
        .unwrap_or(0);
    if let [base, _, ..] = &report.targets[..] {
        lines.push(format!(
            "ratio: {}, as a multiple of that of {}",
            report.figures[0].name, base.name
        ));
    }
    if runs > 1 {
        lines.push(format!("medians of {runs} runs (min-max)"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::example;

    #[test]
    fn of_two_targets() {
        insta::assert_snapshot!(table(&example(), None));
    }

    #[test]
    fn on_a_narrow_terminal() {
        insta::assert_snapshot!(table(&example(), Some(80)));
    }

    #[test]
    fn of_one_target_and_one_run() {
        let mut report = example();
        report.targets.truncate(1);
        for point in &mut report.points {
            point.series.truncate(1);
            point.series[0].runs.truncate(1);
        }
        insta::assert_snapshot!(table(&report, None));
    }

    #[test]
    fn of_several_workloads_and_a_target_that_was_not_finished() {
        let mut report = example();
        report.points[0].workload = "unique".to_owned();
        report.points[1].workload = "common".to_owned();
        let unfinished = &mut report.points[1].series[1];
        unfinished.runs.clear();
        unfinished.summary.clear();
        unfinished.ratio.clear();
        insta::assert_snapshot!(table(&report, None));
    }
}
