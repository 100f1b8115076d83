//! However a run ends, its servers and folders go.

use std::fs;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::harness::{Bench, PLAYER, Running, wait_until};

/// Goes on until something ends it.
const ENDLESS: [&str; 8] = [
    "--target",
    "a=pg_config",
    "--target",
    "b=pg_config",
    "--idle-listeners",
    "3",
    "--duration",
    "1000",
];

#[test]
fn ctrl_c_in_mid_run() {
    let bench = Bench::new();
    let running = bench.start(&ENDLESS);
    bench.wait_for_pingpong("a");
    assert!(!bench.server_processes().is_empty());

    running.signal(Signal::SIGINT);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("Interrupted"), "{stderr}");
    bench.assert_nothing_left();
}

#[test]
fn ctrl_c_while_a_cluster_is_made() {
    let bench = Bench::new();
    let running = bench.start(&ENDLESS);
    wait_until("a process of initdb runs", || {
        !bench.server_processes().is_empty()
    });
    running.signal(Signal::SIGINT);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(130), "{stderr}");
    bench.assert_nothing_left();
}

#[test]
fn sigterm_in_mid_run() {
    let bench = Bench::new();
    let json = bench.result("json");
    let arguments = [&ENDLESS[..], &["--json", json.to_str().unwrap()]].concat();
    let running = bench.start(&arguments);
    bench.wait_for_pingpong("a");

    running.signal(Signal::SIGTERM);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(143), "{stderr}");
    assert!(!json.exists(), "an empty file of results was left");
    bench.assert_nothing_left();
}

#[test]
fn a_server_that_ends_in_mid_run() {
    let bench = Bench::new();
    let running = bench.start(&ENDLESS);
    bench.wait_for_pingpong("a");

    // Not SIGKILL, after which the server's shared memory would stay.
    kill(bench.postmaster("a"), Signal::SIGQUIT).unwrap();
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("the server of target \"a\" ended (exit status: 0) in mid-run"),
        "{stderr}"
    );
    bench.assert_nothing_left();
}

#[test]
fn a_session_that_crashes_in_mid_run() {
    let bench = Bench::new();
    let running = bench.start(&ENDLESS);
    let player = bench.wait_for_pingpong("a");

    kill(player, Signal::SIGSEGV).unwrap();
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("the server of target \"a\" ended")
            && stderr.contains("was terminated by signal 11"),
        "{stderr}"
    );
    bench.assert_nothing_left();
}

#[test]
fn a_session_that_does_not_answer() {
    let bench = Bench::new();
    let running = bench.start(&[&ENDLESS[..], &["--timeout", "20"]].concat());
    bench.freeze("a", PLAYER);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains(
            "target \"a\": with 3 idle listeners: only 0 of 1 answers came back within 20s"
        ),
        "{stderr}"
    );
    bench.assert_nothing_left();
}

#[test]
fn an_idle_listener_that_is_disconnected() {
    let bench = Bench::new();
    let arguments = [
        &ENDLESS[..6],
        &["--round-trips", "200", "--runs", "1000000"],
    ]
    .concat();
    let running = bench.start(&arguments);
    bench.wait_for_pingpong("a");

    let terminated = bench.query(
        "a",
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE query LIKE '%LISTEN idle_1'",
    );
    assert_eq!(terminated.unwrap(), ["true"]);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("1 of 3 idle sessions lost their connection"),
        "{stderr}"
    );
    bench.assert_nothing_left();
}

/// Runs that end soon, and more of them than anybody waits for.
const MANY_RUNS: [&str; 10] = [
    "--target",
    "a=pg_config",
    "--target",
    "b=pg_config",
    "--idle-listeners",
    "0,1",
    "--round-trips",
    "50",
    "--runs",
    "1000000",
];

/// Waits until a run of each target is finished.
fn wait_for_first_runs(bench: &Bench) {
    let player = bench.wait_for_pingpong("a");
    // Every run has sessions of its own.
    wait_until("the second run begins", || {
        bench.wait_for_pingpong("a") != player
    });
}

/// What has been finished is in the files, and said to be not all.
#[track_caller]
fn assert_partial_results(bench: &Bench, stderr: &str) {
    let report: Value = serde_json::from_slice(&fs::read(bench.result("json")).unwrap()).unwrap();
    assert_eq!(report["complete"], false);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 1);
    for series in points[0]["series"].as_array().unwrap() {
        let runs = series["runs"].as_array().unwrap();
        assert!(runs[0]["round_trips_per_sec"].is_f64(), "{series}");
    }
    let csv = fs::read_to_string(bench.result("csv")).unwrap();
    assert!(csv.lines().count() >= 3, "{csv}");
    assert!(
        stderr.contains("warning: the measurement was stopped before its end"),
        "{stderr}"
    );
}

fn start_many_runs(bench: &Bench) -> Running {
    let (csv, json) = (bench.result("csv"), bench.result("json"));
    let files = [
        "--warmup",
        "0",
        "--csv",
        csv.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ];
    bench.start(&[&MANY_RUNS[..], &files].concat())
}

#[test]
fn ctrl_c_keeps_what_is_finished() {
    let bench = Bench::new();
    let running = start_many_runs(&bench);
    wait_for_first_runs(&bench);
    running.signal(Signal::SIGINT);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(130), "{stderr}");
    assert_partial_results(&bench, &stderr);
    bench.assert_nothing_left();
}

#[test]
fn a_server_that_ends_leaves_what_was_finished_before() {
    let bench = Bench::new();
    let running = start_many_runs(&bench);
    wait_for_first_runs(&bench);
    kill(bench.postmaster("b"), Signal::SIGQUIT).unwrap();
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert_partial_results(&bench, &stderr);
    assert!(
        stderr.contains("error: the server of target \"b\" ended"),
        "{stderr}"
    );
    bench.assert_nothing_left();
}
