//! The benchmarks `commit` and `notify`: what they measure and write, and what
//! becomes of them when something goes wrong.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bench, number, wait_until};

/// The least that can be measured.
const SHORT: &str = "--duration 1 --warmup 0 --runs 1";

/// Goes on until something ends it.
const ENDLESS: &str = "--target a=pg_config --duration 1000 --warmup 0";

/// There was a load, and the probes arrived.
#[track_caller]
fn assert_measured(run: &Value) {
    assert!(number(run, "notify_tps") > 0.0, "{run}");
    assert!(number(run, "from_due_p50_usec") > 0.0, "{run}");
    assert!(
        number(run, "from_due_p50_usec") <= number(run, "from_due_max_usec"),
        "{run}"
    );
}

#[test]
fn commit_compares_stock_and_pinpoint_with_and_without_notify() {
    let bench = Bench::new();
    let report = bench.report(&format!("commit {SHORT} --writers 2"));
    assert_eq!(report["benchmark"], "commit");
    for target in [0, 1] {
        assert_eq!(report["targets"][target]["settings"]["fsync"], "on");
    }

    let point = &report["points"][0];
    assert_eq!(point["x"], 2);
    let series = point["series"].as_array().unwrap();
    for (series, name) in series.iter().zip(["stock", "pinpoint"]) {
        assert_eq!(series["target"], name);
        let run = &series["runs"][0];
        assert_measured(run);
        let share = number(run, "notify_tps") / number(run, "plain_tps");
        assert_eq!(number(run, "notify_to_plain"), share);
    }
    let tps = |series: usize| number(&point["series"][series]["summary"]["notify_tps"], "median");
    let ratio = &point["series"][1]["ratio"]["notify_tps"];
    assert_eq!(number(ratio, "median"), tps(1) / tps(0));
}

