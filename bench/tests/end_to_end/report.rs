//! What becomes of results: a page.

use std::fs;
use std::process::{Command, Output};

use crate::harness::Bench;

/// The exit code, and what standard error says.
fn outcome(output: Output) -> (Option<i32>, String) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

fn report(bench: &Bench) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
        .arg("report")
        .arg(bench.result(""))
        .output()
        .unwrap();
    outcome(output)
}

#[test]
fn a_measurement_and_its_page() {
    let bench = Bench::new();
    let output = bench.run(
        "pingpong --target a=pg_config --target b=pg_config --idle-listeners 0,2 \
         --duration 50ms --warmup 0 --runs 1 --json @pingpong.json",
    );
    let (code, stderr) = outcome(output);
    assert_eq!(code, Some(0), "{stderr}");
    bench.assert_nothing_left();

    let (code, stderr) = report(&bench);
    assert_eq!(code, Some(0), "{stderr}");
    let page = fs::read_to_string(bench.result("index.html")).unwrap();
    assert!(page.contains("<h2 id=\"report-0\">pingpong</h2>"));
    assert!(page.contains("<svg "));
}

#[test]
fn a_folder_without_results() {
    let bench = Bench::new();
    let (code, stderr) = report(&bench);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("error: there is no report in "), "{stderr}");
    assert!(!bench.result("index.html").exists());
}
