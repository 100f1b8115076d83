//! What may be concluded from a comparison.
//!
//! A machine that others share makes equal servers differ. With six pairs, all of
//! them point the same way by chance once in 32 times, and a report has dozens of
//! places. So a difference is clear only if, besides, the runs of the two servers lie
//! further apart than those of either among themselves. Measured against itself
//! (`--aa`), a server then shows none.

use super::results::{Ratio, Summary};

/// Fewer pairs are no reason for a verdict.
pub const LEAST_PAIRS: usize = 6;

/// What has to be said after a ratio: nothing if the difference is clear.
pub fn remark(ratio: &Ratio, series: Summary, base: Summary) -> &'static str {
    let is_more = ratio.min > 1.0 && lie_apart(base, series);
    let is_less = ratio.max < 1.0 && lie_apart(series, base);
    if ratio.pairs < LEAST_PAIRS {
        ", too few pairs"
    } else if is_more || is_less {
        ""
    } else {
        ", no clear difference"
    }
}

/// Whether the step from the highest of the low values to the lowest of the high
/// ones is no less than the range of either, as ratios.
fn lie_apart(low: Summary, high: Summary) -> bool {
    let range = |of: Summary| of.max / of.min;
    low.min > 0.0 && high.min / low.max >= range(low).max(range(high))
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use crate::report::results::{Series, Values};

    const CLEAR: &str = "";
    const UNCLEAR: &str = ", no clear difference";

    fn remark(base: &[f64], here: &[f64]) -> &'static str {
        let runs = |values: &[f64]| -> Vec<Values> {
            let run = |&value: &f64| Values::from([("x".to_owned(), value)]);
            values.iter().map(run).collect()
        };
        let base = Series::of("a".to_owned(), runs(base), None);
        let series = Series::of("b".to_owned(), runs(here), Some(&base));
        super::remark(&series.ratio["x"], series.summary["x"], base.summary["x"])
    }

    #[test]
    fn six_pairs_that_agree_and_lie_apart() {
        let low = [10.0, 11.0, 12.0, 10.0, 11.0, 12.0];
        let high = low.map(|value| value * 2.0);
        assert_eq!(remark(&low, &high), CLEAR);
        assert_eq!(remark(&high, &low), CLEAR);
        assert_eq!(remark(&low[..5], &high), ", too few pairs");
        // Every pair says more, but by less than what one server's runs differ by.
        let little = low.map(|value| value * 1.1);
        assert_eq!(remark(&low, &little), UNCLEAR);
        // One pair disagrees.
        let mut mixed = high;
        mixed[3] = 9.0;
        assert_eq!(remark(&low, &mixed), UNCLEAR);
    }

    /// Noise as that of a shared machine: each run by itself, and a disturbance that
    /// comes and goes slowly.
    #[test]
    fn a_server_against_itself_shows_none() {
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
                let found = remark(&runs[0], &runs[1]);
                assert_eq!(found, UNCLEAR, "{comparison}: {runs:?}");
            }
        }
    }
}
