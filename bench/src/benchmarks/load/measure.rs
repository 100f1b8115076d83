//! One load: what pgbench reports of it, and what the listeners receive meanwhile.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::future::try_join;
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;
use tokio::sync::Notify;

use super::CommitArgs;
use super::form::{self, CHANNEL, Kind};
use super::listener::{Listeners, Received, exchange};
use super::probe::{Probe, Sent};
use super::results::{Delivery, Listening};
use super::workload::Workload;
use crate::clients::cpu;
use crate::clients::latency::Latencies;
use crate::clients::pgbench::{self, Load, Pgbench};
use crate::clients::session::Sessions;

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

/// A load that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    pub writers: u32,
    pub listeners: u32,
    pub workload: Workload,
}

/// Makes one load, and checks that every notification of it has arrived. There
/// is a delivery to report if it notifies.
pub async fn measure(
    plan: &CommitArgs,
    kind: Kind,
    scene: Scene,
    server: &Server,
) -> anyhow::Result<(Load, Option<Delivery>)> {
    let timeout = plan.common.runs.timeout;
    let sessions = Sessions::of(server).await?;
    let load = load(plan, kind, scene, server, &sessions).await;
    if load.is_ok() {
        let gone = sessions.wait_for_others_to_go();
        within(timeout, "the end of all sessions", gone).await??;
    }
    load
}

async fn load(
    plan: &CommitArgs,
    kind: Kind,
    scene: Scene,
    server: &Server,
    sessions: &Sessions,
) -> anyhow::Result<(Load, Option<Delivery>)> {
    let timeout = plan.common.runs.timeout;
    let channel = server.channel(CHANNEL);
    execute(plan, server, plan.form.prepare(kind, &channel)).await?;
    within(timeout, "a checkpoint", server.checkpoint()).await??;
    let statements = form::listen(&channel);
    let connecting = async {
        let (workload, config) = scene.workload.on(server, &channel).await?;
        let listeners = Listeners::start(scene.listeners, &config, &statements).await?;
        anyhow::Ok((workload, listeners, server.connect().await?))
    };
    let (workload, mut listeners, client) =
        within(timeout, "the connections of the listeners", connecting).await??;
    let processes = match server {
        Server::Own(_) => sessions.processes_of(&statements).await?,
        // It may be on another machine.
        Server::Running(_) => Vec::new(),
    };
    let server_before = processor_time(&processes);
    let client_before = listeners.processor_time().await?;

    let script = plan.form.script(kind, &channel);
    let pgbench = Pgbench {
        script: &script,
        variables: &[],
        clients: scene.writers,
        jobs: pgbench::jobs(scene.writers),
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
        period: plan.probe.period(),
        timeout,
    };
    let sending = async {
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
            probe.run(&load_end, |_| ()).await
        };
        let (load, (probes, fence)) = try_join(load, probing).await?;
        anyhow::Ok((load, probes, fence))
    };
    let ((load, probes, fence), received) = exchange(sending, listeners.receive(), timeout).await?;
    let server_time = processor_time(&processes).zip(server_before);
    let listening = Listening {
        received: received.iter().map(|received| received.load).sum(),
        server: server_time.map(|(after, before)| after.saturating_sub(before)),
        client: listeners.processor_time().await? - client_before,
    };

    let (probes_sent, transactions) = match kind {
        Kind::Plain => (0, 0),
        Kind::Notify => (probes.len() as u32, load.transactions),
    };
    check(&received, workload, probes_sent, transactions)?;
    let delivery = (kind == Kind::Notify).then(|| delivery(&received, &probes, fence, listening));
    Ok((load, delivery))
}

/// Of all these processes, if there are any, and it can be seen.
fn processor_time(processes: &[i32]) -> Option<Duration> {
    let times = processes.iter().map(|&pid| cpu::time_of_process(pid));
    let time: Option<Duration> = times.sum();
    time.filter(|_| !processes.is_empty())
}

/// Everything that was sent must have been received, once: by every listener, or,
/// where they share the channel, by one of them at least. What was folded may have
/// arrived as little as once.
fn check(
    received: &[Received],
    workload: Workload,
    probes: u32,
    transactions: u64,
) -> anyhow::Result<()> {
    for Received { probes: got, .. } in received {
        let (got, last) = (got.len(), got.last().map(|&(number, _)| number));
        ensure!(
            last.is_none_or(|number| number < probes),
            "a listener received a probe that was not sent: the server invented it"
        );
        ensure!(
            workload == Workload::Shared || got == probes as usize,
            "a listener received {got} of the {probes} probes"
        );
    }
    let mut somewhere = vec![false; probes as usize];
    for (number, _) in received.iter().flat_map(|received| &received.probes) {
        somewhere[*number as usize] = true;
    }
    let nowhere = somewhere.iter().filter(|arrived| !**arrived).count();
    ensure!(
        nowhere == 0,
        "{nowhere} of the {probes} probes arrived at no listener"
    );

    let least = match workload {
        Workload::Broadcast => transactions,
        Workload::Folded => transactions.min(1),
        Workload::Shared => 0,
    };
    for Received { load, .. } in received {
        ensure!(
            (least..=transactions).contains(load),
            "a listener received {load} notifications of the load, but {transactions} transactions \
             have sent one: the server lost or invented some"
        );
    }
    let all: u64 = received.iter().map(|received| received.load).sum();
    ensure!(
        workload != Workload::Shared || all >= transactions,
        "all listeners together received {all} notifications of the load, but {transactions} \
         transactions have sent one: the server lost some"
    );
    Ok(())
}

