//! The benchmark `standby`: what it measures, and what becomes of it when something
//! goes wrong.

use nix::sys::signal::{Signal, kill};

use crate::harness::{Bench, Running, wait_until};

#[test]
fn standby_measures_both_places_and_what_it_costs() {
    let bench = Bench::new();
    let report = bench.report(
        // With a few transactions, as on a disk that is slow, WAL has other things in it.
        "standby --writers=2,0 --duration=1 --warmup=0 --runs=2 --setting=fsync=off",
    );
    assert_eq!(report["benchmark"], "standby");
    assert_eq!(report["complete"], true);
    for (target, value) in [(0, "off"), (1, "on")] {
        let settings = &report["targets"][target]["settings"];
        assert_eq!(settings["pinpoint.replicate"], value);
    }
    let points = report["points"].as_array().unwrap();
    let places: Vec<_> = points.iter().map(|point| point["x"].as_u64()).collect();
    assert_eq!(places, [Some(0), Some(2)]);
    for point in points {
        for (target, name) in [(0, "replicate-off"), (1, "replicate-on")] {
            let series = &point["series"][target];
            assert_eq!(series["target"], name);
            let runs = series["runs"].as_array().unwrap();
            assert_eq!(runs.len(), 2);
            for run in runs {
                let is_there = |figure: &str| run[figure].as_f64().is_some_and(|f| f > 0.0);
                for figure in ["primary_p50_usec", "row_visible_p50_usec", "probes"] {
                    assert!(is_there(figure), "{figure}: {run}");
                }
                let replicates = target == 1;
                for figure in ["standby_p50_usec", "standby_to_row_visible"] {
                    assert_eq!(is_there(figure), replicates, "{figure}: {run}");
                }
                let has_writers = point["x"] == 2;
                for figure in ["transactions_per_sec", "wal_bytes_per_transaction"] {
                    assert_eq!(is_there(figure), has_writers, "{figure}: {run}");
                }
            }
        }
    }
    // A payload of 32 bytes travels.
    let wal = &points[1]["series"][1]["ratio"]["wal_bytes_per_transaction"];
    assert!(wal["min"].as_f64().unwrap() > 1.2, "{wal}");
}

#[track_caller]
fn assert_refused(arguments: &str, message: &str) {
    let bench = Bench::new();
    let output = bench.run(&format!("standby {arguments}"));
    bench.assert_failed(&output, message);
}

#[test]
fn what_cannot_have_a_standby_that_listens() {
    assert_refused(
        "--target a=pg_config",
        "standby cannot measure the target \"a\", as LISTEN on a standby needs \
         pg_pinpoint: add preload=pg_pinpoint,extension=pg_pinpoint to it",
    );
    assert_refused(
        "--url postgresql://nowhere/postgres",
        "standby cannot measure a running server, as it makes a standby: leave out --url",
    );
    assert_refused(
        "--target a=pg_config,preload=pg_pinpoint,extension=pg_pinpoint,max_wal_senders=0",
        "pg_basebackup failed for target \"a-standby\"",
    );
}

/// Goes on until something ends it.
fn start_endless(bench: &Bench) -> Running {
    let running = bench.start(
        "standby \
         --target a=pg_config,preload=pg_pinpoint,extension=pg_pinpoint,pinpoint.replicate=on \
         --writers=1 --duration=1000 --warmup=0",
    );
    let probes = "SELECT pid::text FROM pg_stat_activity WHERE query LIKE 'BEGIN; INSERT INTO%'";
    wait_until("a probe is sent", || {
        bench
            .query("a", probes)
            .is_some_and(|probes| !probes.is_empty())
    });
    running
}

#[test]
fn an_interrupt_stops_the_standby_too() {
    let bench = Bench::new();
    let running = start_endless(&bench);
    bench.assert_stops(running, Signal::SIGINT);
}

#[test]
fn a_standby_that_ends_is_named() {
    let bench = Bench::new();
    let running = start_endless(&bench);
    kill(bench.postmaster("a-standby"), Signal::SIGQUIT).unwrap();
    bench.assert_fails(running, "the server of target \"a-standby\" ended");
}

#[test]
fn a_session_on_the_standby_that_is_terminated() {
    for (query, message) in [
        ("LISTEN %", "with 1 writers: notify load: a listener failed"),
        (
            "SELECT EXISTS %",
            "with 1 writers: notify load: the session that looks for the rows on the standby failed",
        ),
    ] {
        let bench = Bench::new();
        let running = start_endless(&bench);
        let terminate = format!(
            "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE query LIKE '{query}'"
        );
        wait_until("the session is there", || {
            bench.query("a-standby", &terminate) == Some(vec!["true".to_owned()])
        });
        bench.assert_fails(running, message);
    }
}
