//! The interval in which the median of paired ratios lies, by the sign test.
//!
//! Each ratio is above the true median with a probability of one half, whatever the
//! distribution of the ratios is. So the number of ratios below the median has the binomial
//! distribution, which tells between which ranks of the sorted ratios the median lies, and
//! with which probability. Nothing is assumed of the form of the noise.

use serde::{Deserialize, Serialize};

/// An interval contains the median with at least this probability.
const CONFIDENCE: f64 = 0.95;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// The probability with which it contains the median, at least `CONFIDENCE`. Ranks are
    /// whole numbers, so it is seldom exactly that.
    pub coverage: f64,
}

impl Interval {
    /// The narrowest one of values in rising order. `None` if there are too few: then even
    /// that from the least to the greatest does not have the confidence.
    pub fn of_median(sorted: &[f64]) -> Option<Self> {
        let (rank, coverage) = rank(sorted.len())?;
        Some(Self {
            low: sorted[rank - 1],
            high: sorted[sorted.len() - rank],
            coverage,
        })
    }

    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The rank at which the interval of so many values begins, counted from 1, and its coverage.
/// It ends at the same rank from above. The median lies below the value of rank r if fewer
/// than r values are below the median.
fn rank(count: usize) -> Option<(usize, f64)> {
    let outside = (1.0 - CONFIDENCE) / 2.0;
    let mut found = None;
    let mut below = 0.0;
    // The logarithm of C(count, rank): the coefficients themselves are too large for many values.
    let mut logarithm = 0.0;
    for rank in 0..count {
        below += (logarithm - count as f64 * std::f64::consts::LN_2).exp();
        if below > outside {
            break;
        }
        found = Some((rank + 1, 1.0 - 2.0 * below));
        logarithm += ((count - rank) as f64 / (rank + 1) as f64).ln();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(count: usize) -> Option<(usize, usize)> {
        rank(count).map(|(rank, _)| (rank, count + 1 - rank))
    }

    /// From tables of the sign test's interval of the median.
    #[test]
    fn the_ranks_are_those_of_published_tables() {
        for (count, expected) in [
            (6, (1, 6)),
            (7, (1, 7)),
            (8, (1, 8)),
            (9, (2, 8)),
            (10, (2, 9)),
            (11, (2, 10)),
            (12, (3, 10)),
            (15, (4, 12)),
            (20, (6, 15)),
            (24, (7, 18)),
            (25, (8, 18)),
            (50, (18, 33)),
            (100, (40, 61)),
        ] {
            assert_eq!(ranks(count), Some(expected), "{count}");
        }
        for count in 0..6 {
            assert_eq!(ranks(count), None, "{count}");
        }
    }

    /// The probabilities are fractions of powers of two.
    #[test]
    fn the_coverage_is_exact() {
        for (count, outside) in [
            (6, 2.0 / 64.0),
            (8, 2.0 / 256.0),
            (9, 2.0 * 10.0 / 512.0),
            (12, 2.0 * (1.0 + 12.0 + 66.0) / 4096.0),
            (15, 2.0 * (1.0 + 15.0 + 105.0 + 455.0) / 32_768.0),
        ] {
            let (_, coverage) = rank(count).unwrap();
            assert!((coverage - (1.0 - outside)).abs() < 1e-12, "{count}");
        }
        for count in 6..2000 {
            let (_, coverage) = rank(count).unwrap();
            assert!((CONFIDENCE..1.0).contains(&coverage), "{count}");
        }
        // The normal distribution is close to it for so many.
        let (rank, coverage) = rank(1_000_000).unwrap();
        assert!((499_015..=499_025).contains(&rank), "{rank}");
        assert!(coverage < 0.951, "{coverage}");
    }

    #[test]
    fn of_six_values_it_is_from_the_least_to_the_greatest() {
        let interval = Interval::of_median(&[0.5, 0.9, 1.0, 1.1, 1.2, 2.0]).unwrap();
        assert_eq!((interval.low, interval.high), (0.5, 2.0));
        assert_eq!(interval.coverage, 0.96875);
        assert!(
            [0.5, 1.0, 2.0]
                .iter()
                .all(|&value| interval.contains(value))
        );
        assert!(![0.49, 2.01].iter().any(|&value| interval.contains(value)));
        assert_eq!(Interval::of_median(&[1.0; 5]), None);
    }
}
