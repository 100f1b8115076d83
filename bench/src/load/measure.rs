//! One load: what pgbench reports of it, and what the listeners receive meanwhile.

use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{try_join, try_join_all};
use thiserror::Error;

use super::Plan;
use super::listener::{Listener, ListenerError, Received};
use super::probe::{Probe, ProbeError, Sent};
use super::results::Delivery;
use super::workload::{CHANNEL, Kind};
use crate::latency::Latencies;
use crate::pgbench::{self, Load, Pgbench, PgbenchError};
use crate::server::Server;

#[derive(Debug, Error)]
pub enum LoadError {
    #[error("could not set up the benchmark")]
    SetUp(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Pgbench(#[from] PgbenchError),
    #[error(transparent)]
    Listener(#[from] ListenerError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(
        "a session could not be prepared within {0:?}: if the server is only slow, raise --timeout"
    )]
    NotPrepared(Duration),
    #[error(
        "a listener had not read everything {0:?} after the load: if the server is only slow, \
         raise --timeout"
    )]
    Behind(Duration),
    #[error("a listener received {received} of the {sent} probes")]
    Probes { received: usize, sent: usize },
    #[error(
        "a listener received {received} notifications of the load, but {expected} transactions \
         have sent one: the server lost or invented some"
    )]
    Notifications { received: u64, expected: u64 },
}

/// Makes the tables of the workload.
pub async fn set_up(plan: &Plan, server: &Server) -> Result<(), LoadError> {
    execute(plan, server, plan.workload.set_up()).await
}

async fn execute(plan: &Plan, server: &Server, statements: Vec<String>) -> Result<(), LoadError> {
    in_time(plan, async {
        let client = server.connect().await?;
        client.batch_execute(&statements.join("; ")).await?;
        Ok(())
    })
    .await
}

/// Whatever has to be done before a load, within the timeout.
async fn in_time<T>(
    plan: &Plan,
    preparation: impl Future<Output = Result<T, LoadError>>,
) -> Result<T, LoadError> {
    tokio::time::timeout(plan.timeout, preparation)
        .await
        .map_err(|_| LoadError::NotPrepared(plan.timeout))?
}

/// Makes one load, and checks that every notification of it has arrived. There
/// is a delivery to report if it notifies.
pub async fn measure(
    plan: &Plan,
    kind: Kind,
    clients: u32,
    server: &Server,
) -> Result<(Load, Option<Delivery>), LoadError> {
    let channel = server.channel(CHANNEL);
    execute(plan, server, plan.workload.prepare(kind, &channel)).await?;
    in_time(plan, async { Ok(server.checkpoint().await?) }).await?;
    let (mut listeners, client) = in_time(plan, async {
        let listeners =
            (0..plan.listeners).map(|_| Listener::start(server.config(), channel.clone()));
        let client = server.connect().await?;
        Ok((try_join_all(listeners).await?, client))
    })
    .await?;
    let mut receiving = pin!(try_join_all(listeners.iter_mut().map(Listener::receive)));

    let script = plan.workload.script(kind, &channel);
    let pgbench = Pgbench {
        script: &script,
        variables: &[],
        clients,
        jobs: pgbench::jobs(clients),
        protocol: plan.protocol,
        timeout: plan.timeout,
    };
    let make_load = |duration| pgbench.run(server, duration);
    let probe = Probe {
        client: &client,
        channel: &channel,
        workload: plan.workload,
        kind,
        period: Duration::from_secs(1) / plan.probes_per_sec,
        timeout: plan.timeout,
    };
    let mut sending = pin!(async {
        let mut transactions = 0;
        if !plan.warmup.is_zero() {
            transactions += make_load(plan.warmup).await?.transactions;
        }
        let load_end = Cell::new(None);
        let load = async {
            let load = make_load(plan.duration).await?;
            load_end.set(Some(Instant::now()));
            Ok::<_, LoadError>(load)
        };
        let probing = async { Ok(probe.run(&load_end).await?) };
        let (load, (probes, fence)) = try_join(load, probing).await?;
        transactions += load.transactions;
        Ok::<_, LoadError>((load, transactions, probes, fence))
    });

    // The fence may arrive before its sender knows that it is committed.
    let mut received = None;
    let (load, transactions, probes, fence) = loop {
        tokio::select! {
            sent = &mut sending => break sent?,
            result = &mut receiving, if received.is_none() => received = Some(result?),
        }
    };
    let received = match received {
        Some(received) => received,
        None => tokio::time::timeout(plan.timeout, receiving)
            .await
            .map_err(|_| LoadError::Behind(plan.timeout))??,
    };

    let expected = match kind {
        Kind::Plain => 0,
        Kind::Notify => transactions,
    };
    for received in &received {
        check(received, kind, &probes, expected)?;
    }
    let delivery = (kind == Kind::Notify).then(|| delivery(&received, &probes, fence));
    Ok((load, delivery))
}

