//! One load: what pgbench reports of it, and what the listeners receive meanwhile.

use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::future::{try_join, try_join_all};
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;
use tokio::sync::Notify;

use super::CommitArgs;
use super::form::{CHANNEL, Kind};
use super::listener::{Listener, Received};
use super::probe::{Probe, Sent};
use super::results::Delivery;
use crate::clients::latency::Latencies;
use crate::clients::pgbench::{self, Load, Pgbench};

/// Makes the tables of the workload.
pub async fn set_up(plan: &CommitArgs, server: &Server) -> anyhow::Result<()> {
    execute(plan, server, plan.form.set_up()).await
}

async fn execute(
    plan: &CommitArgs,
    server: &Server,
    statements: Vec<String>,
) -> anyhow::Result<()> {
    let execute = async {
        let client = server.connect().await?;
        client.batch_execute(&statements.join("; ")).await
    };
    let executed = within(
        plan.common.runs.timeout,
        "the preparation of a load",
        execute,
    )
    .await?;
    executed.context("could not prepare a load")
}

/// Makes one load, and checks that every notification of it has arrived. There
/// is a delivery to report if it notifies.
pub async fn measure(
    plan: &CommitArgs,
    kind: Kind,
    clients: u32,
    server: &Server,
) -> anyhow::Result<(Load, Option<Delivery>)> {
    let timeout = plan.common.runs.timeout;
    let channel = server.channel(CHANNEL);
    execute(plan, server, plan.form.prepare(kind, &channel)).await?;
    within(timeout, "a checkpoint", server.checkpoint()).await??;
    let connecting = async {
        let listeners = (0..plan.listeners).map(|_| Listener::start(server.config(), &channel));
        let client = server.connect().await?;
        anyhow::Ok((try_join_all(listeners).await?, client))
    };
    let (mut listeners, client) = within(timeout, "a listener's connection", connecting).await??;
    let mut receiving = pin!(try_join_all(listeners.iter_mut().map(Listener::receive)));

    let script = plan.form.script(kind, &channel);
    let pgbench = Pgbench {
        script: &script,
        variables: &[],
        clients,
        jobs: pgbench::jobs(clients),
        protocol: plan.protocol,
        warmup: plan.time.warmup,
        duration: plan.time.duration,
        timeout,
    };
    let probe = Probe {
        client: &client,
        channel: &channel,
        form: plan.form,
        kind,
        period: Duration::from_secs(1) / plan.probes,
        timeout,
    };
    let mut sending = pin!(async {
        let load_end = Cell::new(None);
        let warm = Notify::new();
        let load = async {
            let load = pgbench.run(server, || warm.notify_one()).await;
            load_end.set(Some(Instant::now()));
            // A load that was too short to get warm is over now.
            warm.notify_one();
            load
        };
        let probing = async {
            warm.notified().await;
            probe.run(&load_end).await
        };
        let (load, (probes, fence)) = try_join(load, probing).await?;
        anyhow::Ok((load, probes, fence))
    });

    // The fence may arrive before its sender knows that it is committed.
    let mut received = None;
    let (load, probes, fence) = loop {
        tokio::select! {
            sent = &mut sending => break sent?,
            result = &mut receiving, if received.is_none() => received = Some(result?),
        }
    };
    let received = match received {
        Some(received) => received,
        None => {
            within(
                timeout,
                "the reading of a listener after the load",
                receiving,
            )
            .await??
        }
    };

    for received in &received {
        check(received, kind, &probes, load.transactions)?;
    }
    let delivery = (kind == Kind::Notify).then(|| delivery(&received, &probes, fence));
    Ok((load, delivery))
}

/// Everything that was sent must have been received, once.
fn check(
    received: &Received,
    kind: Kind,
    probes: &[Sent],
    transactions: u64,
) -> anyhow::Result<()> {
    let (sent, expected) = match kind {
        Kind::Plain => (0, 0),
        Kind::Notify => (probes.len(), transactions),
    };
    let Received { probes, load, .. } = received;
    ensure!(
        probes.len() == sent,
        "a listener received {} of the {sent} probes",
        probes.len()
    );
    ensure!(
        *load == expected,
        "a listener received {load} notifications of the load, but {expected} transactions have \
         sent one: the server lost or invented some"
    );
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
    use crate::clients::latency::tests::of;

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
                from_commit: of([3000, 0]),
                from_due: of([5000, 4000, 11_000]),
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
        assert!(check(&received(0, 0), Kind::Plain, &probes, 7).is_ok());
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
