//! The tables on the terminal, one for each figure that is drawn.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::number_format;
use super::results::{Figure, Point, Ratio, Report, ServerRecord, Summary};
use super::sentences;

/// Where there is no terminal that says how wide it is.
const WIDTH: u16 = 80;

/// For people, no wider than `width` characters: what was measured on what, the
/// tables, and what they come to. With `details`, also the figures that are not drawn.
pub fn table(report: &Report, width: Option<u16>, details: bool) -> String {
    let width = width.unwrap_or(WIDTH);
    let mut parts = vec![caption(report).join("\n")];
    for workload in report.workloads() {
        for (position, figure) in report.figures.iter().enumerate() {
            let is_shown = position == 0 || figure.chart || details;
            if !is_shown || !report.has(figure, workload) {
                continue;
            }
            // More than one comparison is too wide for a terminal.
            let mut compared: Vec<Option<&str>> = report.compared().map(Some).collect();
            if compared.is_empty() {
                compared.push(None);
            }
            for target in compared {
                parts.push(figure_table(report, figure, workload, target, width));
            }
        }
    }
    parts.extend(
        sentences::closing(report)
            .iter()
            .map(|text| wrapped(text, width)),
    );
    parts.join("\n\n") + "\n"
}

/// A row for each point: the baseline, the target that is compared, and the ratio.
fn figure_table(
    report: &Report,
    figure: &Figure,
    workload: &str,
    compared: Option<&str>,
    width: u16,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    let baseline = report.baseline().unwrap_or_default();
    let mut header = vec![report.axis.label.clone(), baseline.to_owned()];
    if let Some(target) = compared {
        header.extend([target.to_owned(), format!("{target} / {baseline}")]);
    }
    table.set_header(header);
    for point in report.points_of(workload) {
        let mut row = vec![
            number_format::whole(point.x as f64),
            value(figure, point, baseline),
        ];
        if let Some(target) = compared {
            row.extend([value(figure, point, target), ratio(figure, point, target)]);
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }

    let mut title = figure.label.clone();
    if !workload.is_empty() {
        title = format!("{workload}: {title}");
    }
    format!("{}\n{}", wrapped(&title, width), table.trim_fmt())
}

fn value(figure: &Figure, point: &Point, target: &str) -> String {
    let series = point.of_target(target);
    match series.and_then(|series| series.summary.get(&figure.name)) {
        Some(&Summary { median, min, max }) => {
            with_range([median, min, max], |v| number_format::of_figure(figure, v))
        }
        None => "-".to_owned(),
    }
}

fn ratio(figure: &Figure, point: &Point, target: &str) -> String {
    let series = point.of_target(target);
    match series.map(|series| series.ratio.get(&figure.name)) {
        Some(Some(&Ratio {
            median, min, max, ..
        })) => with_range([median, min, max], number_format::ratio),
        Some(None) => "no ratio".to_owned(),
        None => "-".to_owned(),
    }
}

/// The median, and below it how far the runs lie apart, if there are several.
fn with_range([median, min, max]: [f64; 3], format: impl Fn(f64) -> String) -> String {
    let shown = format(median);
    if min < max {
        format!("{shown}\n({}-{})", format(min), format(max))
    } else {
        shown
    }
}

/// Divided between words so that no line is longer than `width`.
fn wrapped(text: &str, width: u16) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= usize::from(width) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// What was measured, and on what.
fn caption(report: &Report) -> Vec<String> {
    let mut lines = vec![wrapped(
        &format!("{}: {}", report.benchmark, report.question),
        WIDTH,
    )];
    lines.extend(report.targets.iter().map(who));
    let machine = &report.machine;
    lines.push(format!(
        "on {} x {}, {}, kernel {}",
        machine.cpu_count, machine.cpu_model, machine.os, machine.kernel
    ));
    let series = report.points.iter().flat_map(|point| &point.series);
    let runs = series.map(|series| series.runs.len()).max().unwrap_or(0);
    if runs > 1 {
        lines.push(format!(
            "medians of {runs} runs (min-max); ratios are medians of paired runs"
        ));
    }
    lines
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
    fn all_samples_fit_a_terminal() {
        for (report, details) in sample_reports::all()
            .iter()
            .zip([false, true, false, false])
        {
            let text = table(report, None, details);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
            insta::assert_snapshot!(report.benchmark.clone(), text);
        }
    }

    #[test]
    fn of_one_target_and_one_run() {
        let report = sample_reports::alone();
        insta::assert_snapshot!(table(&report, None, false));
    }
}
