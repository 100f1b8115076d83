//! However a run ends, its servers and folders go.

use nix::sys::signal::{Signal, kill};

use crate::harness::{Bench, PLAYER, Running, wait_until};

/// Goes on until something ends it.
const ENDLESS: &str =
    "pingpong --target a=pg_config --target b=pg_config --idle-listeners 3 --duration 1000";

#[test]
fn ctrl_c_in_mid_run() {
    let bench = Bench::new();
    let running = bench.start(ENDLESS);
    bench.wait_for_pingpong("a");
    assert!(!bench.server_processes().is_empty());

    let stderr = bench.assert_stops(running, Signal::SIGINT);
    assert!(stderr.contains("Interrupted"), "{stderr}");
}

#[test]
fn ctrl_c_while_a_cluster_is_made() {
    let bench = Bench::new();
    let running = bench.start(ENDLESS);
    wait_until("a process of initdb runs", || {
        !bench.server_processes().is_empty()
    });
    bench.assert_stops(running, Signal::SIGINT);
}

#[test]
fn sigterm_in_mid_run() {
    let bench = Bench::new();
    let json = bench.result("json");
    let running = bench.start(&format!("{ENDLESS} --json @json"));
    bench.wait_for_pingpong("a");

    bench.assert_stops(running, Signal::SIGTERM);
    assert!(!json.exists(), "an empty file of results was left");
}

#[test]
fn a_server_that_ends_in_mid_run() {
    let bench = Bench::new();
    let running = bench.start(ENDLESS);
    bench.wait_for_pingpong("a");

    // Not SIGKILL, after which the server's shared memory would stay.
    kill(bench.postmaster("a"), Signal::SIGQUIT).unwrap();
    bench.assert_fails(
        running,
        "the server of target \"a\" ended (exit status: 0) in mid-run",
    );
}

#[test]
fn a_session_that_crashes_in_mid_run() {
    let bench = Bench::new();
    let running = bench.start(ENDLESS);
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
    let running = bench.start(&format!("{ENDLESS} --timeout 20"));
    bench.freeze("a", PLAYER);
    bench.assert_fails(
        running,
        "target \"a\": with 3 idle listeners: only 0 of 1 answers came back within 20s",
    );
}

#[test]
fn an_idle_listener_that_is_disconnected() {
    let bench = Bench::new();
    let running = bench.start(
        "pingpong --target a=pg_config --target b=pg_config --idle-listeners 3 --duration 50ms \
         --runs 1000000",
    );
    bench.wait_for_pingpong("a");

    let terminated = bench.query(
        "a",
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE query LIKE '%LISTEN idle_1'",
    );
    assert_eq!(terminated.unwrap(), ["true"]);
    bench.assert_fails(running, "1 of 3 idle sessions lost their connection");
}

/// Waits until a run of each target is finished.
fn wait_for_first_runs(bench: &Bench) {
    let player = bench.wait_for_pingpong("a");
    // Every run has sessions of its own.
    wait_until("the second run begins", || {
        bench.wait_for_pingpong("a") != player
    });
}

/// What has been finished is in the file, and said to be not all.
#[track_caller]
fn assert_partial_results(bench: &Bench, stderr: &str) {
    let report = bench.json();
    assert_eq!(report["complete"], false);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 1);
    for series in points[0]["series"].as_array().unwrap() {
        let runs = series["runs"].as_array().unwrap();
        assert!(runs[0]["round_trips_per_sec"].is_f64(), "{series}");
    }
    assert!(
        stderr.contains("warning: the measurement was stopped before its end"),
        "{stderr}"
    );
}

/// Starts runs that end soon, and more of them than anybody waits for.
fn start_many_runs(bench: &Bench) -> Running {
    bench.start(
        "pingpong --target a=pg_config --target b=pg_config --idle-listeners 0,1 --duration 50ms \
         --runs 1000000 --warmup 0 --json @json",
    )
}

#[test]
fn ctrl_c_keeps_what_is_finished() {
    let bench = Bench::new();
    let running = start_many_runs(&bench);
    wait_for_first_runs(&bench);
    let stderr = bench.assert_stops(running, Signal::SIGINT);
    assert_partial_results(&bench, &stderr);
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
