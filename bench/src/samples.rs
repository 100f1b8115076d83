//! Reports to try things with. What is measured in them is close to what
//! `docs/benchmarks.md` shows.

use std::collections::BTreeMap;

use serde_json::json;

use crate::results::{
    Axis, Better, Figure, Machine, Point, Report, SCHEMA_VERSION, Scale, Series, TargetRecord,
    Values,
};

/// The runs of a figure of one target at one point.
type Runs = Vec<f64>;

pub fn all() -> Vec<Report> {
    vec![pingpong(), commit(), notify(), listen()]
}

pub fn pingpong() -> Report {
    let mut report = empty(
        "pingpong",
        "How many round trips per second do two sessions make while others listen on channels of \
         their own?",
        ("idle_listeners", "idle listeners"),
    );
    report.figures = vec![
        figure(
            "round_trips_per_sec",
            "round trips per second",
            Better::Higher,
        ),
        Figure {
            chart: false,
            ..figure(
                "max_latency_usec",
                "longest round trip, microseconds",
                Better::Lower,
            )
        },
    ];
    let rows: [(u64, [Runs; 2], [Runs; 2]); 4] = [
        (
            0,
            [vec![1438.0, 1960.0, 4436.0], vec![730.0, 1202.0, 7069.0]],
            [
                vec![41_000.0, 53_000.0, 48_000.0],
                vec![9000.0, 30_000.0, 12_000.0],
            ],
        ),
        (
            10,
            [vec![1178.0, 1842.0, 2079.0], vec![1939.0, 3690.0, 4087.0]],
            [
                vec![12_000.0, 9000.0, 8000.0],
                vec![15_000.0, 7000.0, 9500.0],
            ],
        ),
        (
            100,
            [vec![118.0, 125.0, 162.0], vec![2520.0, 5659.0, 5975.0]],
            [
                vec![30_000.0, 22_000.0, 25_000.0],
                vec![12_000.0, 8000.0, 9000.0],
            ],
        ),
        (
            1000,
            [vec![16.8, 17.2, 18.9], vec![4142.0, 5576.0, 6453.0]],
            [
                vec![82_000.0, 75_000.0, 80_000.0],
                vec![12_000.0, 9000.0, 11_000.0],
            ],
        ),
    ];
    for (x, rates, latencies) in rows {
        let targets = rates.into_iter().zip(latencies).map(|(rates, latencies)| {
            vec![
                ("round_trips_per_sec", rates),
                ("max_latency_usec", latencies),
            ]
        });
        report.points.push(point("", x, targets.collect()));
    }
    report.warnings = vec![
        "some runs differ a lot (pinpoint with 0 idle listeners, 730 to 7069 round trips per \
         second): stop other programs, or raise --duration and --runs"
            .to_owned(),
    ];
    report
}

pub fn commit() -> Report {
    let mut report = empty(
        "commit",
        "What does a notification add to a transaction that writes?",
        ("writers", "sessions that write"),
    );
    report.figures = vec![
        figure(
            "notify_tps",
            "transactions per second with a notification",
            Better::Higher,
        ),
        Figure {
            chart: false,
            ..figure(
                "plain_tps",
                "transactions per second without a notification",
                Better::Higher,
            )
        },
        Figure {
            scale: Scale::Linear,
            is_ratio: true,
            ..figure(
                "notify_to_plain",
                "with a notification, as a share of without",
                Better::Higher,
            )
        },
    ];
    let rows: [(u64, [(Runs, Runs); 2]); 4] = [
        (
            1,
            [
                (vec![868.0, 1061.0, 1176.0], vec![720.0, 1043.0, 1519.0]),
                (vec![587.0, 622.0, 1095.0], vec![708.0, 747.0, 1588.0]),
            ],
        ),
        (
            4,
            [
                (vec![1443.0, 1454.0, 2746.0], vec![3021.0, 3251.0, 5139.0]),
                (vec![2781.0, 3234.0, 3374.0], vec![2313.0, 4525.0, 4634.0]),
            ],
        ),
        (
            16,
            [
                (vec![1157.0, 1191.0, 1921.0], vec![3932.0, 4237.0, 4281.0]),
                (vec![3554.0, 4219.0, 5601.0], vec![4079.0, 4919.0, 6021.0]),
            ],
        ),
        (
            64,
            [
                (vec![1307.0, 1532.0, 1757.0], vec![4489.0, 4533.0, 5265.0]),
                (vec![3852.0, 4548.0, 5170.0], vec![4389.0, 4398.0, 4839.0]),
            ],
        ),
    ];
    for (x, targets) in rows {
        let targets = targets.into_iter().map(|(notify, plain)| {
            let shares = notify
                .iter()
                .zip(&plain)
                .map(|(notify, plain)| notify / plain);
            vec![
                ("notify_to_plain", shares.collect()),
                ("notify_tps", notify),
                ("plain_tps", plain),
            ]
        });
        report.points.push(point("", x, targets.collect()));
    }
    report
}

