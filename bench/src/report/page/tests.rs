use std::collections::HashSet;

use super::*;
use crate::report::sample_reports;

fn entries(reports: Vec<Report>) -> Vec<Entry> {
    let entry = |report: Report| Entry {
        name: report.benchmark.clone(),
        report,
    };
    reports.into_iter().map(entry).collect()
}

/// Without what has tests of its own, and a line for each element.
fn outline(page: &str) -> String {
    let mut rest = page;
    let mut outline = String::new();
    for (start, end) in [("<style>", "</style>")]
        .iter()
        .chain([("<svg", "</svg>")].iter().cycle())
    {
        let Some((before, after)) = rest.split_once(start) else {
            break;
        };
        outline.push_str(before);
        outline.push_str(&format!("{start}..."));
        rest = after.split_once(end).unwrap().1;
    }
    (outline + rest).replace("><", ">\n<")
}

fn attributes<'a>(page: &'a str, start: &str) -> Vec<&'a str> {
    let parts = page.split(start).skip(1);
    parts
        .filter_map(|part| Some(part.split_once('"')?.0))
        .collect()
}

#[test]
fn of_two_reports() {
    let page = render(&entries(vec![
        sample_reports::pingpong(),
        sample_reports::decode(),
    ]))
    .unwrap();
    insta::assert_snapshot!(outline(&page));
}

#[test]
fn of_one_target_and_one_run() {
    let page = render(&entries(vec![sample_reports::alone()])).unwrap();
    insta::assert_snapshot!(outline(&page));
}

/// A server against itself, too few pairs, and pairs that disagree.
#[test]
fn without_a_verdict_there_is_no_colour() {
    let page = render(&entries(vec![sample_reports::drift()])).unwrap();
    let classes = attributes(&page, " class=\"");
    for word in ["better", "worse"] {
        assert!(!classes.iter().any(|class| class.contains(word)), "{word}");
    }
    assert!(!page.contains("faster") && !page.contains("slower"));
    let page = render(&entries(vec![sample_reports::pingpong()])).unwrap();
    assert!(attributes(&page, " class=\"").contains(&"number better"));
}

#[test]
fn of_a_measurement_that_ended_before_the_first_run() {
    let mut report = sample_reports::decode();
    report.points.clear();
    report.targets.clear();
    let page = render(&entries(vec![report])).unwrap();
    assert!(page.contains("Nothing was measured."));
}

#[test]
fn names_are_data() {
    let hostile = "</style><script>alert('&amp;')</script>\"";
    let mut report = sample_reports::pingpong();
    report.benchmark = hostile.to_owned();
    report.question = hostile.to_owned();
    report.method = vec![hostile.to_owned()];
    report.program_version = hostile.to_owned();
    report.command_line = vec![hostile.to_owned()];
    report.date = hostile.to_owned();
    report.machine.cpu_model = hostile.to_owned();
    report.parameters = serde_json::json!({hostile: hostile, "list": [hostile]});
    report.axis.label = hostile.to_owned();
    report.warnings = vec![hostile.to_owned()];
    for figure in &mut report.figures {
        figure.label = hostile.to_owned();
    }
    for target in &mut report.targets {
        target.server_version = hostile.to_owned();
        target
            .settings
            .insert(hostile.to_owned(), hostile.to_owned());
    }
    for point in &mut report.points {
        point.workload = hostile.to_owned();
    }
    let page = render(&entries(vec![report])).unwrap();
    assert!(!page.contains("<script"));
    assert!(!page.contains("\"\""), "an attribute was ended early");
    assert!(page.matches("&lt;script&gt;").count() > 20);
}

#[test]
fn nothing_is_loaded() {
    let page = render(&entries(sample_reports::all())).unwrap();
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for reference in ["://", " src=", "<link", "<script", "@import", "url("] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut reports = entries(sample_reports::all());
    for (entry, name) in reports.iter_mut().zip(["a b", "a-b", "contents", "\"é\""]) {
        entry.name = name.to_owned();
    }
    let page = render(&reports).unwrap();
    let ids = attributes(&page, " id=\"");
    let unique: HashSet<_> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "{ids:?}");
    let links = attributes(&page, " href=\"#");
    assert!(links.len() > reports.len());
    for link in links {
        assert!(unique.contains(link), "{link}");
    }
}

#[test]
fn the_subject_names_each_thing_once() {
    let report = sample_reports::pingpong();
    let mut other = sample_reports::decode();
    other.targets[1].server_version = "PostgreSQL 18.4 (Debian 18.4-1) on x86_64".to_owned();
    assert_eq!(
        subject(&entries(vec![report, other])),
        "stock, pinpoint, PostgreSQL 15.20, PostgreSQL 18.4, Example CPU, 2026-11-22"
    );
}

#[test]
fn a_command_line_can_be_typed() {
    let arguments = ["pinpoint-bench", "pingpong", "--target", "a=b,c='d e'", ""];
    assert_eq!(
        command_line(&arguments.map(str::to_owned)),
        r"pinpoint-bench pingpong --target 'a=b,c='\''d e'\''' ''"
    );
}
