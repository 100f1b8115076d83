//! A report for programs.

use std::io::Write;
use std::str::Lines;

use super::results::{Report, ServerRecord};

/// Comma-separated: a line for every single run, with everything that is needed
/// to read it without the other lines, so that files can be put together.
pub fn write_csv(report: &Report, out: impl Write) -> csv::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let mut header = vec!["benchmark", "workload", "axis", "x", "target", "run"];
    header.extend(report.figures.iter().map(|figure| figure.name.as_str()));
    header.extend([
        "complete",
        "date",
        "program_version",
        "server_version",
        "preload",
        "settings",
        "cpu_model",
        "cpu_count",
        "os",
        "kernel",
        "command_line",
    ]);
    writer.write_record(header)?;

    let machine = &report.machine;
    for point in &report.points {
        for (series, target) in point.series.iter().zip(&report.targets) {
            for (position, run) in series.runs.iter().enumerate() {
                let mut line = vec![
                    report.benchmark.clone(),
                    point.workload.clone(),
                    report.axis.name.clone(),
                    point.x.to_string(),
                    series.target.clone(),
                    (position + 1).to_string(),
                ];
                line.extend(report.figures.iter().map(|figure| {
                    run.get(&figure.name)
                        .map(f64::to_string)
                        .unwrap_or_default()
                }));
                line.extend([
                    report.complete.to_string(),
                    report.date.clone(),
                    report.program_version.clone(),
                    target.server_version.clone(),
                    target.preload.join(" "),
                    settings(target),
                    machine.cpu_model.clone(),
                    machine.cpu_count.to_string(),
                    machine.os.clone(),
                    machine.kernel.clone(),
                    report.command_line.join(" "),
                ]);
                writer.write_record(line)?;
            }
        }
    }
    writer.flush()?;
    Ok(())
}

/// The settings of a target in one field.
fn settings(target: &ServerRecord) -> String {
    let settings: Vec<String> = target
        .settings
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    settings.join(" ")
}

/// JSON: the whole report.
pub fn write_json(report: &Report, mut out: impl Write) -> serde_json::Result<()> {
    let json = fold(&serde_json::to_string_pretty(report)?);
    writeln!(out, "{json}").map_err(serde_json::Error::io)
}

/// Puts some values of pretty JSON on one line: those without text in them, like all runs of a
/// series, and objects of single values, like the settings of a server.
/// `bench/measurement.py` does the same.
fn fold(pretty: &str) -> String {
    let mut lines = pretty.lines();
    let first = lines.next().unwrap_or_default();
    fold_value(first, &mut lines).0
}

/// Folds the value that begins with this line. Returns it, and whether it has text in it.
fn fold_value(first: &str, rest: &mut Lines) -> (String, bool) {
    if !opens(first) {
        return (first.to_owned(), first.trim_end_matches(',').ends_with('"'));
    }
    let mut members = Vec::new();
    let (mut has_text, mut has_single_values) = (false, true);
    let last = loop {
        let line = rest.next().expect("each bracket is closed");
        if line.trim_start().starts_with([']', '}']) {
            break line;
        }
        has_single_values &= !opens(line);
        let (member, is_text) = fold_value(line, rest);
        has_text |= is_text;
        members.push(member);
    };
    if has_text && !(first.ends_with('{') && has_single_values) {
        return (format!("{first}\n{}\n{last}", members.join("\n")), true);
    }
    let members: Vec<&str> = members.iter().map(|member| member.trim_start()).collect();
    let last = last.trim_start();
    (format!("{first}{}{last}", members.join(" ")), has_text)
}

/// Whether members follow on the next lines.
fn opens(line: &str) -> bool {
    line.ends_with(['[', '{'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    fn written<E: std::fmt::Debug>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// With a point of two targets, and little else.
    fn report() -> Report {
        let mut report = sample_reports::pingpong();
        report.points.drain(..3);
        for series in &mut report.points[0].series {
            series.runs.truncate(1);
        }
        report
    }

    #[test]
    fn csv() {
        insta::assert_snapshot!(written(|out| write_csv(&report(), out)));
    }

    #[test]
    fn a_series_of_numbers_is_on_one_line() {
        let folded = r#"{
  "name": "a, [b] {",
  "words": [
    "a",
    "}"
  ],
  "none": [],
  "settings": {"fsync": "off", "port": "5432", "preload": []},
  "runs": [{"tps": 1.5, "usec": 1e-7}, {"tps": 2.0, "complete": true}, {}],
  "points": [
    {
      "target": "stock",
      "x": [1, 2]
    }
  ]
}"#;
        let pretty = r#"{
  "name": "a, [b] {",
  "words": [
    "a",
    "}"
  ],
  "none": [],
  "settings": {
    "fsync": "off",
    "port": "5432",
    "preload": []
  },
  "runs": [
    {
      "tps": 1.5,
      "usec": 1e-7
    },
    {
      "tps": 2.0,
      "complete": true
    },
    {}
  ],
  "points": [
    {
      "target": "stock",
      "x": [
        1,
        2
      ]
    }
  ]
}"#;
        assert_eq!(fold(pretty), folded);
    }

    #[test]
    fn json_can_be_read_back() {
        for report in sample_reports::all() {
            let json = written(|out| write_json(&report, out));
            assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        }
    }
}
