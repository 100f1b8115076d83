//! What may be concluded from a comparison.
//!
//! Of 20 comparisons of a server with itself, one shows a difference by chance at most, and of
//! 100 headlines: the interval of the median of the ratios then does not contain 1. What an interval could hide
//! can be read from it, so it is shown with each ratio.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use pinpoint_servers::arguments::AGAIN;

use super::interval::{Confidence, Interval};
use super::number_format;
use super::results::{Kind, Ratio, Report, Series};

/// From fewer pairs there is no interval.
pub const LEAST_PAIRS: usize = 6;

/// A ratio with its interval, and what has to be said of it: nothing if there is a
/// difference. Too few pairs for the confidence have another interval, with its coverage.
pub fn of(ratio: &Ratio, confidence: Confidence) -> String {
    let median = number_format::ratio(ratio.median);
    let Some(interval) = ratio.interval else {
        return format!("{median}, too few pairs");
    };
    let [low, high] = [interval.low, interval.high].map(number_format::limit);
    let coverage = match interval.coverage < confidence.probability() {
        true => format!(", {:.1} %", 100.0 * interval.coverage),
        false => String::new(),
    };
    let remark = match interval.contains(1.0) {
        true => ", no difference found",
        false => "",
    };
    format!("{median} [{low}-{high}{coverage}]{remark}")
}

/// Is the figure better than that of the baseline, or worse? `None` if no difference was found,
/// or if neither way is better.
pub fn is_better(kind: Kind, ratio: &Ratio) -> Option<bool> {
    let interval = ratio.interval?;
    match kind {
        _ if interval.contains(1.0) => None,
        Kind::Rate | Kind::Share => Some(interval.low > 1.0),
        Kind::Time => Some(interval.high < 1.0),
        Kind::Count => None,
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
    usual: Found,
    headlines: Found,
}

/// So many of the intervals of one confidence do not contain 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    count: usize,
    compared: usize,
}

impl Differences {
    /// Of the main figures at all points of the reports. `None` if no server was compared with
    /// itself.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Option<Self> {
        let pairs: Vec<_> = reports.into_iter().flat_map(with_itself).collect();
        let usual = Found::of(&pairs, Confidence::Usual);
        let headlines = Found::of(&pairs, Confidence::Headline);
        (usual.compared > 0).then_some(Self { usual, headlines })
    }
}

impl Found {
    fn of(pairs: &[(&str, &Series, &Series)], confidence: Confidence) -> Self {
        let intervals: Vec<Interval> = pairs
            .iter()
            .filter_map(|(figure, series, base)| {
                Ratio::of(figure, series, base, confidence)?.interval
            })
            .filter(|interval| interval.coverage >= confidence.probability())
            .collect();
        Self {
            count: intervals.iter().filter(|i| !i.contains(1.0)).count(),
            compared: intervals.len(),
        }
    }
}

impl Display for Differences {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { usual, headlines } = self;
        write!(
            f,
            "a server compared with itself: {} of {} intervals of main figures do not contain 1 \
             (expected: 1 in 20 at most)",
            usual.count, usual.compared
        )?;
        if headlines.compared > 0 {
            write!(
                f,
                ", and {} of {} with the confidence of headlines (1 in 100 at most)",
                headlines.count, headlines.compared
            )?;
        }
        Ok(())
    }
}