/// Interrupted.
pub fn notify() -> Report {
    let mut report = empty(
        "notify",
        "How many notifications per second can many sessions send?",
        ("senders", "sessions that send"),
    );
    report.figures = vec![figure(
        "notify_tps",
        "transactions per second",
        Better::Higher,
    )];
    let rows: [(u64, [Runs; 2]); 8] = [
        (
            1,
            [
                vec![15_068.0, 16_206.0, 17_106.0],
                vec![16_617.0, 27_010.0, 28_088.0],
            ],
        ),
        (
            2,
            [
                vec![16_300.0, 17_800.0, 18_000.0],
                vec![26_900.0, 29_700.0, 33_100.0],
            ],
        ),
        (
            4,
            [
                vec![17_546.0, 18_684.0, 19_520.0],
                vec![28_529.0, 31_573.0, 40_899.0],
            ],
        ),
        (
            8,
            [
                vec![14_000.0, 15_900.0, 16_100.0],
                vec![31_000.0, 36_500.0, 41_000.0],
            ],
        ),
        (
            16,
            [
                vec![10_599.0, 12_754.0, 12_861.0],
                vec![36_030.0, 39_479.0, 45_721.0],
            ],
        ),
        (
            32,
            [
                vec![9100.0, 9800.0, 10_300.0],
                vec![34_000.0, 38_800.0, 42_000.0],
            ],
        ),
        (
            64,
            [
                vec![7220.0, 7352.0, 7896.0],
                vec![30_196.0, 36_306.0, 40_493.0],
            ],
        ),
        (
            128,
            [
                vec![5106.0, 5887.0, 5998.0],
                vec![21_456.0, 25_589.0, 26_200.0],
            ],
        ),
    ];
    for (x, targets) in rows {
        let targets = targets.into_iter().map(|runs| vec![("notify_tps", runs)]);
        report.points.push(point("", x, targets.collect()));
    }
    report.complete = false;
    report.warnings = vec!["stopped by SIGINT before its end".to_owned()];
    report
}

/// Several workloads, several targets, a figure that should be low, and one that
/// one target lacks.
pub fn listen() -> Report {
    let mut report = empty(
        "listen",
        "How long do LISTEN and UNLISTEN take?",
        ("connections", "connections"),
    );
    report
        .targets
        .push(target("development", "PostgreSQL 19devel", &[]));
    report.axis.scale = Scale::Linear;
    report.figures = vec![Figure {
        scale: Scale::Linear,
        ..figure(
            "latency_msec",
            "milliseconds per transaction",
            Better::Lower,
        )
    }];
    for (workload, pinpoint) in [("unique_channels", 0.016), ("common_channel", 0.05)] {
        for x in [1, 8, 50, 100_u32] {
            let latency = |factor: f64, most: f64| {
                let median = factor * f64::from(x);
                vec![("latency_msec", vec![median * 0.9, median, median * most])]
            };
            let mut targets = vec![latency(0.25, 1.2), latency(pinpoint, 1.3)];
            if x < 100 {
                targets.push(latency(0.02, 1.1));
            }
            report.points.push(point(workload, x.into(), targets));
        }
    }
    report
}

fn empty(benchmark: &str, question: &str, axis: (&str, &str)) -> Report {
    Report {
        schema_version: SCHEMA_VERSION,
        benchmark: benchmark.to_owned(),
        question: question.to_owned(),
        method: vec![
            "The servers take turns within a run, and each figure is the median of all runs, \
             with the least and the greatest."
                .to_owned(),
            "Every run begins with a second that is not measured.".to_owned(),
        ],
        program_version: "0.1.0".to_owned(),
        command_line: ["pinpoint-bench", benchmark, "--json", "results.json"]
            .map(str::to_owned)
            .to_vec(),
        date: "2026-11-21T20:00:00Z".to_owned(),
        machine: Machine {
            cpu_model: "Example CPU".to_owned(),
            cpu_count: 2,
            os: "Linux (Example 1)".to_owned(),
            kernel: "6.1".to_owned(),
        },
        parameters: json!({"duration": 3.0, "runs": 3, "warmup": 1.0, "protocol": "simple"}),
        targets: vec![
            target(
                "stock",
                "PostgreSQL 15.20 on x86_64-pc-linux-gnu, 64-bit",
                &[],
            ),
            target(
                "pinpoint",
                "PostgreSQL 15.20 on x86_64-pc-linux-gnu, 64-bit",
                &["pg_pinpoint"],
            ),
        ],
        axis: Axis {
            name: axis.0.to_owned(),
            label: axis.1.to_owned(),
            scale: Scale::Logarithmic,
        },
        figures: Vec::new(),
        points: Vec::new(),
        complete: true,
        warnings: Vec::new(),
    }
}

fn target(name: &str, version: &str, preload: &[&str]) -> TargetRecord {
    TargetRecord {
        name: name.to_owned(),
        pg_config: Some("/usr/bin/pg_config".to_owned()),
        url: None,
        server_version: version.to_owned(),
        preload: preload.iter().map(ToString::to_string).collect(),
        extensions: preload
            .iter()
            .map(|name| (name.to_string(), "0.1".to_owned()))
            .collect(),
        settings: BTreeMap::from([
            ("fsync".to_owned(), "on".to_owned()),
            ("max_connections".to_owned(), "1012".to_owned()),
        ]),
    }
}

fn figure(name: &str, label: &str, better: Better) -> Figure {
    Figure {
        name: name.to_owned(),
        label: label.to_owned(),
        better,
        scale: Scale::Logarithmic,
        chart: true,
        is_ratio: false,
    }
}

/// From the runs of each figure of each target.
fn point(workload: &str, x: u64, targets: Vec<Vec<(&str, Runs)>>) -> Point {
    let names = ["stock", "pinpoint", "development"];
    let mut series: Vec<Series> = Vec::new();
    for (name, figures) in names.into_iter().zip(targets) {
        let mut runs: Vec<Values> = Vec::new();
        for (figure, values) in figures {
            runs.resize(values.len(), Values::new());
            for (run, value) in runs.iter_mut().zip(values) {
                run.insert(figure.to_owned(), value);
            }
        }
        let next = Series::of(name.to_owned(), runs, series.first());
        series.push(next);
    }
    Point {
        workload: workload.to_owned(),
        x,
        series,
    }
}
