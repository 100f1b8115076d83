//! What becomes of results: a page, and an exit code.

use std::fs;
use std::process::{Command, Output};

use crate::harness::Bench;

/// The exit code, and what standard error says.
fn outcome(output: Output) -> (Option<i32>, String) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

fn report(bench: &Bench, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
        .arg("report")
        .arg(bench.result(""))
        .args(arguments)
        .output()
        .unwrap();
    outcome(output)
}

#[test]
fn a_measurement_and_its_page_with_conditions() {
    let bench = Bench::new();
    let output = bench.run(
        "pingpong --target a=pg_config --target b=pg_config --idle-listeners 0,2 \
         --round-trips 20 --warmup 0 --runs 1 --json @pingpong.json",
    );
    let (code, stderr) = outcome(output);
    assert_eq!(code, Some(0), "{stderr}");
    bench.assert_nothing_left();

    let (code, stderr) = report(&bench, &["--assert", "pingpong.ratio@2>0"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("pass  pingpong.ratio@2 = "), "{stderr}");
    let (code, stderr) = report(&bench, &["--assert", "pingpong.ratio@2<0"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("FAIL  pingpong.ratio@2 = "), "{stderr}");
    let (code, stderr) = report(&bench, &["--assert", "pingpong.tps@2>0"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("there is no figure \"tps\""), "{stderr}");
    let page = fs::read_to_string(bench.result("index.html")).unwrap();
    assert!(page.contains("<h2 id=\"pingpong\">pingpong</h2>"));
    for name in ["svg", "png"] {
        let chart = bench.result(&format!("pingpong-round_trips_per_sec.{name}"));
        assert!(chart.exists(), "{}", chart.display());
    }
}

#[test]
fn a_folder_without_results() {
    let bench = Bench::new();
    let (code, stderr) = report(&bench, &[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("error: there is no report in "), "{stderr}");
    assert!(!bench.result("index.html").exists());
}
