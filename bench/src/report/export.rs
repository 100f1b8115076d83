//! Results for programs.

use std::io::Write;

use serde::Serialize;

use super::{PingpongReport, TargetRecord};

/// Tab-separated: the figures of the table, a line for each number of idle listeners.
pub fn write_tsv(report: &PingpongReport, out: impl Write) -> csv::Result<()> {
    let mut writer = csv::WriterBuilder::new().delimiter(b'\t').from_writer(out);

    let mut header = vec!["idle_listeners".to_owned()];
    for (position, target) in report.targets.iter().enumerate() {
        let name = &target.name;
        header.push(format!("{name}_round_trips_per_sec"));
        header.push(format!("{name}_round_trips_per_sec_min"));
        header.push(format!("{name}_round_trips_per_sec_max"));
        header.push(format!("{name}_max_latency_usec"));
        if position > 0 {
            header.push(format!("{name}_ratio"));
        }
    }
    writer.write_record(header)?;

    for point in &report.results {
        let mut row = vec![point.idle_listeners.to_string()];
        for series in &point.series {
            let rate = series.round_trips_per_sec;
            row.extend([rate.median, rate.min, rate.max].map(|rate| format!("{rate:.1}")));
            row.push(series.max_latency_usec.to_string());
            row.extend(series.ratio.map(|ratio| format!("{ratio:.3}")));
        }
        writer.write_record(row)?;
    }
    writer.flush()?;
    Ok(())
}

/// A line of the CSV: one run, with everything that is needed to read it
/// without the other lines, so that files can be put together.
#[derive(Serialize)]
struct CsvLine<'a> {
    benchmark: &'a str,
    target: &'a str,
    idle_listeners: u32,
    run: usize,
    round_trips: u64,
    seconds: f64,
    round_trips_per_sec: f64,
    p50_latency_usec: u64,
    p99_latency_usec: u64,
    max_latency_usec: u64,
    date: &'a str,
    server_version: &'a str,
    preload: String,
    settings: String,
    cpu_model: &'a str,
    cpu_count: usize,
    os: &'a str,
    kernel: &'a str,
    command_line: String,
}

/// Comma-separated: a line for every single run.
pub fn write_csv(report: &PingpongReport, out: impl Write) -> csv::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let command_line = report.command_line.join(" ");
    for point in &report.results {
        for (series, target) in point.series.iter().zip(&report.targets) {
            for (position, run) in series.runs.iter().enumerate() {
                writer.serialize(CsvLine {
                    benchmark: report.benchmark,
                    target: &series.target,
                    idle_listeners: point.idle_listeners,
                    run: position + 1,
                    round_trips: run.round_trips,
                    seconds: run.seconds,
                    round_trips_per_sec: run.round_trips_per_sec,
                    p50_latency_usec: run.p50_latency_usec,
                    p99_latency_usec: run.p99_latency_usec,
                    max_latency_usec: run.max_latency_usec,
                    date: &report.date,
                    server_version: &target.server_version,
                    preload: target.preload.join(" "),
                    settings: settings(target),
                    cpu_model: &report.machine.cpu_model,
                    cpu_count: report.machine.cpu_count,
                    os: &report.machine.os,
                    kernel: &report.machine.kernel,
                    command_line: command_line.clone(),
                })?;
            }
        }
    }
    writer.flush()?;
    Ok(())
}

/// The settings of a target in one field.
pub fn settings(target: &TargetRecord) -> String {
    let settings: Vec<String> = target
        .settings
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    settings.join(" ")
}

/// JSON: the whole report.
pub fn write_json(report: &impl Serialize, mut out: impl Write) -> serde_json::Result<()> {
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out).map_err(serde_json::Error::io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    fn written<E: std::fmt::Debug>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn tsv() {
        insta::assert_snapshot!(written(|out| write_tsv(&example(), out)));
    }

    #[test]
    fn csv() {
        insta::assert_snapshot!(written(|out| write_csv(&example(), out)));
    }

    #[test]
    fn json() {
        let mut report = example();
        report.results.truncate(1);
        insta::assert_snapshot!(written(|out| write_json(&report, out)));
    }
}
