use super::*;
use crate::report::sample_reports;

fn records(reports: Vec<Report>) -> Records {
    let record = |report: Report| (report.benchmark.clone(), report);
    reports.into_iter().map(record).collect()
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
    let page = render(&records(vec![
        sample_reports::pingpong(),
        sample_reports::decode(),
    ]))
    .unwrap();
    insta::assert_snapshot!(outline(&page));
}

#[test]
fn of_one_target_and_one_run() {
    let page = render(&records(vec![sample_reports::alone()])).unwrap();
    insta::assert_snapshot!(outline(&page));
}

#[test]
fn of_a_measurement_that_ended_before_the_first_run() {
    let mut report = sample_reports::decode();
    report.points.clear();
    report.targets.clear();
    let page = render(&records(vec![report])).unwrap();
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
    let page = render(&records(vec![report])).unwrap();
    assert!(!page.contains("<script"));
    assert!(!page.contains("\"\""), "an attribute was ended early");
    assert!(page.matches("&lt;script&gt;").count() > 20);
}

#[test]
fn nothing_is_loaded() {
    let page = render(&records(sample_reports::all())).unwrap();
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for reference in ["://", " src=", "<link", "<script", "@import", "url("] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let page = render(&records(sample_reports::all())).unwrap();
    let ids = attributes(&page, " id=\"");
    let links = attributes(&page, " href=\"#");
    assert_eq!((ids.len(), &ids), (4, &links));
}
