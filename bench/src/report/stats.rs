//! Statistics over the runs of one measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use super::interval::Interval;
use super::results::{Point, Ratio, Series, Summary, Values};

/// The median rather than the mean, since one disturbed run must not move the figure.
impl Summary {
    /// `None` for no values at all.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);

        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }

    /// How far apart the values are, as a fraction of their median.
    pub fn spread(&self) -> f64 {
        (self.max - self.min) / self.median
    }
}

/// The median of durations, and what 99 of a hundred do not exceed, in
/// milliseconds. There must be at least one.
pub fn milliseconds(durations: impl Iterator<Item = Duration>) -> (f64, f64) {
    let mut sorted: Vec<f64> = durations.map(|time| time.as_secs_f64() * 1e3).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let summary = Summary::of(sorted.iter().copied()).expect("there is at least one");
    let rank = (sorted.len() as f64 * 0.99).ceil() as usize;
    (summary.median, sorted[rank - 1])
}

impl Ratio {
    /// Of a figure to the same figure of the baseline, pair by pair: what disturbs
    /// the machine for a while disturbs both runs of a pair. `None` if a pair has
    /// nothing that could be divided by: without it, the others would flatter.
    fn of(name: &str, figure: &Series, base: &Series) -> Option<Self> {
        let pairs: Vec<(f64, f64)> = figure
            .runs
            .iter()
            .zip(&base.runs)
            .filter_map(|(run, base)| Some((*run.get(name)?, *base.get(name)?)))
            .collect();
        if pairs.iter().any(|(_, base)| *base <= 0.0) {
            return None;
        }
        let mut ratios: Vec<f64> = pairs.iter().map(|(run, base)| run / base).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let Summary { median, min, max } = Summary::of(ratios.iter().copied())?;
        Some(Self {
            median,
            min,
            max,
            pairs: ratios.len(),
            interval: Interval::of_median(&ratios),
        })
    }
}

impl Series {
    /// Of all runs of a target, compared with those of the baseline, if it is
    /// another one.
    pub fn of(target: String, runs: Vec<Values>, base: Option<&Self>) -> Self {
        let mut by_figure: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
        for (name, &value) in runs.iter().flatten() {
            by_figure.entry(name).or_default().push(value);
        }
        let summary = by_figure
            .into_iter()
            .filter_map(|(name, values)| Some((name.clone(), Summary::of(values)?)))
            .collect();
        let mut series = Self {
            target,
            summary,
            ratio: BTreeMap::new(),
            runs,
            stolen: Vec::new(),
            repeats: Vec::new(),
        };
        if let Some(base) = base {
            series.ratio = series
                .summary
                .keys()
                .filter_map(|name| Some((name.clone(), Ratio::of(name, &series, base)?)))
                .collect();
        }
        series
    }
}

impl Point {
    /// Computes its ratios anew: those that are read from a file may have no interval.
    pub fn compare_anew(&mut self) {
        let Some((base, compared)) = self.series.split_first_mut() else {
            return;
        };
        for series in compared {
            for (name, ratio) in std::mem::take(&mut series.ratio) {
                let ratio = Ratio::of(&name, series, base).unwrap_or(ratio);
                series.ratio.insert(name, ratio);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64], base: Option<&Series>) -> Series {
        let runs = values.iter().map(|&v| Values::from([(name.to_owned(), v)]));
        Series::of("a".to_owned(), runs.collect(), base)
    }

    #[test]
    fn medians_and_ranges() {
        let summary = |median, min, max| Some(Summary { median, min, max });
        assert_eq!(Summary::of([9.0, 1.0, 4.0]), summary(4.0, 1.0, 9.0));
        assert_eq!(Summary::of([4.0, 10.0, 1.0, 2.0]), summary(3.0, 1.0, 10.0));
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([90.0, 100.0, 120.0]).unwrap().spread(), 0.3);
    }

    #[test]
    fn the_99th_percentile_of_a_few_is_their_maximum() {
        let times = |count: u64| (1..=count).map(Duration::from_millis);
        assert_eq!(milliseconds(times(20)), (10.5, 20.0));
        assert_eq!(milliseconds(times(200)), (100.5, 198.0));
    }

    #[test]
    fn the_ratio_is_the_median_of_the_pairs() {
        let stock = series("tps", &[100.0, 200.0, 400.0], None);
        let pinpoint = series("tps", &[300.0, 400.0, 400.0], Some(&stock));
        // That of the medians would be the same; a machine that gets faster from
        // pair to pair shows the difference.
        let expected = Ratio {
            median: 2.0,
            min: 1.0,
            max: 3.0,
            pairs: 3,
            interval: None,
        };
        assert_eq!(pinpoint.ratio["tps"], expected);
        let drifting = series("tps", &[110.0, 500.0, 10.0], Some(&stock));
        assert_eq!(drifting.ratio["tps"].median, 1.1);
        assert!(stock.ratio.is_empty());
    }

    #[test]
    fn a_run_without_its_pair_has_no_part_in_the_ratio() {
        let stock = series("tps", &[10.0, 30.0], None);
        let pinpoint = series("tps", &[40.0], Some(&stock));
        let Ratio { median, pairs, .. } = pinpoint.ratio["tps"];
        assert_eq!((median, pairs), (4.0, 1));
    }

    #[test]
    fn a_difference_may_be_negative_but_not_divided_by() {
        let stock = series("ddl", &[1.0, 2.0], None);
        let pinpoint = series("ddl", &[-0.5, 1.0], Some(&stock));
        assert_eq!(pinpoint.ratio["ddl"].min, -0.5);
        for zero in [0.0, -1.0] {
            let stock = series("ddl", &[1.0, zero], None);
            assert!(series("ddl", &[1.0, 1.0], Some(&stock)).ratio.is_empty());
        }
    }
}
