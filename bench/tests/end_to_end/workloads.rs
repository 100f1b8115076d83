//! The benchmarks `channels`, `listeners`, `idle`, `hub`, `multicast`, `listen`
//! and `overhead`: what they measure, and what becomes of them when something
//! goes wrong.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bench, Running, number, wait_until};

/// Measures with these arguments, and returns the report.
#[track_caller]
fn report(subcommand: &str, arguments: &str) -> Value {
    let bench = Bench::new();
    let output = bench.run(&format!("{subcommand} {arguments} --json @json"));
    bench.assert_succeeded(&output);
    let stdout = String::from_utf8(output.stdout).unwrap();

    let report = bench.json();
    assert_eq!(report["benchmark"], subcommand);
    assert_eq!(report["complete"], true);
    let main_figure = report["figures"][0]["label"].as_str().unwrap();
    assert!(stdout.contains(main_figure), "{stdout}");
    report
}

/// Workload and x of all points.
fn points(report: &Value) -> Vec<(&str, u64)> {
    let points = report["points"].as_array().unwrap().iter();
    points
        .map(|point| {
            let workload = point["workload"].as_str().unwrap();
            (workload, point["x"].as_u64().unwrap())
        })
        .collect()
}

/// All runs of all targets at all points, of which there are so many. Each has
/// all figures.
#[track_caller]
fn runs(report: &Value, count: usize) -> Vec<&Value> {
    let mut runs = Vec::new();
    for point in report["points"].as_array().unwrap() {
        for series in point["series"].as_array().unwrap() {
            runs.extend(series["runs"].as_array().unwrap());
        }
    }
    assert_eq!(runs.len(), count);
    for figure in report["figures"].as_array().unwrap() {
        let name = figure["name"].as_str().unwrap();
        for run in &runs {
            assert!(number(run, name) >= 0.0, "{name}: {run}");
        }
    }
    runs
}

const FEW_TRANSACTIONS: &str = "--transactions 3 --warmup-transactions 1 --runs 2";

#[track_caller]
fn assert_sent(report: &Value, runs_in_all: usize) {
    for run in runs(report, runs_in_all) {
        let commit = number(run, "commit_msec");
        assert!(commit > 0.0, "{run}");
        assert!(commit <= number(run, "commit_p99_msec"), "{run}");
        assert!(commit <= number(run, "transaction_msec"), "{run}");
        assert!(number(run, "all_received_msec") > 0.0, "{run}");
    }
}

#[test]
fn channels_measures_each_number_with_and_without_a_sender_that_listens() {
    let report = report("channels", &format!("{FEW_TRANSACTIONS} --channels 40,1"));
    assert_eq!(
        points(&report),
        [
            ("sender_listens", 1),
            ("others_listen", 1),
            ("sender_listens", 40),
            ("others_listen", 40),
        ]
    );
    assert_sent(&report, 4 * 2 * 2);
    assert_eq!(report["parameters"]["channels"][1], 40);
}

#[test]
fn listeners_measures_each_number() {
    let report = report(
        "listeners",
        &format!("{FEW_TRANSACTIONS} --listeners 1,5 --channels 7"),
    );
    assert_eq!(
        points(&report),
        [
            ("sender_listens", 1),
            ("others_listen", 1),
            ("sender_listens", 5),
            ("others_listen", 5),
        ]
    );
    assert_sent(&report, 4 * 2 * 2);
}

#[test]
fn idle_measures_each_number() {
    let report = report(
        "idle",
        &format!("{FEW_TRANSACTIONS} --idle-sessions 0,6 --channels 7"),
    );
    assert_eq!(report["axis"]["name"], "idle_sessions");
    assert_sent(&report, 4 * 2 * 2);
}

#[test]
fn hub_measures_each_number_of_listeners() {
    let report = report(
        "hub",
        "--listeners 9,1 --transactions 5 --warmup-transactions 1 --runs 2",
    );
    assert_eq!(points(&report), [("", 1), ("", 9)]);
    for run in runs(&report, 2 * 2 * 2) {
        let times =
            ["first", "median", "all"].map(|of| number(run, &format!("{of}_received_msec")));
        assert!(times.is_sorted(), "{run}");
        assert!(number(run, "commit_msec") > 0.0, "{run}");
    }
}

#[test]
fn multicast_measures_each_size_of_the_group() {
    let report = report(
        "multicast",
        // The last group is smaller than the others.
        "--group 1,3 --idle-listeners 10 --duration 0.2 --warmup 0.1 --runs 2",
    );
    assert_eq!(points(&report), [("", 1), ("", 3)]);
    for run in runs(&report, 2 * 2 * 2) {
        assert!(number(run, "round_trips_per_sec") > 0.0, "{run}");
        assert!(
            number(run, "p50_latency_usec") <= number(run, "max_latency_usec"),
            "{run}"
        );
    }
}

