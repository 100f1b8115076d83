//! `all`: what becomes of it when one benchmark fails, and when it is stopped.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bench, wait_until};

#[test]
fn a_benchmark_that_fails_does_not_keep_the_others_from_being_made() {
    let bench = Bench::new();
    let folder = bench.result("all");
    let output = bench.run("all --output @all --target a=pg_config,preload=no_such_library");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for name in ["pingpong", "commit", "notify"] {
        assert!(
            stderr.contains(&format!("error: {name}: the library \"no_such_library\"")),
            "{stderr}"
        );
    }
    assert!(
        stderr.contains(
            "left out: standby cannot measure the target \"a\", as LISTEN on a standby needs"
        ),
        "{stderr}"
    );
    assert!(
        stderr.contains("error: not everything could be measured: pingpong, "),
        "{stderr}"
    );
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    bench.assert_nothing_left();
}

#[test]
fn ctrl_c_keeps_what_is_finished() {
    let bench = Bench::new();
    let folder = bench.result("all");
    let running = bench.start("all --output @all --target a=pg_config");
    let player = bench.wait_for_pingpong("a");
    wait_until("the second run begins", || {
        bench.wait_for_pingpong("a") != player
    });
    bench.assert_stops(running, Signal::SIGINT);

    let report = fs::read(folder.join("pingpong.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["complete"], false);
    assert!(folder.join("index.html").is_file());
    assert!(!folder.join("commit.json").exists());
}

#[test]
fn a_folder_that_cannot_be_made() {
    let bench = Bench::new();
    let output = bench.run("all --output /proc/results");
    bench.assert_failed(
        &output,
        "could not make the folder /proc/results: name another with --output",
    );
}
