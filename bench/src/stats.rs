//! Statistics over the runs of one measurement.

use serde::Serialize;

/// What is reported of several runs. The median rather than the mean, since one
/// disturbed run must not move the figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(median: f64, min: f64, max: f64) -> Option<Summary> {
        Some(Summary { median, min, max })
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
}
