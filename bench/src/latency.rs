//! How latencies are distributed.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Latencies are kept to this many decimal digits.
const SIGNIFICANT_DIGITS: u8 = 3;

/// A number of latencies, in microseconds. Recorded as their count, median,
/// 99th percentile and maximum, which are null where there are none.
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

    /// Takes over all of `others`.
    pub fn add(&mut self, others: &Self) {
        self.0
            .add(&others.0)
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
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("Latencies", 4)?;
        record.serialize_field("count", &self.count())?;
        record.serialize_field("p50_usec", &self.at_quantile(0.50))?;
        record.serialize_field("p99_usec", &self.at_quantile(0.99))?;
        record.serialize_field("max_usec", &self.max())?;
        record.end()
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

    fn json(latencies: &Latencies) -> String {
        serde_json::to_string(latencies).unwrap()
    }

    #[test]
    fn quantiles_and_maximum() {
        assert_eq!(
            json(&of(1..=100)),
            r#"{"count":100,"p50_usec":50,"p99_usec":99,"max_usec":100}"#
        );
    }

    #[test]
    fn of_nothing() {
        assert_eq!(
            json(&of([])),
            r#"{"count":0,"p50_usec":null,"p99_usec":null,"max_usec":null}"#
        );
    }

    #[test]
    fn put_together() {
        let mut all = of([1, 2]);
        all.add(&of([500]));
        assert_eq!(all, of([1, 2, 500]));
    }

    #[test]
    fn a_latency_of_minutes_is_kept() {
        let max = of([600_000_000]).max().unwrap();
        assert!((600_000_000..600_600_000).contains(&max), "{max}");
    }
}
