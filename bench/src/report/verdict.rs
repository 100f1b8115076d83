//! What may be concluded from a comparison.
//!
//! A machine that others share makes equal servers differ. With six pairs, all of
//! them point the same way by chance once in 32 times, and a report has dozens of
//! places. So there is a verdict only if, besides, the runs of the two servers lie
//! further apart than those of either among themselves. Measured against itself
//! (`--aa`), a server then gets none.

use super::results::{Figure, Kind, Point, Report, Series, Summary};

/// Fewer pairs are no reason for a verdict.
pub const LEAST_PAIRS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// So few pairs were measured.
    TooFew(usize),
    /// The pairs disagree, or the difference could be noise.
    Unclear,
    /// There is nothing to divide by.
    NoRatio,
}

impl Verdict {
    /// Of a figure of a target at a point.
    pub fn of(figure: &Figure, series: &Series, base: &Series) -> Self {
        let Some(ratio) = series.ratio.get(&figure.name) else {
            return Self::NoRatio;
        };
        if ratio.pairs < LEAST_PAIRS {
            return Self::TooFew(ratio.pairs);
        }
        let summary = |of: &Series| of.summary.get(&figure.name).copied();
        let (Some(here), Some(there)) = (summary(series), summary(base)) else {
            return Self::NoRatio;
        };
        let is_more = ratio.min > 1.0 && lie_apart(there, here);
        let is_less = ratio.max < 1.0 && lie_apart(here, there);
        match (figure.kind, is_more, is_less) {
            (Kind::Rate | Kind::Share, true, _) | (Kind::Time, _, true) => Self::Better,
            (Kind::Rate | Kind::Share, _, true) | (Kind::Time, true, _) => Self::Worse,
            _ => Self::Unclear,
        }
    }

    pub fn is_clear(self) -> bool {
        matches!(self, Self::Better | Self::Worse)
    }
}

/// Whether the step from the highest of the low values to the lowest of the high
/// ones is no less than the range of either, as ratios.
fn lie_apart(low: Summary, high: Summary) -> bool {
    let range = |of: Summary| of.max / of.min;
    low.min > 0.0 && high.min / low.max >= range(low).max(range(high))
}

/// A place on the axis, as far as one target's main figure goes.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub point: &'a Point,
    pub series: &'a Series,
    pub base: &'a Series,
    pub verdict: Verdict,
    /// More is better, whatever the figure is.
    pub improvement: f64,
}

/// Where a target does best compared with the baseline, and where it does worst:
/// the same place twice if there is only one.
pub fn best_and_worst<'a>(report: &'a Report, target: &str) -> Option<(Place<'a>, Place<'a>)> {
    let figure = report.figures.first()?;
    let places = report.points.iter().filter_map(|point| {
        let (base, series) = (point.series.first()?, point.of_target(target)?);
        let ratio = series.ratio.get(&figure.name)?.median;
        Some(Place {
            point,
            series,
            base,
            verdict: Verdict::of(figure, series, base),
            improvement: match figure.kind {
                // A difference that is less than nothing says nothing.
                Kind::Time if ratio <= 0.0 => 1.0,
                Kind::Time => 1.0 / ratio,
                _ => ratio,
            },
        })
    });
    let mut places: Vec<Place> = places.collect();
    places.sort_by(|a, b| a.improvement.total_cmp(&b.improvement));
    Some((*places.last()?, *places.first()?))
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::report::results::Values;

    fn verdict(kind: Kind, base: &[f64], here: &[f64]) -> Verdict {
        let figure = Figure::new("x", "x", kind);
        let runs = |values: &[f64]| -> Vec<Values> {
            let run = |&value: &f64| Values::from([("x".to_owned(), value)]);
            values.iter().map(run).collect()
        };
        let base = Series::of("a".to_owned(), runs(base), None);
        let series = Series::of("b".to_owned(), runs(here), Some(&base));
        Verdict::of(&figure, &series, &base)
    }

    #[test]
    fn six_pairs_that_agree_and_lie_apart() {
        let low = [10.0, 11.0, 12.0, 10.0, 11.0, 12.0];
        let high = low.map(|value| value * 2.0);
        assert_eq!(verdict(Kind::Rate, &low, &high), Verdict::Better);
        assert_eq!(verdict(Kind::Rate, &high, &low), Verdict::Worse);
        assert_eq!(verdict(Kind::Time, &low, &high), Verdict::Worse);
        assert_eq!(verdict(Kind::Time, &high, &low), Verdict::Better);
        assert_eq!(verdict(Kind::Count, &low, &high), Verdict::Unclear);
        assert_eq!(verdict(Kind::Rate, &low[..5], &high), Verdict::TooFew(5));
        // Every pair says more, but by less than what one server's runs differ by.
        let little = low.map(|value| value * 1.1);
        assert_eq!(verdict(Kind::Rate, &low, &little), Verdict::Unclear);
        // One pair disagrees.
        let mut mixed = high;
        mixed[3] = 9.0;
        assert_eq!(verdict(Kind::Rate, &low, &mixed), Verdict::Unclear);
        assert_eq!(verdict(Kind::Time, &[0.0; 6], &low), Verdict::NoRatio);
    }

    /// Noise as that of a shared machine: each run by itself, and a disturbance that
    /// comes and goes slowly.
    #[test]
    fn a_server_against_itself_gets_none() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for noise in [0.05, 0.3, 1.0] {
            let mut disturbance = 0.0;
            for comparison in 0..5000 {
                let mut run = || {
                    disturbance = 0.9 * disturbance + noise * random.random_range(-1.0..1.0);
                    let own: f64 = noise * random.random_range(-1.0..1.0);
                    (own + disturbance).exp()
                };
                let mut runs = [Vec::new(), Vec::new()];
                for number in 0..6 {
                    // A B, B A.
                    for server in [number % 2, 1 - number % 2] {
                        runs[server].push(run());
                    }
                }
                let found = verdict(Kind::Rate, &runs[0], &runs[1]);
                assert_eq!(found, Verdict::Unclear, "{comparison}: {runs:?}");
            }
        }
    }
}
