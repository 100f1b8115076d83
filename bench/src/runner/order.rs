//! The order in which servers are measured, and what is kept of it.
//!
//! Within a run the servers take turns, in the other order in every second run
//! (A B, B A): whatever disturbs the machine for a while disturbs all that is
//! compared, and whatever gets better or worse by and by favours nobody. The runs
//! of one number are a pair.

use crate::report::results::{Point, Series, Values};
use crate::workload::PointId;

/// All runs with a workload, in their order: the number of a run, from 1, and the position
/// of the server that makes it.
pub fn turns(servers: usize, runs: u32) -> impl Iterator<Item = (u32, usize)> {
    (1..=runs).flat_map(move |run| {
        (0..servers).map(move |turn| match run % 2 {
            1 => (run, turn),
            _ => (run, servers - 1 - turn),
        })
    })
}

/// One run.
#[derive(Debug)]
pub struct Run {
    pub values: Values,
    /// The share of the processor time that the host took.
    pub stolen: f64,
    /// How often it was repeated because of that.
    pub repeats: u32,
}

/// What has been measured so far.
#[derive(Debug, Default)]
pub struct Recording {
    /// The runs of each target.
    points: Vec<(PointId, Vec<Vec<Run>>)>,
}

impl Recording {
    /// Goes on to a point.
    pub fn begin(&mut self, point: PointId, targets: usize) {
        let runs = std::iter::repeat_with(Vec::new).take(targets);
        self.points.push((point, runs.collect()));
    }

    /// Adds a run of a target, by its position.
    pub fn add(&mut self, target: usize, mut run: Run) {
        // JSON has no others.
        run.values.retain(|_, value| value.is_finite());
        if let Some((_, runs)) = self.points.last_mut() {
            runs[target].push(run);
        }
    }

    /// The points at which there is something.
    pub fn finish(self, targets: &[String]) -> Vec<Point> {
        let measured = |(_, runs): &(_, Vec<Vec<Run>>)| runs.iter().any(|runs| !runs.is_empty());
        let points = self.points.into_iter().filter(measured);
        points
            .map(|(PointId { workload, x }, runs)| {
                let mut series: Vec<Series> = Vec::new();
                for (target, runs) in targets.iter().zip(runs) {
                    let stolen = runs.iter().map(|run| run.stolen).collect();
                    let repeats = runs.iter().map(|run| run.repeats).collect();
                    let values = runs.into_iter().map(|run| run.values).collect();
                    let next = Series::of(target.clone(), values, series.first());
                    series.push(Series {
                        stolen,
                        repeats,
                        ..next
                    });
                }
                Point {
                    workload,
                    x: x.into(),
                    series,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_alternates() {
        let order: Vec<_> = turns(2, 3).collect();
        assert_eq!(order, [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]);
    }

    /// As if the machine got faster with every run, and B were twice as fast as A.
    fn record(turns: impl Iterator<Item = (u32, usize)>) -> Vec<Point> {
        let mut recording = Recording::default();
        let point = |x| PointId {
            workload: String::new(),
            x,
        };
        recording.begin(point(5), 2);
        for (run, position) in turns {
            let tps = f64::from(10 * run) * [1.0, 2.0][position];
            let values = [("tps", tps), ("nothing", f64::NAN)];
            let values = values.map(|(name, v)| (name.to_owned(), v)).into();
            recording.add(
                position,
                Run {
                    values,
                    stolen: 0.01 * f64::from(run),
                    repeats: u32::from(run == 3),
                },
            );
        }
        recording.begin(point(7), 2);
        recording.finish(&["A".to_owned(), "B".to_owned()])
    }

    #[test]
    fn runs_of_one_number_are_a_pair() {
        let points = record(turns(2, 6));
        let ratio = points[0].series[1].ratio["tps"];
        // The runs themselves lie apart by a factor of six.
        assert_eq!((ratio.min, ratio.median, ratio.max), (2.0, 2.0, 2.0));
        assert_eq!(ratio.pairs, 6);
        assert!(!points[0].series[0].summary.contains_key("nothing"));
        assert_eq!(points[0].series[0].stolen[1], 0.02);
        assert_eq!(points[0].series[1].repeats, [0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn what_was_recorded_before_the_end_is_kept() {
        let points = record(turns(2, 3).take(3));
        assert_eq!(points.len(), 1);
        // B's second run comes before that of A.
        let runs = [0, 1].map(|target: usize| points[0].series[target].runs.len());
        assert_eq!(runs, [1, 2]);
    }
}
