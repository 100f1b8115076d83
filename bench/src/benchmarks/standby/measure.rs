//! One run: the load on the primary, and what arrives of the probe in both places.

use std::cell::Cell;
use std::time::Instant;

use anyhow::{Context, ensure};
use futures_util::future::{try_join, try_join4};
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;
use tokio::sync::watch;
use tokio_postgres::Config;

use super::StandbyArgs;
use super::lookout::Lookout;
use super::pair::Pair;
use super::results::{Arrivals, Run, Wal};
use crate::benchmarks::load::form::{self, CHANNEL, Form, Kind};
use crate::benchmarks::load::listener::{Listeners, Received, exchange};
use crate::benchmarks::load::probe::{Probe, Sent};
use crate::clients::latency::Latencies;
use crate::clients::pgbench::{self, Load, Pgbench, Protocol};
use crate::clients::session::Sessions;

/// The transaction of the writers and of the probe.
const FORM: Form = Form::Statement;

/// Makes one run, and waits for its sessions to go.
pub async fn measure(
    plan: &StandbyArgs,
    server: &Server,
    pair: &Pair,
    writers: u32,
) -> anyhow::Result<Run> {
    let timeout = plan.common.runs.timeout;
    let sessions = Sessions::of(server).await?;
    let measured = run(plan, server, pair, writers).await?;
    let gone = sessions.wait_for_others_to_go();
    within(timeout, "the end of all sessions", gone).await??;
    Ok(measured)
}

async fn run(
    plan: &StandbyArgs,
    server: &Server,
    pair: &Pair,
    writers: u32,
) -> anyhow::Result<Run> {
    let timeout = plan.common.runs.timeout;
    // The writers' and the probe's.
    let channels = [CHANNEL.to_owned(), format!("{CHANNEL}_probe")].map(|c| server.channel(&c));
    let [load_channel, probe_channel] = &channels;
    let preparing = async {
        let statements = FORM.prepare(Kind::Notify, load_channel);
        pair.execute(&statements.join("; ")).await?;
        server.checkpoint().await?;
        pair.catch_up().await
    };
    within(timeout, "the preparation of a run", preparing).await??;

    let (sent, sent_by_now) = watch::channel(0);
    let listen = form::listen(probe_channel);
    let listen_to_all = format!("LISTEN {load_channel}; {listen}");
    let connecting = async {
        let listen_at = async |config: Config| Listeners::start(1, &config, &listen).await;
        let on_standby = match pair.replicates {
            true => Some(listen_at(pair.standby_config()).await?),
            false => None,
        };
        anyhow::Ok((
            Listeners::start(1, &server.config(), &listen_to_all).await?,
            listen_at(server.config()).await?,
            on_standby,
            Lookout::start(pair.standby_config(), sent_by_now).await?,
            server.connect().await?,
        ))
    };
    let (mut reader, mut on_primary, mut on_standby, mut lookout, client) =
        within(timeout, "the connections of the listeners", connecting).await??;

    let probe = Probe {
        client: &client,
        channel: probe_channel,
        form: FORM,
        kind: Kind::Notify,
        period: plan.probe.period(),
        timeout,
    };
    let wal_before = pair.wal_bytes().await?;
    let warm = Cell::new(None);
    let sending = async {
        // The lookout ends when it is dropped, and all have been seen.
        let sent = sent;
        let load_end = Cell::new(None);
        let load = async {
            let on_warm = || warm.set(Some(Instant::now()));
            let load = load(plan, server, writers, load_channel, on_warm).await;
            load_end.set(Some(Instant::now()));
            load
        };
        let probing = probe.run(&load_end, |number| {
            sent.send_replace(number + 1);
        });
        try_join(load, probing).await
    };
    let receiving = async {
        let standby = async {
            match &mut on_standby {
                Some(listeners) => Ok(Some(one(listeners).await?)),
                None => Ok(None),
            }
        };
        try_join4(
            one(&mut reader),
            one(&mut on_primary),
            standby,
            lookout.sightings(),
        )
        .await
    };
    let ((load, (probes, _)), (all, primary, standby, sightings)) =
        exchange(sending, receiving, timeout).await?;
    let wal_bytes = pair.wal_bytes().await? - wal_before;
    within(timeout, "the replay of the rest", pair.catch_up()).await??;

    let transactions = load.as_ref().map_or(0, |load| load.transactions);
    check(&all, "that reads all", probes.len(), transactions)?;
    check(&primary, "on the primary", probes.len(), 0)?;
    if let Some(standby) = &standby {
        check(standby, "on the standby", probes.len(), 0)?;
    }
    let warm = warm.get();
    Ok(Run {
        arrivals: Arrivals {
            primary: latencies(&probes, warm, times(&primary)),
            standby: standby.map(|standby| latencies(&probes, warm, times(&standby))),
            row_visible: latencies(&probes, warm, sightings.seen.into_iter()),
        },
        questions: sightings.questions,
        load: load.map(|load| {
            let transactions = load.transactions + probes.len() as u64;
            let wal = Wal {
                bytes: wal_bytes,
                transactions,
            };
            (load, wal)
        }),
    })
}

