//! What was measured in a run, and the figures that are made of it.

use crate::clients::latency::{Latencies, STATISTICS};
use crate::clients::pgbench::Load;
use crate::report::results::{Figure, Kind, Scale, Values};

const TPS: &str = "transactions_per_sec";
const WAL_BYTES: &str = "wal_bytes_per_transaction";
const PROBES: &str = "probes";
const QUESTION: &str = "question_p50_usec";

/// How the names of the figures begin that are of a place.
const PRIMARY: &str = "primary";
const STANDBY: &str = "standby";
const ROW_VISIBLE: &str = "row_visible";

/// How much longer than the row the notification takes, and the quantile of both.
const TO_ROW_VISIBLE: [(&str, &str, f64); 2] = [
    ("standby_to_row_visible", "median", 0.50),
    ("standby_to_row_visible_p99", "99th percentile", 0.99),
];

/// When the probes arrived, each from when it was due.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrivals {
    pub primary: Latencies,
    /// If notifications come there.
    pub standby: Option<Latencies>,
    /// On the standby.
    pub row_visible: Latencies,
}

/// The WAL of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wal {
    pub bytes: u64,
    /// Those of the probe included.
    pub transactions: u64,
}

/// All that was measured in a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub arrivals: Arrivals,
    /// How long it took to ask for a row.
    pub questions: Latencies,
    /// If there were writers.
    pub load: Option<(Load, Wal)>,
}

/// The figures of every run.
pub fn figures() -> Vec<Figure> {
    let mut figures = vec![
        Figure::new(
            TPS,
            "transactions per second, each an INSERT and a NOTIFY",
            Kind::Rate,
        )
        .drawn(),
    ];
    for (start, what) in [
        (
            STANDBY,
            "until a listener on the standby has the notification",
        ),
        (ROW_VISIBLE, "until the row is visible on the standby"),
        (
            PRIMARY,
            "until a listener on the primary has the notification",
        ),
    ] {
        for (end, which) in STATISTICS {
            let (name, label) = (format!("{start}_{end}"), format!("{what}, {which} (µs)"));
            let figure = Figure::new(&name, &label, Kind::Time);
            let is_median = end == STATISTICS[0].0;
            figures.push(if is_median { figure.drawn() } else { figure });
        }
    }
    for (name, which, _) in TO_ROW_VISIBLE {
        let label = format!("the notification's time on the standby divided by the row's, {which}");
        let figure = Figure::new(name, &label, Kind::Time).on_scale(Scale::Linear);
        let is_median = name == TO_ROW_VISIBLE[0].0;
        figures.push(if is_median { figure.drawn() } else { figure });
    }
    figures.push(Figure::new(WAL_BYTES, "bytes of WAL for each transaction", Kind::Count).drawn());
    figures.push(Figure::new(
        PROBES,
        "transactions that the times are of",
        Kind::Count,
    ));
    // This is the measure of another figure, and not of a server.
    figures.push(Figure::new(
        QUESTION,
        "how long it takes to ask on the standby whether the row is there, median (µs)",
        Kind::Count,
    ));
    figures
}

/// The figures of one run.
pub fn values(run: &Run) -> Values {
    let Arrivals {
        primary,
        standby,
        row_visible,
    } = &run.arrivals;
    let mut values = Values::new();
    values.extend(primary.figures(PRIMARY));
    values.extend(row_visible.figures(ROW_VISIBLE));
    values.insert(PROBES.to_owned(), row_visible.count() as f64);
    let question = run.questions.at_quantile(0.50);
    values.extend(question.map(|usec| (QUESTION.to_owned(), usec as f64)));
    if let Some(standby) = standby {
        values.extend(standby.figures(STANDBY));
        for (name, _, quantile) in TO_ROW_VISIBLE {
            let pair = standby
                .at_quantile(quantile)
                .zip(row_visible.at_quantile(quantile));
            values
                .extend(pair.map(|(standby, row)| (name.to_owned(), standby as f64 / row as f64)));
        }
    }
    if let Some((load, wal)) = &run.load {
        values.insert(TPS.to_owned(), load.transactions_per_sec);
        let per_transaction = wal.bytes as f64 / wal.transactions as f64;
        values.insert(WAL_BYTES.to_owned(), per_transaction);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::latency::tests::of;

    fn run() -> Run {
        Run {
            arrivals: Arrivals {
                primary: of([100, 200, 300]),
                standby: Some(of([300, 300, 800])),
                row_visible: of([400, 200, 1000]),
            },
            questions: of([60, 70, 500]),
            load: Some((
                Load {
                    transactions: 90,
                    transactions_per_sec: 30.0,
                },
                Wal {
                    bytes: 25_000,
                    transactions: 100,
                },
            )),
        }
    }

    #[test]
    fn figures_of_a_run() {
        let values = values(&run());
        for (name, value) in [
            ("transactions_per_sec", 30.0),
            ("wal_bytes_per_transaction", 250.0),
            ("primary_p50_usec", 200.0),
            ("standby_p50_usec", 300.0),
            ("standby_max_usec", 800.0),
            ("row_visible_p50_usec", 400.0),
            ("standby_to_row_visible", 0.75),
            ("standby_to_row_visible_p99", 0.8),
            ("probes", 3.0),
            ("question_p50_usec", 70.0),
        ] {
            assert_eq!(values[name], value, "{name}");
        }
        let described = figures();
        assert_eq!(described[0].name, TPS);
        assert_eq!(described.len(), values.len());
        assert!(described.iter().all(|f| values.contains_key(&f.name)));
    }

    #[test]
    fn what_there_is_not_has_no_figure() {
        let mut alone = run();
        alone.load = None;
        alone.arrivals.standby = None;
        let values = values(&alone);
        let names: Vec<&str> = values.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "primary_max_usec",
                "primary_p50_usec",
                "primary_p99_usec",
                "probes",
                "question_p50_usec",
                "row_visible_max_usec",
                "row_visible_p50_usec",
                "row_visible_p99_usec",
            ]
        );
    }

    #[test]
    fn a_run_without_probes_has_no_times() {
        let mut short = run();
        short.arrivals = Arrivals {
            primary: of([]),
            standby: Some(of([])),
            row_visible: of([]),
        };
        short.questions = of([]);
        let names: Vec<String> = values(&short).into_keys().collect();
        assert_eq!(names, ["probes", TPS, WAL_BYTES]);
    }
}
