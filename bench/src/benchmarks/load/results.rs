//! What was measured of one load, and the figures that are made of it.

use std::time::Duration;

use super::form::Kind as LoadKind;
use crate::clients::latency::{Latencies, STATISTICS};
use crate::clients::pgbench::Load;
use crate::report::results::{Figure, Kind, Values};

const NOTIFY_TPS: &str = "notify_tps";
const PLAIN_TPS: &str = "plain_tps";
const NOTIFY_TO_PLAIN: &str = "notify_to_plain";
const FROM_COMMIT_COUNT: &str = "from_commit_count";
pub const BACKLOG_USEC: &str = "backlog_usec";

const DELIVERIES: &str = "deliveries_per_notification";
const SERVER_USEC: &str = "listeners_server_usec";
const CLIENT_USEC: &str = "listeners_client_usec";

/// How the notifications of a load arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Of each probe, from when its sender knew of the commit. Those that were
    /// committed after the load are left out.
    pub from_commit: Latencies,
    /// Of each probe, from when it was due.
    pub from_due: Latencies,
    /// How long a listener had still to read when everything had been sent.
    pub backlog: Duration,
    /// The same as `from_due`, at the first listener of each probe.
    pub first_from_due: Latencies,
    pub listening: Listening,
}

/// What listening to a load has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// Notifications of the load that arrived, at all listeners together.
    pub received: u64,
    /// Processor time of the listeners' server processes, where it can be seen.
    pub server: Option<Duration>,
    /// That of this program's threads which read the listeners.
    pub client: Duration,
}

/// The figures of a run that makes these kinds of load, with many listeners or not.
pub fn figures(kinds: &[LoadKind], is_queue: bool) -> Vec<Figure> {
    let mut figures = vec![
        Figure::new(
            NOTIFY_TPS,
            "transactions per second, with their notification",
            Kind::Rate,
        )
        .drawn(),
    ];
    if kinds.contains(&LoadKind::Plain) {
        figures.push(
            Figure::new(
                PLAIN_TPS,
                "transactions per second, with something else in the notification's place",
                Kind::Rate,
            )
            .drawn(),
        );
        figures.push(
            Figure::new(
                NOTIFY_TO_PLAIN,
                "the first divided by the second, run by run",
                Kind::Share,
            )
            .drawn(),
        );
    }
    let count = Figure::new(
        FROM_COMMIT_COUNT,
        "notifications that the latency from COMMIT's return is of",
        Kind::Count,
    );
    let backlog = Figure::new(
        BACKLOG_USEC,
        "time that a listener had still to read after the load (µs)",
        Kind::Time,
    );
    for (start, label, last) in [
        ("from_due", "when it was due", count),
        ("from_commit", "COMMIT's return", backlog),
    ] {
        for (end, which) in STATISTICS {
            let name = format!("{start}_{end}");
            let label = format!("latency of a notification from {label}, {which} (µs)");
            figures.push(Figure::new(&name, &label, Kind::Time));
        }
        figures.push(last);
    }
    if is_queue {
        figures.extend(queue_figures());
    }
    figures
}

/// What there is to know of many listeners on one channel.
fn queue_figures() -> Vec<Figure> {
    let mut figures = vec![
        Figure::new(
            SERVER_USEC,
            "processor time of the listeners' server processes, for each transaction (µs)",
            Kind::Time,
        )
        .drawn(),
        // This is of no server.
        Figure::new(
            CLIENT_USEC,
            "processor time that this program reads the listeners with, for each transaction (µs)",
            Kind::Count,
        )
        .drawn(),
        Figure::new(
            DELIVERIES,
            "listeners that a notification arrives at, on average",
            Kind::Count,
        ),
    ];
    for (end, which) in &STATISTICS[..2] {
        figures.push(Figure::new(
            &format!("first_from_due_{end}"),
            &format!("latency from when it was due, at its first listener, {which} (µs)"),
            Kind::Time,
        ));
    }
    figures
}

