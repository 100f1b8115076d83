//! What may be concluded from a comparison.
//!
//! Of 20 comparisons of a server with itself, one shows a difference by chance at most: the
//! interval of the median of the ratios then does not contain 1. What an interval could hide
//! can be read from it, so it is shown with each ratio.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use pinpoint_servers::arguments::AGAIN;

use super::interval::Interval;
use super::number_format;
use super::results::{Ratio, Report};

/// From fewer pairs there is no interval.
pub const LEAST_PAIRS: usize = 6;

/// A ratio with its interval, and what has to be said of it: nothing if there is a
/// difference.
pub fn of(ratio: &Ratio) -> String {
    let median = number_format::ratio(ratio.median);
    match ratio.interval {
        None => format!("{median}, too few pairs"),
        Some(interval) => {
            let [low, high] = [interval.low, interval.high].map(number_format::ratio);
            let remark = match interval.contains(1.0) {
                true => ", no difference found",
                false => "",
            };
            format!("{median} [{low}-{high}]{remark}")
        }
    }
}

/// What the numbers of a report's tables are, a sentence without its full stop.
pub fn legend(report: &Report) -> String {
    let series = report.points.iter().flat_map(|point| &point.series);
    let coverages: BTreeMap<usize, f64> = series
        .flat_map(|series| series.ratio.values())
        .filter_map(|ratio| Some((ratio.pairs, ratio.interval?.coverage)))
        .collect();
    let coverages: Vec<String> = coverages
        .into_iter()
        .map(|(pairs, coverage)| format!("{:.1} % of {pairs} pairs", 100.0 * coverage))
        .collect();
    let medians = "medians of the runs (minimum-maximum), and of the ratios of paired runs";
    match &coverages[..] {
        [] => medians.to_owned(),
        coverages => format!(
            "{medians} [95 % interval of the median by the sign test; its coverage is {}]",
            coverages.join(", ")
        ),
    }
}

/// How often a server that was measured twice (`--aa`) differs from itself. This checks the
/// method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Differences {
    found: usize,
    compared: usize,
}

impl Differences {
    /// Of the main figures at all points of the reports. `None` if no server was compared with
    /// itself.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Option<Self> {
        let intervals: Vec<Interval> = reports.into_iter().flat_map(with_itself).collect();
        let found = intervals.iter().filter(|i| !i.contains(1.0)).count();
        let compared = intervals.len();
        (compared > 0).then_some(Self { found, compared })
    }
}

impl Display for Differences {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { found, compared } = self;
        write!(
            f,
            "a server compared with itself: {found} of {compared} intervals of main figures do \
             not contain 1 (expected: 1 in 20 at most)"
        )
    }
}

/// The intervals of a server that is compared with itself.
fn with_itself(report: &Report) -> Vec<Interval> {
    let (Some(figure), Some(baseline)) = (report.figures.first(), report.targets.first()) else {
        return Vec::new();
    };
    let again = format!("{}{AGAIN}", baseline.name);
    let series = report
        .points
        .iter()
        .filter_map(|point| point.of_target(&again));
    series
        .filter_map(|series| series.ratio.get(&figure.name)?.interval)
        .collect()
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::report::results::{Series, Values};
    use crate::report::sample_reports;

    fn ratio(base: &[f64], here: &[f64]) -> Ratio {
        let runs = |values: &[f64]| -> Vec<Values> {
            let run = |&value: &f64| Values::from([("x".to_owned(), value)]);
            values.iter().map(run).collect()
        };
        let base = Series::of("a".to_owned(), runs(base), None);
        Series::of("b".to_owned(), runs(here), Some(&base)).ratio["x"]
    }

    #[test]
    fn a_ratio_is_shown_with_its_interval() {
        let base = [100.0; 6];
        let text = |here: &[f64]| of(&ratio(&base[..here.len()], here));
        let slightly_more = [105.0, 106.0, 107.0, 107.0, 109.0, 110.0];
        assert_eq!(text(&slightly_more), "1.07 [1.05-1.10]");
        assert_eq!(
            text(&slightly_more.map(|value| value - 8.0)),
            "0.99 [0.97-1.02], no difference found"
        );
        assert_eq!(text(&slightly_more[..5]), "1.07, too few pairs");
        assert!(Interval::of_median(&[1.0; LEAST_PAIRS]).is_some());
        assert!(Interval::of_median(&[1.0; LEAST_PAIRS - 1]).is_none());
        // One is neither more nor less.
        assert_eq!(
            text(&[100.0, 110.0, 110.0, 110.0, 110.0, 110.0]),
            "1.10 [1.00-1.10], no difference found"
        );
    }

    #[test]
    fn the_legend_tells_the_coverage() {
        assert!(!legend(&sample_reports::drift()).contains('['));
        let legend = legend(&sample_reports::commit());
        assert!(
            legend.ends_with("; its coverage is 96.9 % of 6 pairs]"),
            "{legend}"
        );
    }

    /// Noise as that of a shared machine: each run by itself, and a disturbance that
    /// comes and goes slowly.
    #[test]
    fn a_server_differs_from_itself_once_in_twenty_times() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for (noise, pairs) in [(0.05, 6), (0.3, 12), (1.0, 24)] {
            const COMPARISONS: usize = 5000;
            let mut disturbance = 0.0;
            let mut found = 0;
            for _ in 0..COMPARISONS {
                let mut run = || {
                    disturbance = 0.9 * disturbance + noise * random.random_range(-1.0..1.0);
                    let own: f64 = noise * random.random_range(-1.0..1.0);
                    (own + disturbance).exp()
                };
                let mut runs = [Vec::new(), Vec::new()];
                for number in 0..pairs {
                    // A B, B A.
                    for server in [number % 2, 1 - number % 2] {
                        runs[server].push(run());
                    }
                }
                let interval = ratio(&runs[0], &runs[1]).interval.unwrap();
                found += usize::from(!interval.contains(1.0));
            }
            assert!(found <= COMPARISONS / 20, "{found} with {pairs} pairs");
            assert!(found > 0);
        }
    }

    #[test]
    fn differences_of_a_server_from_itself_are_counted() {
        let mut report = sample_reports::pingpong();
        assert_eq!(Differences::of([&report]), None);
        report.targets[1].name = "stock-again".to_owned();
        for point in &mut report.points {
            point.series[1].target = "stock-again".to_owned();
        }
        let compared = report.points.len();
        // There are too few pairs in the other one.
        let differences = Differences::of([&report, &sample_reports::drift()]).unwrap();
        assert_eq!(differences.compared, compared);
        assert!((1..=compared).contains(&differences.found), "{differences}");
    }
}