/// The load of all writers. Without any it is only the time that passes.
async fn load(
    plan: &StandbyArgs,
    server: &Server,
    writers: u32,
    channel: &str,
    on_warm: impl Fn(),
) -> anyhow::Result<Option<Load>> {
    let (warmup, duration) = (plan.time.warmup, plan.time.duration);
    if writers == 0 {
        tokio::time::sleep(warmup).await;
        on_warm();
        tokio::time::sleep(duration).await;
        return Ok(None);
    }
    let pgbench = Pgbench {
        script: &FORM.script(Kind::Notify, channel),
        variables: &[],
        clients: writers,
        jobs: pgbench::jobs(writers),
        protocol: Protocol::Simple,
        warmup,
        duration,
        timeout: plan.common.runs.timeout,
    };
    Ok(Some(pgbench.run(server, on_warm).await?))
}

/// What the only one of these listeners receives.
async fn one(listeners: &mut Listeners) -> anyhow::Result<Received> {
    let mut received = listeners.receive().await?;
    received.pop().context("nobody listens")
}

fn times(received: &Received) -> impl Iterator<Item = Instant> {
    received.probes.iter().map(|&(_, at)| at)
}

/// Everything that was sent must have been received, once. Their order was checked when
/// they arrived.
fn check(
    received: &Received,
    listener: &str,
    probes: usize,
    transactions: u64,
) -> anyhow::Result<()> {
    let got = received.probes.len();
    ensure!(
        got == probes,
        "the listener {listener} received {got} probes, where {probes} have been sent: the server \
         lost or invented some"
    );
    let load = received.load;
    ensure!(
        load == transactions,
        "the listener {listener} received {load} notifications of the load, but {transactions} \
         transactions have sent one to it: the server lost or invented some"
    );
    Ok(())
}

/// From when each probe was due, of those that were after the warm-up.
fn latencies(
    probes: &[Sent],
    warm: Option<Instant>,
    arrivals: impl Iterator<Item = Instant>,
) -> Latencies {
    let mut latencies = Latencies::new();
    for (sent, arrived) in probes.iter().zip(arrivals) {
        if warm.is_some_and(|warm| warm <= sent.due) {
            latencies.record(arrived.saturating_duration_since(sent.due));
        }
    }
    latencies
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clients::latency::tests::of;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_warm_up_does_not_count() {
        let start = Instant::now();
        let probes: Vec<Sent> = [10, 20, 30]
            .map(|due| Sent {
                due: start + due * MS,
                committed: start + (due + 1) * MS,
                under_load: true,
            })
            .into();
        let arrivals = || [15, 22, 31].map(|at| start + at * MS).into_iter();
        let latencies = |warm: Option<u32>| {
            let warm = warm.map(|warm| start + warm * MS);
            super::latencies(&probes, warm, arrivals())
        };
        assert_eq!(latencies(Some(0)), of([5000, 2000, 1000]));
        assert_eq!(latencies(Some(20)), of([2000, 1000]));
        assert_eq!(latencies(Some(31)), of([]));
        // The load was too short.
        assert_eq!(latencies(None), of([]));
    }

    #[test]
    fn what_is_lost_or_invented_is_an_error() {
        let start = Instant::now();
        let check = |probes: u32, load: u64| {
            let received = Received {
                probes: (0..probes).map(|number| (number, start)).collect(),
                fence: start,
                load,
            };
            check(&received, "on the standby", 3, 7)
        };
        assert!(check(3, 7).is_ok());
        for (probes, load, message) in [
            (2, 7, "on the standby received 2 probes, where 3"),
            (4, 7, "on the standby received 4 probes, where 3"),
            (3, 6, "received 6 notifications of the load, but 7"),
            (3, 8, "received 8 notifications of the load, but 7"),
        ] {
            let error = check(probes, load).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