/// The figures of a run, from its loads in any order.
pub fn values(loads: Vec<(LoadKind, (Load, Option<Delivery>))>, is_queue: bool) -> Values {
    let mut values = Values::new();
    for (kind, (load, delivery)) in loads {
        let name = match kind {
            LoadKind::Plain => PLAIN_TPS,
            LoadKind::Notify => NOTIFY_TPS,
        };
        values.insert(name.to_owned(), load.transactions_per_sec);
        if let Some(delivery) = delivery {
            values.extend(delivery.from_commit.figures("from_commit"));
            values.extend(delivery.from_due.figures("from_due"));
            let count = delivery.from_commit.count() as f64;
            values.insert(FROM_COMMIT_COUNT.to_owned(), count);
            let backlog = delivery.backlog.as_micros() as f64;
            values.insert(BACKLOG_USEC.to_owned(), backlog);
            if is_queue {
                values.extend(queue_values(&delivery, load.transactions));
            }
        }
    }
    if let (Some(notify), Some(plain)) = (values.get(NOTIFY_TPS), values.get(PLAIN_TPS)) {
        values.insert(NOTIFY_TO_PLAIN.to_owned(), notify / plain);
    }
    values
}

fn queue_values(delivery: &Delivery, transactions: u64) -> impl Iterator<Item = (String, f64)> {
    let Listening {
        received,
        server,
        client,
    } = delivery.listening;
    let of_each = |what: f64| what / transactions.max(1) as f64;
    let usec = |time: Duration| of_each(time.as_secs_f64() * 1e6);
    let own = [
        (SERVER_USEC, server.map(usec)),
        (CLIENT_USEC, Some(usec(client))),
        (DELIVERIES, Some(of_each(received as f64))),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let first = delivery.first_from_due.figures("first_from_due");
    own.chain(first.filter(|(name, _)| !name.ends_with("max_usec")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clients::latency::tests::of;

    fn load(tps: f64) -> Load {
        Load {
            transactions: 5,
            transactions_per_sec: tps,
        }
    }

    fn delivery(from_commit: &[u64]) -> Delivery {
        Delivery {
            from_commit: of(from_commit.iter().copied()),
            from_due: of([500, 600]),
            backlog: Duration::from_millis(125),
            first_from_due: of([400, 450]),
            listening: Listening {
                received: 10,
                server: Some(Duration::from_micros(50)),
                client: Duration::from_micros(20),
            },
        }
    }

    #[test]
    fn figures_of_a_run_whatever_came_first() {
        let plain = (LoadKind::Plain, (load(400.0), None));
        let notify = (LoadKind::Notify, (load(300.0), Some(delivery(&[1, 2, 7]))));
        let values_of = values(vec![plain.clone(), notify.clone()], false);
        let expected = [
            ("notify_tps", 300.0),
            ("plain_tps", 400.0),
            ("notify_to_plain", 0.75),
            ("from_commit_p50_usec", 2.0),
            ("from_commit_p99_usec", 7.0),
            ("from_commit_max_usec", 7.0),
            ("from_commit_count", 3.0),
            ("from_due_p50_usec", 500.0),
            ("from_due_p99_usec", 600.0),
            ("from_due_max_usec", 600.0),
            ("backlog_usec", 125_000.0),
        ];
        let expected: Values = expected
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        assert_eq!(values_of, expected);
        assert_eq!(values(vec![notify.clone(), plain.clone()], false), expected);
        assert_described(&expected, false);

        let of_queue = values(vec![notify, plain], true);
        assert_described(&of_queue, true);
        for (name, value) in [
            (SERVER_USEC, 10.0),
            (CLIENT_USEC, 4.0),
            (DELIVERIES, 2.0),
            ("first_from_due_p50_usec", 400.0),
            ("first_from_due_p99_usec", 450.0),
        ] {
            assert!((of_queue[name] - value).abs() < 1e-9, "{name}");
        }
    }

    fn assert_described(values: &Values, is_queue: bool) {
        let described: Vec<String> = figures(&[LoadKind::Plain, LoadKind::Notify], is_queue)
            .into_iter()
            .map(|figure| figure.name)
            .collect();
        assert_eq!(described[0], NOTIFY_TPS);
        assert_eq!(described.len(), values.len());
        assert!(described.iter().all(|name| values.contains_key(name)));
    }

    #[test]
    fn without_plain_loads_and_committed_probes_their_figures_are_not_there() {
        let loads = vec![(LoadKind::Notify, (load(300.0), Some(delivery(&[]))))];
        let values = values(loads, false);
        for name in ["plain_tps", "notify_to_plain", "from_commit_p50_usec"] {
            assert!(!values.contains_key(name), "{name}");
        }
        assert_eq!(values["from_commit_count"], 0.0);
    }
}