/// Everything that was sent must have been received, once.
fn check(
    received: &Received,
    kind: Kind,
    probes: &[Sent],
    notifications: u64,
) -> Result<(), LoadError> {
    let sent = match kind {
        Kind::Plain => 0,
        Kind::Notify => probes.len(),
    };
    if received.probes.len() != sent {
        return Err(LoadError::Probes {
            received: received.probes.len(),
            sent,
        });
    }
    if received.load != notifications {
        return Err(LoadError::Notifications {
            received: received.load,
            expected: notifications,
        });
    }
    Ok(())
}

/// The latencies of all probes at all listeners. A notification that arrives
/// before its sender knows of its commit took no time from there.
fn delivery(listeners: &[Received], probes: &[Sent], fence: Instant) -> Delivery {
    let mut delivery = Delivery {
        from_commit: Latencies::new(),
        from_due: Latencies::new(),
        backlog: Duration::ZERO,
    };
    for received in listeners {
        for (sent, &arrived) in probes.iter().zip(&received.probes) {
            if sent.under_load {
                let latency = arrived.saturating_duration_since(sent.committed);
                delivery.from_commit.record(latency);
            }
            delivery.from_due.record(arrived - sent.due);
        }
        let backlog = received.fence.saturating_duration_since(fence);
        delivery.backlog = delivery.backlog.max(backlog);
    }
    delivery
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency;

    const MS: Duration = Duration::from_millis(1);

    fn probes(start: Instant) -> Vec<Sent> {
        let sent = |due, committed, under_load| Sent {
            due: start + due * MS,
            committed: start + committed * MS,
            under_load,
        };
        vec![sent(10, 12, true), sent(20, 25, true), sent(30, 40, false)]
    }

    #[test]
    fn latencies_from_commit_and_from_due() {
        let start = Instant::now();
        let received = Received {
            // The second one overtakes the report of its commit.
            probes: [15, 24, 41].map(|ms| start + ms * MS).to_vec(),
            fence: start + 300 * MS,
            load: 0,
        };
        assert_eq!(
            delivery(&[received], &probes(start), start + 50 * MS),
            Delivery {
                from_commit: latency::tests::of([3000, 0]),
                from_due: latency::tests::of([5000, 4000, 11_000]),
                backlog: 250 * MS,
            }
        );
    }

    #[test]
    fn what_is_lost_is_an_error() {
        let start = Instant::now();
        let probes = probes(start);
        let received = |count, load| Received {
            probes: vec![start; count],
            fence: start,
            load,
        };
        assert!(check(&received(3, 7), Kind::Notify, &probes, 7).is_ok());
        assert!(check(&received(0, 0), Kind::Plain, &probes, 0).is_ok());
        for (received, kind, load) in [
            (received(2, 7), Kind::Notify, 7),
            (received(3, 6), Kind::Notify, 7),
            (received(3, 8), Kind::Notify, 7),
            (received(0, 1), Kind::Plain, 0),
            (received(1, 0), Kind::Plain, 0),
        ] {
            assert!(
                check(&received, kind, &probes, load).is_err(),
                "{received:?}"
            );
        }
    }
}