#[test]
fn notify_measures_each_number_of_senders() {
    let bench = Bench::new();
    let output = bench.run(
        "notify --duration 1 --warmup 1 --runs 2 --senders 2,1 \
         --target a=pg_config --json @json",
    );
    bench.assert_succeeded(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    for name in ["senders", "transactions per second"] {
        assert!(stdout.contains(name), "no {name} in\n{stdout}");
    }

    let report = bench.json();
    assert_eq!(report["benchmark"], "notify");
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for (point, senders) in points.iter().zip([1, 2]) {
        assert_eq!(point["x"], senders);
        let series = &point["series"][0];
        assert!(series["summary"].get("plain_tps").is_none());
        let runs = series["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        runs.iter().for_each(assert_measured);
    }
}

/// What is given to some of the listeners is counted, and the sessions that listen are
/// those whose processor time is taken.
#[test]
fn queue_delivers_to_all_once_or_to_a_few() {
    let bench = Bench::new();
    let output = bench.run(&format!(
        "queue {SHORT} --writers=2 --listeners=5,12 --target stock=pg_config \
         --target one=pg_config,preload=pg_pinpoint,extension=pg_pinpoint,pinpoint.share_limit=1 \
         --json @json"
    ));
    bench.assert_succeeded(&output);
    let report = bench.json();
    assert_eq!(report["benchmark"], "queue");
    assert_eq!(report["axis"]["name"], "listeners");

    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    for point in points {
        let listeners = number(point, "x");
        for series in point["series"].as_array().unwrap() {
            let run = &series["runs"][0];
            assert_measured(run);
            assert!(number(run, "plain_tps") > 0.0, "{run}");
            assert!(number(run, "listeners_client_usec") > 0.0, "{run}");
            let first = number(run, "first_from_due_p50_usec");
            assert!(first <= number(run, "from_due_p50_usec"), "{run}");
            let deliveries = number(run, "deliveries_per_notification");
            let target = series["target"].as_str().unwrap();
            match (target, point["workload"].as_str().unwrap()) {
                ("one", "shared") => assert_eq!(deliveries, 1.0),
                ("one", "folded") => assert!(deliveries <= listeners, "{run}"),
                _ => assert_eq!(deliveries, listeners, "{run}"),
            }
        }
    }
}

/// Makes a pg_config whose programs are those of the real one, except pgbench.
fn with_pgbench(bench: &Bench, pgbench: Option<&str>) -> String {
    let answer = |option| {
        let output = Command::new("pg_config").arg(option).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let real = answer("--bindir");
    for program in ["initdb", "postgres"] {
        bench.script(program, &format!("exec '{real}/{program}' \"$@\""));
    }
    if let Some(lines) = pgbench {
        bench.script("pgbench", lines);
    }
    let folder = bench.result("");
    let pg_config = bench.script(
        "pg_config",
        &format!(
            "printf '%s\\n' '{}' '{}' '{}'",
            folder.display(),
            answer("--pkglibdir"),
            answer("--sharedir")
        ),
    );
    format!("a={}", pg_config.display())
}

#[test]
fn without_pgbench() {
    let bench = Bench::new();
    let target = with_pgbench(&bench, None);
    for subcommand in ["commit", "notify", "queue", "listen", "overhead"] {
        let output = bench.run(&format!("{subcommand} --target {target}"));
        bench.assert_failed(
            &output,
            "pgbench\" does not exist: install pgbench (it comes with the PostgreSQL server,",
        );
    }
}

#[test]
fn a_pgbench_that_fails() {
    let bench = Bench::new();
    let target = with_pgbench(&bench, Some("echo 'pgbench: error: no way' >&2; exit 2"));
    let output = bench.run(&format!("notify --target {target}"));
    bench.assert_failed(
        &output,
        "error: target \"a\": with 1 senders: notify load: pgbench failed (exit status: 2); \
         fix the error that it reports:\n  pgbench: error: no way",
    );
}

#[test]
fn a_pgbench_that_miscounts() {
    let bench = Bench::new();
    let target = with_pgbench(
        &bench,
        Some(
            "echo 'number of transactions actually processed: 7'\n\
             echo 'tps = 7.0 (without initial connection time)'",
        ),
    );
    // What it reports is a load of one second, and that is enough.
    let output = bench.run(&format!("notify --target {target} --warmup 0 --duration 1"));
    bench.assert_failed(
        &output,
        "a listener received 0 notifications of the load, but 7 transactions have sent one",
    );
}

/// Waits until there is a load on target "a".
fn wait_for_load(bench: &Bench) {
    let senders = "SELECT pid::text FROM pg_stat_activity \
                   WHERE application_name = 'pgbench' AND query <> ''";
    wait_until("pgbench sends", || {
        bench
            .query("a", senders)
            .is_some_and(|pids| !pids.is_empty())
    });
}

#[test]
fn a_session_of_pgbench_that_is_terminated() {
    let bench = Bench::new();
    let running = bench.start(&format!("commit {ENDLESS} --writers 1"));
    wait_for_load(&bench);
    // The first connection of pgbench, which sends nothing, may still be there.
    let terminated = bench.query(
        "a",
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
         WHERE application_name = 'pgbench' AND query <> ''",
    );
    assert_eq!(terminated.unwrap(), ["true"]);
    let (status, stderr) = running.wait();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("with 1 writers: plain load: pgbench failed (exit status: 2)")
            && stderr.contains("terminating connection due to administrator command"),
        "{stderr}"
    );
    bench.assert_nothing_left();
}

#[test]
fn a_listener_that_is_terminated_ends_the_run_at_once() {
    let bench = Bench::new();
    let running = bench.start(&format!("notify {ENDLESS}"));
    wait_for_load(&bench);
    let terminated = bench.query(
        "a",
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
         WHERE query LIKE 'LISTEN pinpoint_bench;%'",
    );
    assert_eq!(terminated.unwrap(), ["true"]);
    bench.assert_fails(running, "a listener failed");
}

/// The programs that run in the folder of a cluster include pgbench.
#[test]
fn ctrl_c_stops_pgbench_too() {
    let bench = Bench::new();
    let running = bench.start(&format!("commit {ENDLESS}"));
    wait_for_load(&bench);
    bench.assert_stops(running, Signal::SIGINT);
}
