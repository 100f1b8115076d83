//! The interval in which the median of paired ratios lies, by the sign test.
//!
//! Each ratio is above the true median with a probability of one half, whatever the
//! distribution of the ratios is. So the number of ratios below the median has the binomial
//! distribution, which tells between which ranks of the sorted ratios the median lies, and
//! with which probability. Nothing is assumed of the form of the noise.

use serde::{Deserialize, Serialize};

/// With which probability an interval contains the median, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// Of one figure among many.
    Usual,
    /// Of a figure that people read alone.
    Headline,
}

impl Confidence {
    pub fn probability(self) -> f64 {
        match self {
            Self::Usual => 0.95,
            Self::Headline => 0.99,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// The probability with which it contains the median. Ranks are whole numbers, so it is
    /// seldom exactly that of the confidence.
    pub coverage: f64,
}

impl Interval {
    /// The narrowest one of values in rising order. `None` if there are too few: then even
    /// that from the least to the greatest does not have the confidence.
    pub fn of_median(sorted: &[f64], confidence: Confidence) -> Option<Self> {
        let (rank, coverage) = rank(sorted.len(), confidence)?;
        Some(Self {
            low: sorted[rank - 1],
            high: sorted[sorted.len() - rank],
            coverage,
        })
    }

    pub fn contains(&self, value: f64) -> bool {
        let rounding = 1e-9 * value.abs(); // of a limit that would be equal to the value
        self.low <= value + rounding && value - rounding <= self.high
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// The rank at which the interval of so many values begins, counted from 1, and its coverage.
/// It ends at the same rank from above. The median lies below the value of rank r if fewer
/// than r values are below the median.
fn rank(count: usize, confidence: Confidence) -> Option<(usize, f64)> {
    let outside = (1.0 - confidence.probability()) / 2.0;
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

    /// The critical values of the two-sided sign test, from 6 observations on, and `None` where
    /// the test never rejects. The interval begins at the next rank.
    ///
    /// M. F. Triola, Elementary Statistics, table A-7 (up to 25 observations); W. J. Dixon and
    /// A. M. Mood, The statistical sign test, Journal of the American Statistical Association 41
    /// (1946), table 1 (the others).
    const AT_5_PERCENT: [Option<usize>; 25] = critical([
        0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 7, 7, 8, 8, 9,
    ]);
    const AT_1_PERCENT: [Option<usize>; 25] = critical([
        -1, -1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 6, 6, 7, 7,
    ]);

    const fn critical(values: [i8; 25]) -> [Option<usize>; 25] {
        let mut found = [None; 25];
        let mut at = 0;
        while at < values.len() {
            if values[at] >= 0 {
                found[at] = Some(values[at] as usize);
            }
            at += 1;
        }
        found
    }

    #[test]
    fn a_rounding_error_of_a_limit_is_no_difference() {
        let from = |low| Interval {
            low,
            high: 1.2,
            coverage: 0.95,
        };
        assert!(from(1.0 + f64::EPSILON).contains(1.0));
        assert!(!from(1.0 + 1e-6).contains(1.0));
        assert!(!from(1.3).contains(1.0));
    }

    #[test]
    fn the_ranks_are_those_of_published_tables() {
        for (confidence, table) in [
            (Confidence::Usual, AT_5_PERCENT),
            (Confidence::Headline, AT_1_PERCENT),
        ] {
            for (count, critical) in (6..).zip(table) {
                let rank = rank(count, confidence).map(|(rank, _)| rank);
                assert_eq!(rank, critical.map(|value| value + 1), "{count}");
            }
            for count in 0..6 {
                assert_eq!(rank(count, confidence), None, "{count}");
            }
        }
    }

    /// W. J. MacKinnon, Table for both the sign test and distribution-free confidence intervals of
    /// the median for sample sizes to 1,000, Journal of the American Statistical Association 59
    /// (1964).
    #[test]
    fn the_ranks_of_many_are_those_of_published_tables() {
        let ends = |count| rank(count, Confidence::Usual).map(|(rank, _)| (rank, count + 1 - rank));
        assert_eq!(ends(50), Some((18, 33)));
        assert_eq!(ends(100), Some((40, 61)));
    }

    /// The probabilities are fractions of powers of two.
    #[test]
    fn the_coverage_is_exact() {
        use Confidence::{Headline, Usual};
        for (count, confidence, outside) in [
            (6, Usual, 2.0 / 64.0),
            (8, Usual, 2.0 / 256.0),
            (8, Headline, 2.0 / 256.0),
            (9, Usual, 2.0 * 10.0 / 512.0),
            (12, Usual, 2.0 * (1.0 + 12.0 + 66.0) / 4096.0),
            (12, Headline, 2.0 * (1.0 + 12.0) / 4096.0),
            (15, Usual, 2.0 * (1.0 + 15.0 + 105.0 + 455.0) / 32_768.0),
        ] {
            let (_, coverage) = rank(count, confidence).unwrap();
            assert!((coverage - (1.0 - outside)).abs() < 1e-12, "{count}");
        }
        for count in 8..2000 {
            for confidence in [Usual, Headline] {
                let (_, coverage) = rank(count, confidence).unwrap();
                assert!(coverage >= confidence.probability(), "{count}");
                assert!(coverage < 1.0, "{count}");
            }
        }
        // The normal distribution is close to it for so many.
        let (rank, coverage) = rank(1_000_000, Usual).unwrap();
        assert!((499_015..=499_025).contains(&rank), "{rank}");
        assert!(coverage < 0.951, "{coverage}");
    }

    #[test]
    fn of_six_values_it_is_from_the_least_to_the_greatest() {
        let of = |values: &[f64]| Interval::of_median(values, Confidence::Usual);
        let interval = of(&[0.5, 0.9, 1.0, 1.1, 1.2, 2.0]).unwrap();
        assert_eq!((interval.low, interval.high), (0.5, 2.0));
        assert_eq!(interval.coverage, 0.96875);
        assert!(
            [0.5, 1.0, 2.0]
                .iter()
                .all(|&value| interval.contains(value))
        );
        assert!(![0.49, 2.01].iter().any(|&value| interval.contains(value)));
        assert_eq!(of(&[1.0; 5]), None);
    }
}
