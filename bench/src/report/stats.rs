//! Statistics over the runs of one measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use super::interval::{Confidence, Interval};
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
    pub fn of(name: &str, figure: &Series, base: &Series, confidence: Confidence) -> Option<Self> {
        let ratios = ratios(name, figure, base)?;
        Self::of_ratios(ratios.into_iter().flatten().collect(), confidence)
    }

    /// One for several points that answer one question. The ratios of different points are not
    /// of one quantity, so they are no sample. Each run has one pooled ratio: the geometric mean
    /// of the ratios of all points in that run. These are independent of each other, as the pairs
    /// at one point are. A run that is missing at one point is left out.
    pub fn pooled(
        name: &str,
        points: &[(&Series, &Series)],
        confidence: Confidence,
    ) -> Option<Self> {
        let points = points
            .iter()
            .map(|(figure, base)| ratios(name, figure, base))
            .collect::<Option<Vec<_>>>()?;
        let runs = points.iter().map(Vec::len).min()?;
        let of_run =
            |run| -> Option<Vec<f64>> { points.iter().map(|ratios| ratios[run]).collect() };
        let runs: Vec<Vec<f64>> = (0..runs).filter_map(of_run).collect();
        // These have no geometric mean.
        if runs.iter().flatten().any(|ratio| *ratio <= 0.0) {
            return None;
        }
        Self::of_ratios(
            runs.iter().map(|run| geometric_mean(run)).collect(),
            confidence,
        )
    }

    /// If there are too few for the confidence, the interval is the widest one that there is.
    fn of_ratios(mut ratios: Vec<f64>, confidence: Confidence) -> Option<Self> {
        ratios.sort_unstable_by(f64::total_cmp);
        let Summary { median, min, max } = Summary::of(ratios.iter().copied())?;
        Some(Self {
            median,
            min,
            max,
            pairs: ratios.len(),
            interval: Interval::of_median(&ratios, confidence)
                .or_else(|| Interval::of_median(&ratios, Confidence::Usual)),
        })
    }
}

/// Of each pair of runs that has the figure. `None` if there is a pair without a ratio.
fn ratios(name: &str, figure: &Series, base: &Series) -> Option<Vec<Option<f64>>> {
    let pairs = figure.runs.iter().zip(&base.runs);
    let ratio = |(run, base): (&Values, &Values)| match (run.get(name), base.get(name)) {
        (Some(run), Some(base)) if *base > 0.0 => Some(Some(run / base)),
        (Some(_), Some(_)) => None,
        _ => Some(None),
    };
    pairs.map(ratio).collect()
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (logarithms / values.len() as f64).exp()
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
                .filter_map(|name| {
                    Some((
                        name.clone(),
                        Ratio::of(name, &series, base, Confidence::Usual)?,
                    ))
                })
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
                let ratio = Ratio::of(&name, series, base, Confidence::Usual).unwrap_or(ratio);
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

    fn pooled(points: &[(&Series, &Series)]) -> Option<Ratio> {
        Ratio::pooled("tps", points, Confidence::Usual)
    }

    #[test]
    fn a_pooled_ratio_is_the_median_of_the_geometric_means_of_the_runs() {
        let stock = series("tps", &[10.0; 7], None);
        let few = series("tps", &[20.0, 10.0, 10.0, 40.0, 10.0, 5.0, 10.0], None);
        let many = series("tps", &[20.0, 40.0, 90.0, 90.0, 10.0, 5.0], None);
        let ratio = pooled(&[(&few, &stock), (&many, &stock)]).unwrap();
        // 2, 2, 3, 6, 1 and 0.5: the seventh run is not there at all points.
        assert_eq!(ratio.pairs, 6);
        assert!((ratio.median - 2.0).abs() < 1e-12);
        let Interval { low, high, .. } = ratio.interval.unwrap();
        assert!((low - 0.5).abs() < 1e-12 && (high - 6.0).abs() < 1e-12);
    }

    #[test]
    fn a_pooled_ratio_of_one_point_is_its_ratio() {
        let stock = series("tps", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], None);
        let here = series("tps", &[2.0; 6], Some(&stock));
        let (pooled, alone) = (pooled(&[(&here, &stock)]).unwrap(), here.ratio["tps"]);
        assert!((pooled.median - alone.median).abs() < 1e-12);
        assert_eq!(pooled.pairs, alone.pairs);
    }

    #[test]
    fn what_has_no_geometric_mean_is_not_pooled() {
        let stock = series("tps", &[1.0; 6], None);
        for value in [0.0, -1.0] {
            let here = series("tps", &[1.0, 1.0, value, 1.0, 1.0, 1.0], None);
            assert_eq!(pooled(&[(&stock, &stock), (&here, &stock)]), None);
            assert_eq!(pooled(&[(&stock, &here)]), None);
        }
        assert_eq!(pooled(&[]), None);
    }

    #[test]
    fn an_interval_of_a_headline_is_wider_if_there_are_enough_pairs() {
        let values: Vec<f64> = (1..=12).map(f64::from).collect();
        let stock = series("tps", &[1.0; 12], None);
        let ends = |count: usize, confidence| {
            let here = series("tps", &values[..count], None);
            let ratio = Ratio::of("tps", &here, &stock, confidence).unwrap();
            ratio.interval.map(|interval| (interval.low, interval.high))
        };
        assert_eq!(ends(12, Confidence::Usual), Some((3.0, 10.0)));
        assert_eq!(ends(12, Confidence::Headline), Some((2.0, 11.0)));
        assert_eq!(ends(7, Confidence::Headline), Some((1.0, 7.0)));
        assert_eq!(ends(5, Confidence::Headline), None);
    }
}
