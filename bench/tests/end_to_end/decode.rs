//! The benchmark `decode`: what it measures and writes, and what becomes of it
//! when something goes wrong.

use std::fs;

use nix::sys::signal::Signal;

use crate::harness::{Bench, number, wait_until};

#[test]
fn decode_compares_stock_and_pinpoint_with_both_workloads() {
    let bench = Bench::new();
    let report = bench.report("decode --tables 50,10 --runs 2");
    assert_eq!(report["benchmark"], "decode");
    assert_eq!(report["figures"][0]["name"], "ddl_seconds");
    assert_eq!(report["complete"], true);
    for (target, preload) in [(0, None), (1, Some("pg_pinpoint_decoding"))] {
        let settings = &report["targets"][target]["settings"];
        assert_eq!(settings["wal_level"], "logical");
        assert_eq!(settings["fsync"], "off");
        assert_eq!(settings["logical_decoding_work_mem"], "4GB");
        assert_eq!(settings["shared_preload_libraries"].as_str(), preload);
    }

    let points = report["points"].as_array().unwrap();
    let places: Vec<_> = points
        .iter()
        .map(|point| {
            (
                point["workload"].as_str().unwrap(),
                point["x"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            ("single_transaction", 10),
            ("transaction_per_table", 10),
            ("single_transaction", 50),
            ("transaction_per_table", 50),
        ]
    );
    for point in points {
        for (series, target) in [(0, "stock"), (1, "pinpoint")] {
            let series = &point["series"][series];
            assert_eq!(series["target"], target);
            let runs = series["runs"].as_array().unwrap();
            assert_eq!(runs.len(), 2);
            for run in runs {
                let (total, dml) = (number(run, "total_seconds"), number(run, "dml_seconds"));
                assert!(dml > 0.0, "{run}");
                // With so few tables the DDL may drown in the noise.
                match run["ddl_seconds"].as_f64() {
                    Some(ddl) => assert!((total - dml - ddl).abs() < 1e-9, "{run}"),
                    None => assert!(total <= dml, "{run}"),
                }
            }
        }
    }
}

#[test]
fn by_sql() {
    let bench = Bench::new();
    let report = bench.report("decode --interface=sql --tables=300 --runs=1");
    assert_eq!(report["parameters"]["interface"], "sql");
    for point in report["points"].as_array().unwrap() {
        for series in [0, 1] {
            let run = &point["series"][series]["runs"][0];
            assert!(number(run, "total_seconds") > 0.0, "{run}");
        }
    }
}

#[test]
fn without_pg_recvlogical() {
    let bench = Bench::new();
    let folder = bench.result("bin");
    fs::create_dir(&folder).unwrap();
    for program in ["initdb", "postgres"] {
        fs::write(folder.join(program), "").unwrap();
    }
    let pg_config = bench.script(
        "pg_config",
        &format!(
            "echo {}; pg_config --pkglibdir --sharedir",
            folder.display()
        ),
    );
    let output = bench.run(&format!("decode --target a={}", pg_config.display()));
    bench.assert_failed(
        &output,
        "pg_recvlogical\" does not exist: install pg_recvlogical",
    );
}

#[test]
fn a_receiver_that_is_terminated_is_an_error() {
    let bench = Bench::new();
    let running = bench.start("decode --target a=pg_config --tables 3000 --runs 1000");
    // One that has not read START_REPLICATION yet could not tell its client why it
    // ends, and one that is about to end anyway does so.
    let (status, stderr) = running.wait_while(|| {
        let decoding = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_replication \
                        WHERE state IN ('catchup', 'streaming')";
        bench.query("a", decoding);
    });
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("3000 tables, single_transaction: pg_recvlogical failed"),
        "{stderr}"
    );
    assert!(
        stderr.contains("terminating connection due to administrator command"),
        "{stderr}"
    );
    bench.assert_nothing_left();
}

#[test]
fn an_interrupt_stops_decoding_and_cleans_up() {
    let bench = Bench::new();
    let running = bench.start("decode --target a=pg_config --tables 1000 --runs 1000");
    wait_until("something is decoded", || {
        let slots = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name = 'copy'";
        bench
            .query("a", slots)
            .is_some_and(|slots| !slots.is_empty())
    });
    bench.assert_stops(running, Signal::SIGINT);
}

#[test]
fn a_running_server_is_refused() {
    let bench = Bench::new();
    let output = bench.run("decode --url postgresql://nowhere/postgres");
    bench.assert_failed(
        &output,
        "decode cannot measure a running server, as it makes databases and replication slots",
    );
}
