//! What happened in a load, and the figures that are made of it.

use std::time::{Duration, Instant};

use super::listeners::Listeners;
use super::row_visibility::Visible;
use super::transaction::Transaction;
use crate::clients::latency::Latencies;
use crate::clients::load_listeners::Received;
use crate::clients::pgbench;
use crate::report::results::Values;

/// What happened in a load.
pub struct Outcome {
    /// Of pgbench, if it had sessions.
    pub load: Option<pgbench::Load>,
    /// When each probe was due.
    pub probes: Vec<Instant>,
    /// When the fence was committed.
    pub fence: Instant,
    /// For each of the groups of listeners.
    pub received: Vec<Vec<Received>>,
    /// Processor time of this program's threads which read the listeners.
    pub client_time: Duration,
    pub rows: Option<Visible>,
    pub wal_bytes: Option<u64>,
}

/// The figures of a load. A benchmark reports those that it names.
pub fn values(transaction: &Transaction, listeners: &[Listeners], outcome: &Outcome) -> Values {
    let mut values = Values::new();
    let mut set = |name: &str, value: f64| values.insert(name.to_owned(), value);
    let transactions = outcome.load.map_or(0, |load| load.transactions);
    if let Some(load) = outcome.load {
        set(transaction.rate, load.transactions_per_sec);
    }
    if !transaction.notifies {
        return values;
    }

    let probes = &outcome.probes;
    let received = outcome.received.iter().flatten();
    let of_each = |what: f64| what / transactions.max(1) as f64;
    let client_usec = outcome.client_time.as_secs_f64() * 1e6;
    set("listeners_client_usec", of_each(client_usec));
    let deliveries: u64 = received.clone().map(|received| received.load).sum();
    set("deliveries_per_notification", of_each(deliveries as f64));
    let backlog = received.map(|received| received.fence.saturating_duration_since(outcome.fence));
    let backlog = backlog.max().unwrap_or_default();
    set("backlog_usec", backlog.as_micros() as f64);
    set("probes", probes.len() as f64);
    if let Some(bytes) = outcome.wal_bytes.filter(|_| outcome.load.is_some()) {
        let transactions = transactions + probes.len() as u64;
        let per_transaction = bytes as f64 / transactions as f64;
        set("wal_bytes_per_transaction", per_transaction);
    }

    let mut from_due = Vec::new();
    for (group, received) in listeners.iter().zip(&outcome.received) {
        let latencies = latencies_from_due(received, probes);
        values.extend(latencies.figures(group.figures));
        from_due.push((group.figures, latencies));
    }
    if let Some(received) = outcome.received.first() {
        values.extend(first_latencies_from_due(received, probes).figures("first_from_due"));
    }
    if let Some(rows) = &outcome.rows {
        let standby = from_due.iter().find(|(figures, _)| *figures == "standby");
        values.extend(row_values(
            rows,
            probes,
            standby.map(|(_, latencies)| latencies),
        ));
    }
    values
}

/// When the rows of the probe became visible on the standby, and how much longer the
/// notifications took.
fn row_values(rows: &Visible, probes: &[Instant], standby: Option<&Latencies>) -> Values {
    let mut visible = Latencies::new();
    for (due, seen) in probes.iter().zip(&rows.seen) {
        visible.record(seen.saturating_duration_since(*due));
    }
    let mut values = Values::new();
    values.extend(visible.figures("row_visible"));
    let question = rows.questions.at_quantile(0.50);
    values.extend(question.map(|usec| ("question_p50_usec".to_owned(), usec as f64)));
    for (name, quantile) in [
        ("standby_to_row_visible", 0.50),
        ("standby_to_row_visible_p99", 0.99),
    ] {
        let standby = standby.and_then(|latencies| latencies.at_quantile(quantile));
        let pair = standby.zip(visible.at_quantile(quantile));
        values.extend(pair.map(|(standby, row)| (name.to_owned(), standby as f64 / row as f64)));
    }
    values
}

/// Of all probes at all listeners that they arrived at, from when each was due.
fn latencies_from_due(received: &[Received], probes: &[Instant]) -> Latencies {
    let mut latencies = Latencies::new();
    for &(number, arrived) in received.iter().flat_map(|received| &received.probes) {
        latencies.record(arrived.saturating_duration_since(probes[number as usize]));
    }
    latencies
}

/// The same at the first listener of each probe.
fn first_latencies_from_due(received: &[Received], probes: &[Instant]) -> Latencies {
    let mut first: Vec<Option<Instant>> = vec![None; probes.len()];
    for &(number, arrived) in received.iter().flat_map(|received| &received.probes) {
        let first = &mut first[number as usize];
        *first = Some(first.map_or(arrived, |first| first.min(arrived)));
    }
    let mut latencies = Latencies::new();
    for (due, arrived) in probes.iter().zip(first) {
        if let Some(arrived) = arrived {
            latencies.record(arrived.saturating_duration_since(*due));
        }
    }
    latencies
}

