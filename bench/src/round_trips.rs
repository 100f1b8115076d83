//! What is measured of round trips.

use std::time::Duration;

use crate::latency::Latencies;
use crate::results::{Better, Figure, Scale, Values};

const PER_SEC: &str = "round_trips_per_sec";
const MAX_LATENCY: &str = "max_latency_usec";
const P50_LATENCY: &str = "p50_latency_usec";
const P99_LATENCY: &str = "p99_latency_usec";

/// All that `values` returns.
pub fn figures() -> Vec<Figure> {
    let figure = |name: &str, label: &str, better, chart| Figure {
        name: name.to_owned(),
        label: label.to_owned(),
        better,
        scale: Scale::Logarithmic,
        chart,
        is_ratio: false,
    };
    let lower = Better::Lower;
    vec![
        figure(PER_SEC, "round trips per second", Better::Higher, true),
        figure(MAX_LATENCY, "longest round trip (µs)", lower, true),
        figure(P50_LATENCY, "median of the round trips (µs)", lower, false),
        figure(
            P99_LATENCY,
            "99th percentile of the round trips (µs)",
            lower,
            false,
        ),
    ]
}

/// The figures of a run that took `elapsed`, by the latencies of its round trips.
pub fn values(latencies: &Latencies, elapsed: Duration) -> Values {
    let rate = latencies.count() as f64 / elapsed.as_secs_f64();
    let mut values = Values::from([(PER_SEC.to_owned(), rate)]);
    let latencies = [
        (P50_LATENCY, latencies.at_quantile(0.50)),
        (P99_LATENCY, latencies.at_quantile(0.99)),
        (MAX_LATENCY, latencies.max()),
    ];
    for (name, latency) in latencies {
        values.extend(latency.map(|latency| (name.to_owned(), latency as f64)));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency;

    #[test]
    fn figures_of_a_run() {
        let expected = [
            (PER_SEC, 200.0),
            (P50_LATENCY, 50.0),
            (P99_LATENCY, 99.0),
            (MAX_LATENCY, 100.0),
        ];
        assert_eq!(
            values(&latency::tests::of(1..=100), Duration::from_millis(500)),
            expected
                .map(|(name, value)| (name.to_owned(), value))
                .into()
        );
    }
}
