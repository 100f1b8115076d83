//! The order in which servers are measured, and what is kept of it.
//!
//! Within a run the servers take turns, in the other order in every second run
//! (A B, B A): whatever disturbs the machine for a while disturbs all that is
//! compared, and whatever gets better or worse by and by favours nobody. The runs
//! of one number are a pair.

use anyhow::Error;

use crate::report::results::{Point, Series, Values};
use crate::workload::{PointId, Workload};

/// A server that takes its turns.
pub trait Contestant {
    fn name(&self) -> &str;

    async fn prepare(&mut self, point: &(PointId, Workload)) -> anyhow::Result<()>;

    async fn measure(&mut self, point: &(PointId, Workload), run: u32) -> anyhow::Result<Values>;

    /// The error to report when one of these has failed.
    async fn explain(&mut self, error: Error) -> Error;
}

/// What is told meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Preparing(&'a str, &'a PointId),
    Measuring(&'a str, &'a PointId, u32),
    Measured,
}

/// Makes all runs. What is recorded stays if this fails or is dropped.
pub async fn measure<C: Contestant>(
    contestants: &mut [C],
    points: &[(PointId, Workload)],
    runs: u32,
    recording: &mut Recording,
    tell: impl Fn(Step),
) -> anyhow::Result<()> {
    for point in points {
        let (id, _) = point;
        recording.begin(id.clone(), contestants.len());
        for contestant in contestants.iter_mut() {
            tell(Step::Preparing(contestant.name(), id));
            if let Err(error) = contestant.prepare(point).await {
                return Err(contestant.explain(error).await);
            }
        }
        for run in 1..=runs {
            let mut order: Vec<usize> = (0..contestants.len()).collect();
            if run.is_multiple_of(2) {
                order.reverse();
            }
            for position in order {
                let contestant = &mut contestants[position];
                tell(Step::Measuring(contestant.name(), id, run));
                match contestant.measure(point, run).await {
                    Ok(values) => recording.add(position, values),
                    Err(error) => return Err(contestant.explain(error).await),
                }
                tell(Step::Measured);
            }
        }
    }
    Ok(())
}

/// What has been measured so far.
#[derive(Debug, Default)]
pub struct Recording {
    /// The runs of each target.
    points: Vec<(PointId, Vec<Vec<Values>>)>,
}

impl Recording {
    fn begin(&mut self, point: PointId, targets: usize) {
        self.points.push((point, vec![Vec::new(); targets]));
    }

    fn add(&mut self, target: usize, mut values: Values) {
        // JSON has no others.
        values.retain(|_, value| value.is_finite());
        if let Some((_, runs)) = self.points.last_mut() {
            runs[target].push(values);
        }
    }

    /// The points at which there is something.
    pub fn finish(self, targets: &[String]) -> Vec<Point> {
        let measured = |(_, runs): &(_, Vec<Vec<Values>>)| runs.iter().any(|runs| !runs.is_empty());
        let points = self.points.into_iter().filter(measured);
        points
            .map(|(PointId { workload, x }, runs)| {
                let mut series: Vec<Series> = Vec::new();
                for (target, runs) in targets.iter().zip(runs) {
                    let next = Series::of(target.clone(), runs, series.first());
                    series.push(next);
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
    use std::cell::RefCell;

    use anyhow::anyhow;

    use super::*;
    use crate::workload::Activity;
    use crate::workload::commits::Commits;

    /// A server that only notes what is done to it.
    struct Mock<'a> {
        name: &'static str,
        log: &'a RefCell<Vec<String>>,
        /// Fails with this run.
        fails_with: u32,
    }

    impl Contestant for Mock<'_> {
        fn name(&self) -> &str {
            self.name
        }

        async fn prepare(&mut self, (point, _): &(PointId, Workload)) -> anyhow::Result<()> {
            let note = format!("{} prepares {}", self.name, point.x);
            self.log.borrow_mut().push(note);
            Ok(())
        }

        /// The machine gets faster with every run.
        async fn measure(
            &mut self,
            (point, _): &(PointId, Workload),
            run: u32,
        ) -> anyhow::Result<Values> {
            if run == self.fails_with {
                return Err(anyhow!("no"));
            }
            let mut log = self.log.borrow_mut();
            log.push(format!("{}{run}@{}", self.name, point.x));
            let speed = if self.name == "A" { 1.0 } else { 2.0 };
            Ok(Values::from([
                ("tps".to_owned(), speed * f64::from(10 * run)),
                ("nothing".to_owned(), f64::NAN),
            ]))
        }

        async fn explain(&mut self, error: Error) -> Error {
            error.context(format!("target {}", self.name))
        }
    }

    async fn run(points: &[u32], runs: u32, fails_with: u32) -> (Vec<String>, Vec<Point>, bool) {
        let log = RefCell::default();
        let mock = |name, fails_with| Mock {
            name,
            log: &log,
            fails_with,
        };
        let mut contestants = [mock("A", 0), mock("B", fails_with)];
        let commits = Workload::from(Activity::Commits(Commits {
            channels: 1,
            sender_listens: true,
            listeners: 0,
            transactions: 1,
            warmup: 0,
        }));
        let points = points.iter().map(|&x| (PointId::at(x), commits.clone()));
        let points: Vec<_> = points.collect();
        let mut recording = Recording::default();
        let ended = measure(&mut contestants, &points, runs, &mut recording, |_| ()).await;
        let measured = recording.finish(&["A".to_owned(), "B".to_owned()]);
        (log.into_inner(), measured, ended.is_ok())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_order_alternates() {
        let (log, ..) = run(&[5, 7], 3, 0).await;
        let at = |x| {
            [
                format!("A prepares {x}"),
                format!("B prepares {x}"),
                format!("A1@{x}"),
                format!("B1@{x}"),
                format!("B2@{x}"),
                format!("A2@{x}"),
                format!("A3@{x}"),
                format!("B3@{x}"),
            ]
        };
        assert_eq!(log, [at(5), at(7)].concat());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn runs_of_one_number_are_a_pair() {
        let (_, points, _) = run(&[5], 6, 0).await;
        let ratio = points[0].series[1].ratio["tps"];
        // The runs themselves lie apart by a factor of six.
        assert_eq!((ratio.min, ratio.median, ratio.max), (2.0, 2.0, 2.0));
        assert_eq!(ratio.pairs, 6);
        assert!(!points[0].series[0].summary.contains_key("nothing"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_recorded_before_the_end_is_kept() {
        let (_, points, is_complete) = run(&[5, 7], 3, 2).await;
        assert!(!is_complete);
        assert_eq!(points.len(), 1);
        // B's second run comes before that of A.
        let runs = [0, 1].map(|target: usize| points[0].series[target].runs.len());
        assert_eq!(runs, [1, 1]);
    }
}