#[cfg(test)]
mod tests {
    use super::super::listeners::Delivery;
    use super::*;
    use crate::clients::latency::tests::of;

    const MS: Duration = Duration::from_millis(1);

    fn probes(start: Instant) -> Vec<Instant> {
        [10, 20, 30].map(|due| start + due * MS).into()
    }

    fn received(start: Instant, probes: &[(u32, u32)], load: u64) -> Received {
        Received {
            probes: probes.iter().map(|&(n, ms)| (n, start + ms * MS)).collect(),
            fence: start + 300 * MS,
            load,
        }
    }

    fn transaction(notifies: bool) -> Transaction {
        Transaction {
            name: "notify",
            rate: "notify_tps",
            prepare: Vec::new(),
            script: Vec::new(),
            probe: Vec::new(),
            notifies,
        }
    }

    fn group(figures: &'static str) -> Listeners {
        Listeners {
            figures,
            count: 2,
            on_standby: false,
            listen: "LISTEN {channel}",
            gets_load: true,
            delivery: Delivery::Broadcast,
        }
    }

    fn outcome(start: Instant, received: Vec<Vec<Received>>) -> Outcome {
        Outcome {
            load: Some(pgbench::Load {
                transactions: 5,
                transactions_per_sec: 300.0,
            }),
            probes: probes(start),
            fence: start + 50 * MS,
            received,
            client_time: Duration::from_micros(20),
            rows: None,
            wal_bytes: None,
        }
    }

    #[track_caller]
    fn assert_values(values: &Values, expected: &[(&str, f64)]) {
        for (name, value) in expected {
            // Latencies are kept to three digits.
            let difference = (values[*name] - value).abs() / value;
            assert!(difference < 2e-3, "{name} in {values:?}");
        }
    }

    #[test]
    fn latencies_from_due_at_all_and_at_the_first() {
        let start = Instant::now();
        let received = [
            received(start, &[(0, 15), (1, 24), (2, 41)], 0),
            received(start, &[(1, 22)], 0),
        ];
        let probes = probes(start);
        let from_due = latencies_from_due(&received, &probes);
        assert_eq!(from_due, of([5000, 4000, 11_000, 2000]));
        let first = first_latencies_from_due(&received, &probes);
        assert_eq!(first, of([5000, 2000, 11_000]));
    }

    #[test]
    fn figures_of_a_load() {
        let start = Instant::now();
        let received = vec![vec![
            received(start, &[(0, 15), (1, 24), (2, 41)], 5),
            received(start, &[(0, 16), (1, 22), (2, 42)], 5),
        ]];
        let outcome = outcome(start, received);
        let values_of = values(&transaction(true), &[group("from_due")], &outcome);
        assert_values(
            &values_of,
            &[
                ("notify_tps", 300.0),
                ("backlog_usec", 250_000.0),
                ("listeners_client_usec", 4.0),
                ("deliveries_per_notification", 2.0),
                ("from_due_max_usec", 12_000.0),
                ("first_from_due_p50_usec", 5000.0),
            ],
        );
        // Nothing is delivered of a load that does not notify.
        let values_of = values(&transaction(false), &[group("from_due")], &outcome);
        assert_eq!(values_of, [("notify_tps".to_owned(), 300.0)].into());
    }

    #[test]
    fn figures_of_a_standby() {
        let start = Instant::now();
        let on_standby = vec![received(start, &[(0, 13), (1, 23), (2, 38)], 0)];
        let mut outcome = outcome(start, vec![Vec::new(), on_standby]);
        outcome.wal_bytes = Some(2000);
        outcome.rows = Some(Visible {
            seen: [14, 22, 40].map(|ms| start + ms * MS).into(),
            questions: of([60, 70, 500]),
        });
        let groups = [group("primary"), group("standby")];
        let values_of = values(&transaction(true), &groups, &outcome);
        assert_values(
            &values_of,
            &[
                ("wal_bytes_per_transaction", 250.0),
                ("standby_p50_usec", 3000.0),
                ("row_visible_p50_usec", 4000.0),
                ("standby_to_row_visible", 0.75),
                ("standby_to_row_visible_p99", 0.8),
                ("probes", 3.0),
                ("question_p50_usec", 70.0),
            ],
        );
        // Without writers, and where no notification comes, these are not there.
        outcome.load = None;
        outcome.received[1].clear();
        let values_of = values(&transaction(true), &groups, &outcome);
        for name in [
            "notify_tps",
            "wal_bytes_per_transaction",
            "standby_p50_usec",
        ] {
            assert!(!values_of.contains_key(name), "{name}");
        }
        assert!(!values_of.contains_key("standby_to_row_visible"));
    }
}
