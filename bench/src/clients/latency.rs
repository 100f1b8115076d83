//! How latencies are distributed.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies are kept to this many decimal digits.
const SIGNIFICANT_DIGITS: u8 = 3;

/// What is reported of latencies: how the name of a figure ends, and the same in words.
pub const STATISTICS: [(&str, &str); 3] = [
    ("p50_usec", "median"),
    ("p99_usec", "99th percentile"),
    ("max_usec", "maximum"),
];

/// A number of latencies, in microseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        let histogram = Histogram::new(SIGNIFICANT_DIGITS).expect("the precision is valid");
        Self(histogram)
    }

    pub fn record(&mut self, latency: Duration) {
        let microseconds = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.0
            .record(microseconds)
            .expect("the histogram grows with its values");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a fraction of all of them do not exceed.
    pub fn at_quantile(&self, quantile: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile))
    }

    pub fn max(&self) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.max())
    }

    /// The figures whose names begin with `start`: those that there are, as of nothing
    /// there is no quantile.
    pub fn figures(&self, start: &str) -> impl Iterator<Item = (String, f64)> {
        let values = [self.at_quantile(0.50), self.at_quantile(0.99), self.max()];
        let figures = STATISTICS.into_iter().zip(values);
        figures.filter_map(move |((end, _), value)| Some((format!("{start}_{end}"), value? as f64)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn of(microseconds: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        for latency in microseconds {
            latencies.record(Duration::from_micros(latency));
        }
        latencies
    }

    #[test]
    fn quantiles_and_maximum() {
        let latencies = of(1..=100);
        assert_eq!(latencies.count(), 100);
        assert_eq!(latencies.at_quantile(0.50), Some(50));
        assert_eq!(latencies.at_quantile(0.99), Some(99));
        assert_eq!(latencies.max(), Some(100));
    }

    #[test]
    fn figures_have_the_statistic_in_their_name() {
        let figures: Vec<_> = of(1..=100).figures("from_due").collect();
        let expected = [
            ("from_due_p50_usec", 50.0),
            ("from_due_p99_usec", 99.0),
            ("from_due_max_usec", 100.0),
        ];
        assert_eq!(
            figures,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }

    #[test]
    fn of_nothing() {
        assert_eq!((of([]).at_quantile(0.50), of([]).max()), (None, None));
        assert_eq!(of([]).figures("x").count(), 0);
    }

    #[test]
    fn a_latency_of_minutes_is_kept() {
        let max = of([600_000_000]).max().unwrap();
        assert!((600_000_000..600_600_000).contains(&max), "{max}");
    }
}
