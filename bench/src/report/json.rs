//! A report for programs, as JSON.

use std::str::Lines;

use super::results::Report;

/// The whole report.
pub fn json(report: &Report) -> serde_json::Result<String> {
    Ok(fold(&serde_json::to_string_pretty(report)?) + "\n")
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

    #[test]
    fn a_series_of_numbers_is_on_one_line() {
        let mut report = sample_reports::commit();
        report.points.truncate(1);
        insta::assert_snapshot!(json(&report).unwrap());
    }

    #[test]
    fn it_can_be_read_back() {
        for report in sample_reports::all() {
            let json = json(&report).unwrap();
            assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        }
    }
}