/// The main figure, a server that is compared with itself, and its first measurement.
fn with_itself(report: &Report) -> Vec<(&str, &Series, &Series)> {
    let (Some(figure), Some(baseline)) = (report.figures.first(), report.targets.first()) else {
        return Vec::new();
    };
    // There is no verdict on what is counted.
    if figure.kind == Kind::Count {
        return Vec::new();
    }
    let again = format!("{}{AGAIN}", baseline.name);
    let pairs = report.points.iter().filter_map(|point| {
        let (series, base) = (point.of_target(&again)?, point.of_target(&baseline.name)?);
        Some((figure.name.as_str(), series, base))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::report::results::Values;
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
        let text = |here: &[f64]| of(&ratio(&base[..here.len()], here), Confidence::Usual);
        let slightly_more = [105.0, 106.0, 107.0, 107.0, 109.0, 110.0];
        assert_eq!(text(&slightly_more), "1.07 [1.05-1.10]");
        assert_eq!(
            text(&slightly_more.map(|value| value - 8.0)),
            "0.99 [0.97-1.02], no difference found"
        );
        assert_eq!(text(&slightly_more[..5]), "1.07, too few pairs");
        let interval = |values: &[f64]| Interval::of_median(values, Confidence::Usual);
        assert!(interval(&[1.0; LEAST_PAIRS]).is_some());
        assert!(interval(&[1.0; LEAST_PAIRS - 1]).is_none());
        // One is neither more nor less.
        assert_eq!(
            text(&[100.0, 110.0, 110.0, 110.0, 110.0, 110.0]),
            "1.10 [1.00-1.10], no difference found"
        );
    }

    #[test]
    fn a_headline_with_too_few_pairs_has_its_coverage() {
        let base = [1.0; 12];
        let text = |here: &[f64]| of(&ratio(&base[..here.len()], here), Confidence::Headline);
        assert_eq!(
            text(&[1.1, 1.2, 1.2, 1.2, 1.2, 1.3]),
            "1.20 [1.10-1.30, 96.9 %]"
        );
        assert_eq!(
            text(&[0.9, 1.2, 1.2, 1.2, 1.2, 1.2]),
            "1.20 [0.90-1.20, 96.9 %], no difference found"
        );
    }

    #[test]
    fn only_a_difference_is_better_or_worse() {
        let more = ratio(&[1.0; 6], &[1.1, 1.2, 1.3, 1.4, 1.5, 1.6]);
        let same = ratio(&[1.0; 6], &[0.9, 1.2, 1.3, 1.4, 1.5, 1.6]);
        let few = ratio(&[1.0; 5], &[1.1, 1.2, 1.3, 1.4, 1.5]);
        for (kind, expected) in [
            (Kind::Rate, Some(true)),
            (Kind::Share, Some(true)),
            (Kind::Time, Some(false)),
            (Kind::Count, None),
        ] {
            assert_eq!(is_better(kind, &more), expected);
            assert_eq!(is_better(kind, &same), None);
            assert_eq!(is_better(kind, &few), None);
        }
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

    /// The runs of two servers of the same speed, with noise as that of a shared machine: each
    /// run by itself, and a disturbance that comes and goes slowly.
    fn runs_of_equals(random: &mut ChaCha8Rng, noise: f64, pairs: usize) -> [Series; 2] {
        let mut disturbance = 0.0;
        let mut run = || {
            disturbance = 0.9 * disturbance + noise * random.random_range(-1.0..1.0);
            let own: f64 = noise * random.random_range(-1.0..1.0);
            Values::from([("x".to_owned(), (own + disturbance).exp())])
        };
        let mut runs = [Vec::new(), Vec::new()];
        for number in 0..pairs {
            // A B, B A.
            for server in [number % 2, 1 - number % 2] {
                runs[server].push(run());
            }
        }
        runs.map(|runs| Series::of("a".to_owned(), runs, None))
    }

    #[test]
    fn a_server_differs_from_itself_once_in_twenty_times_and_in_a_hundred_headlines() {
        const COMPARISONS: usize = 5000;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for (noise, pairs, confidence, most) in [
            (0.05, 6, Confidence::Usual, COMPARISONS / 20),
            (0.3, 12, Confidence::Usual, COMPARISONS / 20),
            (1.0, 24, Confidence::Usual, COMPARISONS / 20),
            (0.3, 12, Confidence::Headline, COMPARISONS / 100),
        ] {
            let differs = |_: &usize| {
                let [base, here] = runs_of_equals(&mut random, noise, pairs);
                let ratio = Ratio::of("x", &here, &base, confidence).unwrap();
                !ratio.interval.unwrap().contains(1.0)
            };
            let found = (0..COMPARISONS).filter(differs).count();
            assert!((1..=most).contains(&found), "{found} with {pairs} pairs");
        }
    }

    /// The points have different noise.
    #[test]
    fn a_server_differs_from_itself_once_in_twenty_pooled_ratios() {
        const COMPARISONS: usize = 2000;
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let differs = |_: &usize| {
            let points = [0.05, 0.1, 0.3, 1.0].map(|noise| runs_of_equals(&mut random, noise, 12));
            let points = points.each_ref().map(|[base, here]| (here, base));
            let ratio = Ratio::pooled("x", &points, Confidence::Usual).unwrap();
            !ratio.interval.unwrap().contains(1.0)
        };
        let found = (0..COMPARISONS).filter(differs).count();
        assert!((1..=COMPARISONS / 20).contains(&found), "{found}");
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
        let mut counted = report.clone();
        counted.figures[0].kind = Kind::Count;
        assert_eq!(Differences::of([&counted]), None);
        // There are too few pairs in the other one.
        let differences = Differences::of([&report, &sample_reports::drift()]).unwrap();
        assert_eq!(differences.usual.compared, compared);
        assert!(
            (1..=compared).contains(&differences.usual.count),
            "{differences}"
        );
        assert_eq!(differences.headlines.compared, 0, "{differences}");
    }
}
