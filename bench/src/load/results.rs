//! What was measured.

use serde::Serialize;

use super::workload::Kind;
use crate::latency::Latencies;
use crate::stats::Summary;

/// What pgbench reports of one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Load {
    pub transactions: u64,
    /// Without the time that it takes to connect.
    pub transactions_per_sec: f64,
}

/// How the notifications of a load arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Delivery {
    /// Of each probe, from when its sender knew of the commit. Those that were
    /// committed after the load are left out.
    pub from_commit: Latencies,
    /// Of each probe, from when it was due.
    pub from_due: Latencies,
    /// How long a listener had still to read when everything had been sent.
    pub backlog_seconds: f64,
}

/// One run of one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Of the transactions without their notification, if those are of interest.
    pub plain: Option<Load>,
    pub notify: Load,
    #[serde(flatten)]
    pub delivery: Delivery,
}

impl Run {
    /// From its loads in any order, one of which notifies.
    pub fn of(loads: Vec<(Kind, (Load, Option<Delivery>))>) -> Self {
        let mut plain = None;
        let mut notifying = None;
        for (kind, (load, delivery)) in loads {
            match kind {
                Kind::Plain => plain = Some(load),
                Kind::Notify => notifying = delivery.map(|delivery| (load, delivery)),
            }
        }
        let (notify, delivery) = notifying.expect("a load notifies");
        Self {
            plain,
            notify,
            delivery,
        }
    }

    /// This run's share of what it reaches without notification.
    fn notify_to_plain(&self) -> Option<f64> {
        let plain = self.plain?;
        Some(self.notify.transactions_per_sec / plain.transactions_per_sec)
    }
}

/// One figure as a multiple of another one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    pub of_medians: f64,
    /// The least and the greatest within one run.
    pub min: f64,
    pub max: f64,
}

impl Ratio {
    fn of(figure: Summary, base: Summary, runs: impl Iterator<Item = f64>) -> Self {
        let runs = Summary::of(runs).expect("there is at least one run");
        Self {
            of_medians: figure.median / base.median,
            min: runs.min,
            max: runs.max,
        }
    }
}

/// All runs of one target with one number of clients. Figures with `tps` are
/// transactions per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    pub target: String,
    pub plain_tps: Option<Summary>,
    pub notify_tps: Summary,
    /// `notify_tps` as a fraction of `plain_tps`.
    pub notify_to_plain: Option<Ratio>,
    /// `notify_tps` as a multiple of the first target's. `None` for the first
    /// target itself.
    pub ratio: Option<Ratio>,
    /// The latencies of all runs.
    pub from_commit: Latencies,
    pub from_due: Latencies,
    pub runs: Vec<Run>,
}

/// All series with one number of clients, in the order of the targets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    pub clients: u32,
    pub series: Vec<Series>,
}

impl Point {
    /// From each target's name and runs, of which there is at least one, and as
    /// many for each.
    pub fn new(clients: u32, targets: Vec<(String, Vec<Run>)>) -> Self {
        let mut all: Vec<Series> = Vec::new();
        for (target, runs) in targets {
            let series = Series::new(target, runs, all.first());
            all.push(series);
        }
        Self {
            clients,
            series: all,
        }
    }
}

impl Series {
    fn new(target: String, runs: Vec<Run>, base: Option<&Self>) -> Self {
        let tps = |run: &Run| run.notify.transactions_per_sec;
        let notify_tps = Summary::of(runs.iter().map(tps)).expect("there is at least one run");
        let plain_tps = Summary::of(
            runs.iter()
                .filter_map(|run| run.plain.map(|load| load.transactions_per_sec)),
        );
        let mut series = Self {
            target,
            plain_tps,
            notify_tps,
            notify_to_plain: plain_tps.map(|plain_tps| {
                let shares = runs.iter().filter_map(Run::notify_to_plain);
                Ratio::of(notify_tps, plain_tps, shares)
            }),
            ratio: base.map(|base| {
                let pairs = runs.iter().zip(&base.runs);
                let ratios = pairs.map(|(run, base)| tps(run) / tps(base));
                Ratio::of(notify_tps, base.notify_tps, ratios)
            }),
            from_commit: Latencies::new(),
            from_due: Latencies::new(),
            runs,
        };
        for run in &series.runs {
            series.from_commit.add(&run.delivery.from_commit);
            series.from_due.add(&run.delivery.from_due);
        }
        series
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::latency;

    /// A run that is easy to tell from others.
    pub fn run(plain: Option<f64>, notify: f64, latencies: &[u64]) -> Run {
        let load = |tps| Load {
            transactions: tps as u64 * 5,
            transactions_per_sec: tps,
        };
        Run {
            plain: plain.map(load),
            notify: load(notify),
            delivery: Delivery {
                from_commit: latency::tests::of(latencies.iter().copied()),
                from_due: latency::tests::of(latencies.iter().map(|latency| latency + 500)),
                backlog_seconds: 0.125,
            },
        }
    }

    #[test]
    fn ratios_are_of_medians_and_their_ranges_of_runs() {
        let runs = |plain: [f64; 3], notify: [f64; 3]| {
            let pairs = plain.into_iter().zip(notify);
            pairs
                .map(|(plain, notify)| run(Some(plain), notify, &[1]))
                .collect()
        };
        let point = Point::new(
            16,
            vec![
                (
                    "stock".to_owned(),
                    runs([400.0, 500.0, 600.0], [100.0, 200.0, 120.0]),
                ),
                (
                    "pinpoint".to_owned(),
                    runs([400.0, 500.0, 800.0], [400.0, 480.0, 600.0]),
                ),
            ],
        );
        let ratio = |of_medians, min, max| {
            Some(Ratio {
                of_medians,
                min,
                max,
            })
        };
        let [stock, pinpoint] = &point.series[..] else {
            panic!("{point:?}");
        };
        assert_eq!(stock.notify_to_plain, ratio(0.24, 0.2, 0.4));
        assert_eq!(stock.ratio, None);
        assert_eq!(pinpoint.notify_to_plain, ratio(0.96, 0.75, 1.0));
        assert_eq!(pinpoint.ratio, ratio(4.0, 2.4, 5.0));
    }

    #[test]
    fn latencies_are_of_all_runs() {
        let runs = vec![run(None, 1.0, &[1, 2]), run(None, 1.0, &[7])];
        let point = Point::new(1, vec![("stock".to_owned(), runs)]);
        let series = &point.series[0];
        assert_eq!(series.from_commit, latency::tests::of([1, 2, 7]));
        assert_eq!(series.from_due, latency::tests::of([501, 502, 507]));
        assert_eq!((series.plain_tps, series.notify_to_plain), (None, None));
    }

    #[test]
    fn the_loads_of_a_run_come_in_any_order() {
        let expected = run(Some(3.0), 2.0, &[9]);
        let plain = (Kind::Plain, (expected.plain.unwrap(), None));
        let notify = (
            Kind::Notify,
            (expected.notify, Some(expected.delivery.clone())),
        );
        assert_eq!(Run::of(vec![plain.clone(), notify.clone()]), expected);
        assert_eq!(Run::of(vec![notify, plain]), expected);
    }
}
