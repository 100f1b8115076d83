//! What a run measures and writes.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Bench, wait_until};

fn json(bench: &Bench) -> Value {
    let content = fs::read_to_string(bench.result("json")).unwrap();
    serde_json::from_str(&content).unwrap()
}

#[test]
fn two_targets_side_by_side() {
    let bench = Bench::new();
    let (csv_file, json_file) = (bench.result("csv"), bench.result("json"));
    let output = bench.run(&[
        "--target",
        "a=pg_config,work_mem=5MB",
        "--target",
        "b=pg_config",
        "--setting",
        "synchronous_commit=off",
        "--idle",
        "3,0",
        "--round-trips",
        "20",
        "--warmup",
        "0",
        "--runs",
        "2",
        "--format",
        "tsv",
        "--csv",
        csv_file.to_str().unwrap(),
        "--json",
        json_file.to_str().unwrap(),
    ]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.contains('\r'), "progress without a terminal");
    bench.assert_nothing_left();

    let report = json(&bench);
    assert_eq!(report["benchmark"], "pingpong");
    for (target, work_mem) in [(0, Some("5MB")), (1, None)] {
        let settings = &report["targets"][target]["settings"];
        assert_eq!(settings["work_mem"].as_str(), work_mem);
        assert_eq!(settings["synchronous_commit"], "off");
        assert_eq!(settings["fsync"], "on");
        let version = report["targets"][target]["server_version"].as_str();
        assert!(version.unwrap().starts_with("PostgreSQL "), "{version:?}");
    }

    // The table has the figures of the JSON, row by row.
    let stdout = String::from_utf8(output.stdout).unwrap();
    let mut rows = stdout
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    assert_eq!(
        rows.next().unwrap(),
        [
            "idle_listeners",
            "a_round_trips_per_sec",
            "a_round_trips_per_sec_min",
            "a_round_trips_per_sec_max",
            "a_max_latency_usec",
            "b_round_trips_per_sec",
            "b_round_trips_per_sec_min",
            "b_round_trips_per_sec_max",
            "b_max_latency_usec",
            "b_ratio",
        ]
    );
    let points = report["results"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for (point, idle) in points.iter().zip([0, 3]) {
        assert_eq!(point["idle_listeners"], idle);
        let mut expected = vec![idle.to_string()];
        for (series, name) in point["series"].as_array().unwrap().iter().zip(["a", "b"]) {
            assert_eq!(series["target"], name);
            let runs = series["runs"].as_array().unwrap();
            assert_eq!(runs.len(), 2);
            for run in runs {
                assert_eq!(run["round_trips"], 20);
                let rate = run["round_trips_per_sec"].as_f64().unwrap();
                let seconds = run["seconds"].as_f64().unwrap();
                assert!((rate * seconds - 20.0).abs() < 1e-6, "{run}");
                let max = run["max_latency_usec"].as_u64().unwrap();
                assert!(max > 0 && max >= run["p50_latency_usec"].as_u64().unwrap());
            }
            for figure in ["median", "min", "max"] {
                let rate = series["round_trips_per_sec"][figure].as_f64().unwrap();
                expected.push(format!("{rate:.1}"));
            }
            expected.push(series["max_latency_usec"].to_string());
        }
        let median = |series: usize| {
            point["series"][series]["round_trips_per_sec"]["median"]
                .as_f64()
                .unwrap()
        };
        expected.push(format!("{:.3}", median(1) / median(0)));
        assert_eq!(rows.next().unwrap(), expected);
    }
    assert_eq!(rows.next(), None);

    // The CSV has every run. They were made in turn: a, b, a, b.
    let mut reader = csv::Reader::from_path(csv_file).unwrap();
    let lines: Vec<_> = reader
        .records()
        .map(|record| {
            let record = record.unwrap();
            [1, 2, 3, 4].map(|column| record[column].to_owned())
        })
        .collect();
    let expected: Vec<_> = ["0", "3"]
        .iter()
        .flat_map(|idle| ["a", "b"].map(|name| (idle, name)))
        .flat_map(|(idle, name)| ["1", "2"].map(|run| [name, idle, run, "20"].map(str::to_owned)))
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn stock_against_pinpoint() {
    let bench = Bench::new();
    let json_file = bench.result("json");
    let output = bench.run(&[
        "--idle-step",
        "4",
        "--max-idle",
        "4",
        "--duration",
        "0.2",
        "--warmup",
        "0.1",
        "--runs",
        "1",
        "--json",
        json_file.to_str().unwrap(),
    ]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    bench.assert_nothing_left();

    let stdout = String::from_utf8(output.stdout).unwrap();
    for name in [
        "idle_listeners",
        "round_trips_per_sec",
        "max_latency_usec",
        "stock",
        "pinpoint",
        "ratio",
    ] {
        assert!(stdout.contains(name), "no {name} in\n{stdout}");
    }

    let report = json(&bench);
    let [stock, pinpoint] = [0, 1].map(|target| &report["targets"][target]);
    assert_eq!(stock["extensions"].as_object().unwrap().len(), 0);
    assert!(pinpoint["extensions"]["pg_pinpoint"].is_string());
    assert_eq!(
        pinpoint["settings"]["shared_preload_libraries"],
        "pg_pinpoint"
    );
    for (point, idle) in report["results"].as_array().unwrap().iter().zip([0, 4]) {
        assert_eq!(point["idle_listeners"], idle);
        for series in point["series"].as_array().unwrap() {
            let run = &series["runs"][0];
            assert!(run["seconds"].as_f64().unwrap() >= 0.2);
            assert!(run["round_trips"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn idle_listeners_have_a_channel_each_on_every_target() {
    let bench = Bench::new();
    let running = bench.start(&[
        "--target",
        "a=pg_config",
        "--target",
        "b=pg_config",
        "--idle",
        "5",
        "--duration",
        "1000",
    ]);
    bench.wait_for_pingpong("a");
    for target in ["a", "b"] {
        let mut listens = bench
            .query(
                target,
                "SELECT query FROM pg_stat_activity WHERE query LIKE 'LISTEN idle%'",
            )
            .unwrap();
        listens.sort();
        assert_eq!(
            listens,
            [
                "LISTEN idle_0",
                "LISTEN idle_1",
                "LISTEN idle_2",
                "LISTEN idle_3",
                "LISTEN idle_4"
            ]
        );
    }
    // Only one target is exercised at a time.
    let players = "SELECT pid::text FROM pg_stat_activity WHERE query LIKE 'NOTIFY%'";
    wait_until("both players have sent", || {
        bench.query("a", players).unwrap().len() == 2
    });
    assert_eq!(bench.query("b", players).unwrap().len(), 0);

    running.signal(Signal::SIGTERM);
    running.wait();
    bench.assert_nothing_left();
}