/// The latencies of all probes at all listeners that they arrived at. A notification
/// that arrives before its sender knows of its commit took no time from there.
fn delivery(
    listeners: &[Received],
    probes: &[Sent],
    fence: Instant,
    listening: Listening,
) -> Delivery {
    let mut delivery = Delivery {
        from_commit: Latencies::new(),
        from_due: Latencies::new(),
        backlog: Duration::ZERO,
        first_from_due: Latencies::new(),
        listening,
    };
    let mut first: Vec<Option<Instant>> = vec![None; probes.len()];
    for received in listeners {
        for &(number, arrived) in &received.probes {
            let (sent, first) = (&probes[number as usize], &mut first[number as usize]);
            if sent.under_load {
                let latency = arrived.saturating_duration_since(sent.committed);
                delivery.from_commit.record(latency);
            }
            delivery.from_due.record(arrived - sent.due);
            *first = Some(first.map_or(arrived, |first| first.min(arrived)));
        }
        let backlog = received.fence.saturating_duration_since(fence);
        delivery.backlog = delivery.backlog.max(backlog);
    }
    for (sent, arrived) in probes.iter().zip(first) {
        let latency = arrived.map(|arrived| arrived - sent.due);
        latency
            .into_iter()
            .for_each(|l| delivery.first_from_due.record(l));
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

    fn received(start: Instant, probes: &[(u32, u32)], load: u64) -> Received {
        Received {
            probes: probes.iter().map(|&(n, ms)| (n, start + ms * MS)).collect(),
            fence: start + 300 * MS,
            load,
        }
    }

    #[test]
    fn latencies_from_commit_and_from_due() {
        let start = Instant::now();
        let listening = Listening {
            received: 0,
            server: None,
            client: MS,
        };
        let listeners = [
            // The second probe overtakes the report of its commit.
            received(start, &[(0, 15), (1, 24), (2, 41)], 0),
            received(start, &[(1, 22)], 0),
        ];
        assert_eq!(
            delivery(&listeners, &probes(start), start + 50 * MS, listening),
            Delivery {
                from_commit: of([3000, 0, 0]),
                from_due: of([5000, 4000, 11_000, 2000]),
                backlog: 250 * MS,
                first_from_due: of([5000, 2000, 11_000]),
                listening,
            }
        );
    }

    #[test]
    fn what_is_lost_is_an_error() {
        use Workload::{Broadcast, Folded, Shared};

        let start = Instant::now();
        let all = &[(0, 1), (1, 2), (2, 3)][..];
        let check = |workload, probes, transactions, listeners: &[(&[(u32, u32)], u64)]| {
            let listeners = listeners.iter();
            let received: Vec<Received> = listeners
                .map(|&(probes, load)| received(start, probes, load))
                .collect();
            check(&received, workload, probes, transactions).is_ok()
        };
        // Nothing is sent by a plain load.
        for workload in [Broadcast, Folded, Shared] {
            assert!(check(workload, 0, 0, &[(&[], 0), (&[], 0)]));
            assert!(!check(workload, 0, 0, &[(&[], 1)]));
            assert!(!check(workload, 0, 0, &[(&all[..1], 0)]));
            assert!(check(workload, 3, 7, &[(all, 7), (all, 7)]));
            assert!(!check(workload, 3, 7, &[(all, 7), (all, 8)]));
            assert!(!check(workload, 3, 7, &[(&all[..2], 7), (&all[..2], 7)]));
            assert!(!check(workload, 2, 7, &[(all, 7)]));
        }
        // Some are not for all.
        for (workload, listeners, expected) in [
            (Broadcast, [(all, 6), (all, 7)], false),
            (Broadcast, [(&all[1..], 7), (all, 7)], false),
            (Folded, [(all, 1), (all, 7)], true),
            (Folded, [(all, 0), (all, 7)], false),
            (Folded, [(&all[1..], 7), (all, 7)], false),
            (Shared, [(&all[1..], 0), (&all[..1], 7)], true),
            (Shared, [(all, 3), (&[][..], 4)], true),
            (Shared, [(all, 3), (&[][..], 3)], false),
        ] {
            assert_eq!(check(workload, 3, 7, &listeners), expected, "{workload}");
        }
    }
}
