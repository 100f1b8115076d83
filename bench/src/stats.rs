//! Statistics over the runs of one measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::results::{Ratio, Series, Summary, Values};

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

    /// The same of durations, in milliseconds.
    pub fn of_milliseconds(durations: impl Iterator<Item = Duration>) -> Option<Self> {
        Self::of(durations.map(|duration| duration.as_secs_f64() * 1e3))
    }

    /// How far apart the values are, as a fraction of their median.
    pub fn spread(&self) -> f64 {
        (self.max - self.min) / self.median
    }
}

impl Ratio {
    /// Of a figure to the same figure of the baseline, run by run. `None` where
    /// the baseline has nothing that could be divided by.
    fn of(name: &str, figure: &Series, base: &Series) -> Option<Self> {
        let pairs = figure.runs.iter().zip(&base.runs);
        let runs = Summary::of(
            pairs.filter_map(|(run, base)| quotient(*run.get(name)?, *base.get(name)?)),
        )?;
        Some(Self {
            of_medians: quotient(
                figure.summary.get(name)?.median,
                base.summary.get(name)?.median,
            )?,
            min: runs.min,
            max: runs.max,
        })
    }
}

fn quotient(value: f64, base: f64) -> Option<f64> {
    Some(value / base).filter(|quotient| quotient.is_finite())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(median: f64, min: f64, max: f64) -> Option<Summary> {
        Some(Summary { median, min, max })
    }

    fn series(target: &str, runs: &[&[(&str, f64)]], base: Option<&Series>) -> Series {
        let values = |run: &&[(&str, f64)]| {
            run.iter()
                .map(|&(name, value)| (name.to_owned(), value))
                .collect()
        };
        Series::of(target.to_owned(), runs.iter().map(values).collect(), base)
    }

    #[test]
    fn of_an_odd_number_of_values() {
        assert_eq!(Summary::of([9.0, 1.0, 4.0]), summary(4.0, 1.0, 9.0));
        assert_eq!(Summary::of([5.0]), summary(5.0, 5.0, 5.0));
    }

    #[test]
    fn of_an_even_number_of_values() {
        assert_eq!(Summary::of([4.0, 10.0, 1.0, 2.0]), summary(3.0, 1.0, 10.0));
    }

    #[test]
    fn of_nothing() {
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn spread_is_relative_to_the_median() {
        assert_eq!(Summary::of([90.0, 100.0, 120.0]).unwrap().spread(), 0.3);
        assert_eq!(Summary::of([7.0]).unwrap().spread(), 0.0);
    }

    #[test]
    fn ratios_are_of_medians_and_their_ranges_of_runs() {
        let stock = series(
            "stock",
            &[&[("tps", 100.0)], &[("tps", 200.0)], &[("tps", 120.0)]],
            None,
        );
        let pinpoint = series(
            "pinpoint",
            &[&[("tps", 400.0)], &[("tps", 480.0)], &[("tps", 600.0)]],
            Some(&stock),
        );
        assert!(stock.ratio.is_empty());
        let expected = Ratio {
            of_medians: 4.0,
            min: 2.4,
            max: 5.0,
        };
        assert_eq!(pinpoint.ratio["tps"], expected);
    }

    #[test]
    fn a_run_that_was_not_finished_has_no_part_in_the_ratio() {
        let stock = series("stock", &[&[("tps", 10.0)], &[("tps", 30.0)]], None);
        let pinpoint = series("pinpoint", &[&[("tps", 40.0)]], Some(&stock));
        let expected = Ratio {
            of_medians: 2.0,
            min: 4.0,
            max: 4.0,
        };
        assert_eq!(pinpoint.ratio["tps"], expected);
    }

    #[test]
    fn what_cannot_be_divided_by_gives_no_ratio() {
        let stock = series("stock", &[&[("usec", 0.0), ("rate", 1.0)]], None);
        let pinpoint = series(
            "pinpoint",
            &[&[("usec", 5.0), ("rate", 2.0), ("more", 1.0)]],
            Some(&stock),
        );
        let names: Vec<_> = pinpoint.ratio.keys().collect();
        assert_eq!(names, ["rate"]);
    }

    #[test]
    fn a_figure_is_summarised_over_the_runs_that_have_it() {
        let series = series("stock", &[&[("p99", 1.0)], &[], &[("p99", 3.0)]], None);
        assert_eq!(series.summary.get("p99").copied(), summary(2.0, 1.0, 3.0));
    }
}
