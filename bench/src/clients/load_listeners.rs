//! Listeners that read everything, as fast as it comes, and tell by its payload what a
//! notification is part of: the load, the probe, or the fence, which is the last one.

use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, ensure};
use futures_util::future::{Either, select, try_join_all};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pinpoint_servers::connection::within;
use tokio::sync::mpsc;
use tokio_postgres::{Config, Notification};

use super::processor_time;
use super::reader::ReaderThread;
use super::session::CONNECTING_AT_ONCE;

/// What the payloads of the probe begin with, before their number.
const PROBE: &str = "probe ";

/// The payload that comes after all others.
const FENCE: &str = "fence";

/// In the row and in the notification of a probe.
pub fn probe_payload(number: u32) -> String {
    format!("{PROBE}{number}")
}

/// What marks the end of a load to the listeners, all of them: on a channel that is
/// not shared.
pub fn fence(channel: &str) -> String {
    format!("NOTIFY {channel}_{FENCE}, '{FENCE}'")
}

/// What a listener executes so that it receives the fence.
pub fn listen_to_fence(channel: &str) -> String {
    format!("LISTEN {channel}_{FENCE}")
}

/// What a notification is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Load,
    /// The probe of this number, from 0.
    Probe(u32),
    Fence,
}

impl Origin {
    fn of(payload: &str) -> Self {
        match payload.strip_prefix(PROBE).map(str::parse) {
            Some(Ok(number)) => Self::Probe(number),
            _ if payload == FENCE => Self::Fence,
            _ => Self::Load,
        }
    }
}

/// Sessions that listen. They are read by as many threads as the machine has cores,
/// if there are as many of them, and end when this is dropped.
#[derive(Debug)]
pub struct LoadListeners {
    arrivals: Vec<mpsc::UnboundedReceiver<Result<Arrival, Error>>>,
    threads: Vec<ReaderThread>,
}

/// The arrival of a notification that is not part of the load.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    origin: Origin,
    at: Instant,
    /// Notifications of the load until then.
    load: u64,
}

/// All that a listener has received.
#[derive(Debug)]
pub struct Received {
    /// The numbers of probes, ascending, and when each arrived.
    pub probes: Vec<(u32, Instant)>,
    pub fence: Instant,
    /// Notifications of the load.
    pub load: u64,
}

impl LoadListeners {
    /// Connects `count` sessions, which execute `statements` to listen.
    pub async fn start(count: u32, config: &Config, statements: &str) -> anyhow::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads: Vec<ReaderThread> = (0..cores.min(count as usize))
            .map(|_| ReaderThread::start())
            .collect::<anyhow::Result<_>>()?;
        let arrivals = stream::iter(0..count as usize)
            .map(|number| listen(&threads[number % threads.len()], config, statements))
            .buffered(CONNECTING_AT_ONCE)
            .try_collect()
            .await?;
        Ok(Self { arrivals, threads })
    }

    /// Waits until each has the fence, and returns all that came before it.
    pub async fn receive(&mut self) -> anyhow::Result<Vec<Received>> {
        try_join_all(self.arrivals.iter_mut().map(receive)).await
    }

    /// The processor time that the threads have used.
    pub async fn processor_time(&self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for thread in &self.threads {
            sum += thread.run(processor_time::of_this_thread).await??;
        }
        Ok(sum)
    }
}

/// Sends and receives at the same time, so that whatever fails ends both. What is
/// received has `timeout` after all is sent. It may be there before that, as the sender
/// does not know yet that the last of it is committed.
pub async fn exchange<S, R>(
    sending: impl Future<Output = anyhow::Result<S>>,
    receiving: impl Future<Output = anyhow::Result<R>>,
    timeout: Duration,
) -> anyhow::Result<(S, R)> {
    match select(pin!(sending), pin!(receiving)).await {
        Either::Left((sent, receiving)) => {
            let sent = sent?;
            let rest = "the reading of a listener after the load";
            Ok((sent, within(timeout, rest, receiving).await??))
        }
        Either::Right((received, sending)) => {
            let received = received?;
            Ok((sending.await?, received))
        }
    }
}

async fn listen(
    thread: &ReaderThread,
    config: &Config,
    statements: &str,
) -> anyhow::Result<mpsc::UnboundedReceiver<Result<Arrival, Error>>> {
    let (arrived, arrivals) = mpsc::unbounded_channel();
    let mut load = 0;
    let on_arrival = move |arrival: Result<Notification, Error>| {
        let arrival = match arrival {
            Ok(notification) => match Origin::of(notification.payload()) {
                Origin::Load => {
                    load += 1;
                    return;
                }
                origin => Ok(Arrival {
                    origin,
                    at: Instant::now(),
                    load,
                }),
            },
            Err(error) => Err(error),
        };
        // Nobody wants it any more if the receiver has gone.
        let _ = arrived.send(arrival);
    };
    thread
        .listen(config.clone(), statements.to_owned(), on_arrival)
        .await
        .context("a listener failed")?;
    Ok(arrivals)
}

async fn receive(
    arrivals: &mut mpsc::UnboundedReceiver<Result<Arrival, Error>>,
) -> anyhow::Result<Received> {
    let mut probes: Vec<(u32, Instant)> = Vec::new();
    loop {
        let arrival = arrivals.recv().await;
        let arrival = arrival.context("the thread of a listener has ended")?;
        let arrival = arrival.context("a listener failed")?;
        match arrival.origin {
            Origin::Probe(number) => {
                if let Some(&(last, _)) = probes.last() {
                    ensure!(
                        number > last,
                        "probe {number} arrived at a listener after probe {last}: the server \
                         changed their order, or sent one twice"
                    );
                }
                probes.push((number, arrival.at));
            }
            Origin::Fence => {
                return Ok(Received {
                    probes,
                    fence: arrival.at,
                    load: arrival.load,
                });
            }
            Origin::Load => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use anyhow::bail;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn payloads_tell_where_they_are_from() {
        assert_eq!(Origin::of(&probe_payload(0)), Origin::Probe(0));
        assert_eq!(Origin::of("probe 1234567"), Origin::Probe(1_234_567));
        assert_eq!(Origin::of("fence"), Origin::Fence);
        for payload in ["", "0123456789", "probe", "probe ", "probe x", "fence 1"] {
            assert_eq!(Origin::of(payload), Origin::Load, "{payload}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn whichever_is_ready_first_both_are_waited_for() {
        let soon = |what| async move {
            tokio::task::yield_now().await;
            anyhow::Ok(what)
        };
        let both = [
            exchange(ready(Ok(1)), soon(2), SHORT).await.unwrap(),
            exchange(soon(1), ready(Ok(2)), SHORT).await.unwrap(),
        ];
        assert_eq!(both, [(1, 2); 2]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_fails_is_not_waited_with() {
        let fail = || async { bail!("no") };
        let sender: anyhow::Result<((), ())> = exchange(fail(), pending(), SHORT).await;
        let receiver: anyhow::Result<((), ())> = exchange(pending(), fail(), SHORT).await;
        for error in [sender, receiver] {
            assert_eq!(error.unwrap_err().to_string(), "no");
        }
        let late = exchange(ready(Ok(())), pending::<anyhow::Result<()>>(), SHORT).await;
        let error = late.unwrap_err().to_string();
        assert!(
            error.starts_with("the reading of a listener after"),
            "{error}"
        );
    }
}
