//! What a run measures and writes.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bench, wait_until};

#[test]
fn two_targets_side_by_side() {
    let bench = Bench::new();
    let output = bench.run(
        "pingpong --target a=pg_config,work_mem=5MB --target b=pg_config \
         --setting synchronous_commit=off --idle-listeners 3,0 --duration 50ms --warmup 0 \
         --runs 2 --json @json",
    );
    bench.assert_succeeded(&output);
    assert!(
        !output.stderr.contains(&b'\r'),
        "progress without a terminal"
    );

    let report = bench.json();
    assert_eq!(report["benchmark"], "pingpong");
    for (target, work_mem) in [(0, Some("5MB")), (1, None)] {
        let settings = &report["targets"][target]["settings"];
        assert_eq!(settings["work_mem"].as_str(), work_mem);
        assert_eq!(settings["synchronous_commit"], "off");
        assert_eq!(settings["fsync"], "on");
        let version = report["targets"][target]["server_version"].as_str();
        assert!(version.unwrap().starts_with("PostgreSQL "), "{version:?}");
    }

    assert_eq!(report["complete"], true);
    assert_conditions(&report);

    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for (point, idle) in points.iter().zip([0, 3]) {
        assert_eq!(point["x"], idle);
        for (series, name) in point["series"].as_array().unwrap().iter().zip(["a", "b"]) {
            assert_eq!(series["target"], name);
            let runs = series["runs"].as_array().unwrap();
            assert_eq!(runs.len(), 2);
            for part in ["stolen", "repeats"] {
                assert_eq!(series[part].as_array().unwrap().len(), 2, "{series}");
            }
            for run in runs {
                let figure = |name: &str| run[name].as_f64().unwrap();
                assert!(figure("round_trips_per_sec") > 0.0, "{run}");
                assert!(figure("p50_latency_usec") > 0.0, "{run}");
                assert!(figure("p50_latency_usec") <= figure("max_latency_usec"));
            }
        }
        // Of two pairs.
        let rate = |series: usize, run: usize| {
            let run = &point["series"][series]["runs"][run];
            run["round_trips_per_sec"].as_f64().unwrap()
        };
        let ratio = (rate(1, 0) / rate(0, 0) + rate(1, 1) / rate(0, 1)) / 2.0;
        let reported = &point["series"][1]["ratio"]["round_trips_per_sec"];
        assert_eq!(reported["median"].as_f64(), Some(ratio), "{reported}");
        assert!(point["series"][0]["ratio"].as_object().unwrap().is_empty());
    }
}

/// There is a warning if the processors could not be kept awake.
fn assert_conditions(report: &Value) {
    let kept_awake = report["conditions"]["kept_awake"].as_bool().unwrap();
    assert!(report["conditions"]["load_at_start"].is_f64(), "{report}");
    let mut warnings = report["warnings"].as_array().unwrap().iter();
    let is_about_it = |text: &str| text.starts_with("the processors were not kept awake");
    let warned = warnings.any(|warning| is_about_it(warning.as_str().unwrap()));
    assert_eq!(warned, !kept_awake, "{report}");
}

#[test]
fn stock_against_pinpoint() {
    let bench = Bench::new();
    let output = bench.run(
        "pingpong --idle-listeners 0..4/4 --duration 200ms --warmup 0.1 --runs 1 \
         --json @json",
    );
    bench.assert_succeeded(&output);

    let stdout = String::from_utf8(output.stdout).unwrap();
    for name in [
        "\nround trips per second, higher is better\n",
        "\n99th percentile of the round trips",
        "pinpoint / stock",
        "too few pairs",
    ] {
        assert!(stdout.contains(name), "no {name} in\n{stdout}");
    }

    let report = bench.json();
    let [stock, pinpoint] = [0, 1].map(|target| &report["targets"][target]);
    assert_eq!(stock["extensions"].as_object().unwrap().len(), 0);
    assert!(pinpoint["extensions"]["pg_pinpoint"].is_string());
    assert_eq!(
        pinpoint["settings"]["shared_preload_libraries"],
        "pg_pinpoint"
    );
    let points = report["points"].as_array().unwrap();
    let counts: Vec<_> = points.iter().map(|point| &point["x"]).collect();
    assert_eq!(counts, [0, 4]);
    let series = points.iter().flat_map(|p| p["series"].as_array().unwrap());
    assert!(
        series
            .clone()
            .all(|series| series["runs"][0]["round_trips_per_sec"].is_f64())
    );
    assert_eq!(series.count(), 4);
}

#[test]
fn idle_listeners_have_a_channel_each_on_every_target() {
    let bench = Bench::new();
    let running = bench.start(
        "pingpong --target a=pg_config --target b=pg_config --idle-listeners 5 \
         --duration 1000",
    );
    bench.wait_for_pingpong("a");
    for target in ["a", "b"] {
        let sql = "SELECT query FROM pg_stat_activity WHERE query LIKE 'UNLISTEN *; LISTEN idle%'";
        let mut listens = bench.query(target, sql).unwrap();
        listens.sort();
        let expected = [0, 1, 2, 3, 4].map(|n| format!("UNLISTEN *; LISTEN idle_{n}"));
        assert_eq!(listens, expected);
    }
    // Only one target is exercised at a time.
    let players = "SELECT pid::text FROM pg_stat_activity WHERE query LIKE 'NOTIFY%'";
    wait_until("both players have sent", || {
        bench.query("a", players).unwrap().len() == 2
    });
    assert_eq!(bench.query("b", players).unwrap().len(), 0);

    bench.assert_stops(running, Signal::SIGTERM);
}

#[test]
fn a_server_can_be_measured_against_itself() {
    let bench = Bench::new();
    let output =
        bench.run("pingpong --aa --idle-listeners=0 --duration=50ms --warmup=0 --json @json");
    bench.assert_succeeded(&output);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("pingpong: 1 measurement on 2 servers, 12 runs each\n"),
        "{stderr}"
    );
    let report = bench.json();
    let names = [0, 1].map(|target| report["targets"][target]["name"].as_str().unwrap());
    assert_eq!(names, ["stock", "stock-again"]);
    let ratio = &report["points"][0]["series"][1]["ratio"]["round_trips_per_sec"];
    assert_eq!(ratio["pairs"], 12);
    let interval = &ratio["interval"];
    let number = |name: &str| interval[name].as_f64().unwrap();
    assert!(
        number("low") <= ratio["median"].as_f64().unwrap(),
        "{ratio}"
    );
    assert!(
        number("high") >= ratio["median"].as_f64().unwrap(),
        "{ratio}"
    );
    assert!((0.961..0.962).contains(&number("coverage")), "{ratio}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains(" of 1 intervals of main figures do not contain 1"),
        "{stdout}"
    );
}
