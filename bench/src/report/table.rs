//! The table on the terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::{PingpongReport, Report};
use crate::pingpong::{Length, Plan, Series};
use crate::stats::Summary;

/// A row for each number of idle listeners, a column for each figure, and above
/// it what was measured on what. No wider than `width` characters, if given.
pub fn render_table(report: &PingpongReport, width: Option<u16>) -> String {
    let mut table = empty_table(width);
    let mut header = vec![heading("idle_listeners")];
    for (position, target) in report.targets.iter().enumerate() {
        let name = &target.name;
        header.push(heading(&format!("{name}\nround_trips_per_sec")));
        header.push(heading(&format!("{name}\nmax_latency_usec")));
        if position > 0 {
            header.push(heading(&format!("{name}\nratio")));
        }
    }
    table.set_header(header);

    for point in &report.results {
        let mut row = vec![point.idle_listeners.to_string()];
        for series in &point.series {
            row.extend(cells(series, report.parameters.runs.get()));
        }
        table.add_row(row);
    }
    align_right(&mut table);
    let mut caption = caption(report);
    caption.push(method(&report.parameters));
    if let [base, _, ..] = &report.targets[..] {
        caption.push(format!("ratio: of the medians, to {}", base.name));
    }
    format!("{}\n\n{}\n", caption.join("\n"), table.trim_fmt())
}

pub fn empty_table(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    table
}

pub fn align_right(table: &mut Table) {
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Divided between its words where the table has to be narrow.
pub fn heading(name: &str) -> Cell {
    Cell::new(name).set_delimiter('_')
}

fn cells(series: &Series, runs: u32) -> impl Iterator<Item = String> {
    let rate = rate(series.round_trips_per_sec, runs);
    let ratio = series.ratio.map(|ratio| format!("{ratio:.2}"));
    [rate, series.max_latency_usec.to_string()]
        .into_iter()
        .chain(ratio)
}

/// The median, and how far the runs lie apart if there are several.
pub fn rate(rate: Summary, runs: u32) -> String {
    if runs > 1 {
        format!("{:.1}\n{}", rate.median, range(rate))
    } else {
        format!("{:.1}", rate.median)
    }
}

fn range(summary: Summary) -> String {
    let digits = if summary.min < 100.0 { 1 } else { 0 };
    format!("({:.digits$}-{:.digits$})", summary.min, summary.max)
}

/// What was measured, and on what machine.
pub fn caption<P, R>(report: &Report<P, R>) -> Vec<String> {
    let mut lines = Vec::new();
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
    lines
}

fn method(plan: &Plan) -> String {
    let length = match plan.length {
        Length::RoundTrips(count) => format!("{count} round trips"),
        Length::Duration(duration) => format!("{} s", duration.as_secs_f64()),
    };
    match plan.runs.get() {
        1 => format!("one run of {length}"),
        runs => format!("median (min-max) and longest round trip of {runs} runs of {length}"),
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;
    use crate::report::tests::example;

    #[test]
    fn of_two_targets() {
        insta::assert_snapshot!(render_table(&example(), None));
    }

    #[test]
    fn on_a_narrow_terminal() {
        insta::assert_snapshot!(render_table(&example(), Some(80)));
    }

    #[test]
    fn of_one_target_and_one_run() {
        let mut report = example();
        report.parameters.runs = NonZeroU32::MIN;
        report.parameters.length = Length::RoundTrips(NonZeroU64::new(500).unwrap());
        report.targets.truncate(1);
        for point in &mut report.results {
            point.series.truncate(1);
        }
        insta::assert_snapshot!(render_table(&report, None));
    }
}