#[test]
fn listen_measures_each_workload_with_each_number_of_connections() {
    let report = report(
        "listen",
        "--workload listen_notify_common,listen_unlisten_unique --connections 5,1 --jobs 2 \
         --duration 1 --warmup 0 --runs 1",
    );
    assert_eq!(
        points(&report),
        [
            ("listen_notify_common", 1),
            ("listen_unlisten_unique", 1),
            ("listen_notify_common", 5),
            ("listen_unlisten_unique", 5),
        ]
    );
    let workloads = &report["parameters"]["workload"];
    assert_eq!(workloads[1], "listen_unlisten_unique");
    for run in runs(&report, 4 * 2) {
        assert!(number(run, "transactions_per_sec") > 0.0, "{run}");
    }
}

#[test]
fn overhead_measures_sessions_that_listen_and_that_do_not() {
    let report = report(
        "overhead",
        "--connections 2 --duration 1 --warmup 1 --runs 1",
    );
    assert_eq!(
        points(&report),
        [("select_only", 2), ("select_only_listening", 2)]
    );
    for run in runs(&report, 2 * 2) {
        assert!(number(run, "transactions_per_sec") > 0.0, "{run}");
    }
}

/// What the sessions do is up to a script with a condition in it, so it has to be seen.
#[test]
fn the_sessions_of_overhead_listen_where_they_should() {
    for (workload, listening) in [("select_only", "0"), ("select_only_listening", "3")] {
        let bench = Bench::new();
        let running = bench.start(&format!(
            "overhead --target a=pg_config,preload=pg_pinpoint,extension=pg_pinpoint \
             --workload {workload} --connections 3 --duration 1000 --warmup 0"
        ));
        let count = |of: &str| {
            let sql = format!("SELECT count(*)::text FROM {of}");
            bench.query("a", &sql).and_then(|mut counts| counts.pop())
        };
        wait_until("the sessions look up rows", || {
            count("pg_stat_activity WHERE query LIKE 'SELECT abalance%'").as_deref() == Some("3")
        });
        assert_eq!(count("pinpoint.stat_listeners").unwrap(), listening);
        bench.assert_stops(running, Signal::SIGINT);
    }
}

/// Goes on until something ends it, with ten listeners or so.
fn start_endless(bench: &Bench, subcommand: &str) -> Running {
    let arguments = match subcommand {
        "hub" => "--listeners=10 --transactions=1000000000",
        "multicast" => "--group=4,5 --idle-listeners=6 --duration=1000",
        "channels" => "--channels=10 --transactions=1000000000",
        "idle" => "--idle-sessions=10 --channels=10 --runs=1000000",
        other => panic!("{other}"),
    };
    let running = bench.start(&format!(
        "{subcommand} {arguments} --target a=pg_config --timeout 20"
    ));
    let senders = "SELECT pid::text FROM pg_stat_activity WHERE query ~ '^(NOTIFY|COMMIT)'";
    wait_until("notifications are sent", || {
        bench
            .query("a", senders)
            .is_some_and(|senders| !senders.is_empty())
    });
    running
}

#[test]
fn a_listener_that_is_terminated_ends_the_run_at_once() {
    let bench = Bench::new();
    let running = start_endless(&bench, "hub");
    let terminated = bench.query(
        "a",
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
         WHERE query = 'LISTEN channel_1;' LIMIT 1",
    );
    assert_eq!(terminated.unwrap(), ["true"]);
    bench.assert_fails(running, "with 10 listeners: a listener failed");
}

#[test]
fn a_notification_that_does_not_arrive() {
    let bench = Bench::new();
    let running = start_endless(&bench, "hub");
    bench.freeze(
        "a",
        "SELECT pid::text FROM pg_stat_activity WHERE query = 'LISTEN channel_1;' LIMIT 1",
    );
    bench.assert_fails(
        running,
        "with 10 listeners: only 9 of 10 listeners had received all notifications after 20s",
    );
}

#[test]
fn a_notification_that_nobody_sent() {
    for (subcommand, notify, message) in [
        (
            "hub",
            "NOTIFY channel_1",
            "a listener received a notification that had not been sent",
        ),
        (
            "channels",
            "NOTIFY channel_1",
            "the sender received 1 notifications that it had not sent",
        ),
        (
            "multicast",
            "NOTIFY ping, 'x'",
            "an answer to round trip x came back in round trip",
        ),
    ] {
        let bench = Bench::new();
        let running = start_endless(&bench, subcommand);
        bench.query("a", notify).unwrap();
        bench.assert_fails(running, message);
    }
}

#[test]
fn an_answer_that_does_not_come() {
    let bench = Bench::new();
    let running = start_endless(&bench, "multicast");
    bench.freeze(
        "a",
        "SELECT pid::text FROM pg_stat_activity WHERE query LIKE 'NOTIFY ping,%' LIMIT 1",
    );
    bench.assert_fails(running, "only 3 of 4 answers came back within 20s");
}

#[test]
fn an_idle_session_that_is_disconnected() {
    let bench = Bench::new();
    let running = start_endless(&bench, "idle");
    let terminated = bench.query(
        "a",
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
         WHERE application_name = 'pinpoint-bench' AND query = '' \
         ORDER BY backend_start LIMIT 1",
    );
    assert_eq!(terminated.unwrap(), ["true"]);
    bench.assert_fails(running, "1 of 10 idle sessions lost their connection");
}
