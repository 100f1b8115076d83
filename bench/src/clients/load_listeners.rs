//! Listeners that read everything, as fast as it comes, and tell by its payload what a
//! notification is part of: the load, the probe, or the fence, which is the last one.

use std::mem;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, ensure};
use futures_util::future::{Either, select, try_join_all};
use pinpoint_servers::connection::within;
use tokio::sync::oneshot;
use tokio_postgres::{Config, Notification};

use super::reader::Readers;

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

/// All that a listener has received.
#[derive(Debug)]
pub struct Received {
    /// The numbers of probes, ascending, and when each arrived.
    pub probes: Vec<(u32, Instant)>,
    pub fence: Instant,
    /// Notifications of the load.
    pub load: u64,
}

/// Sessions that listen. They are read by as many threads as the machine has cores,
/// if there are as many of them, and end when this is dropped.
#[derive(Debug)]
pub struct LoadListeners {
    received: Vec<oneshot::Receiver<anyhow::Result<Received>>>,
    pub readers: Readers,
}

impl LoadListeners {
    /// Connects `count` sessions, which execute `statements` to listen.
    pub async fn start(
        count: u32,
        config: &Config,
        statements: &str,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let count = count as usize;
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let mut received = Vec::new();
        let collect = |_| {
            let (done, all) = oneshot::channel();
            received.push(all);
            let mut collector = Collector {
                probes: Vec::new(),
                load: 0,
                done: Some(done),
            };
            move |arrival| collector.arrived(arrival)
        };
        let threads = cores.min(count);
        let readers = Readers::connect(threads, count, config, statements, timeout, collect);
        Ok(Self {
            readers: readers.await?,
            received,
        })
    }

    /// Waits until each has the fence, and returns all that came before it.
    pub async fn receive(&mut self) -> anyhow::Result<Vec<Received>> {
        let received = self.received.drain(..).map(async |received| {
            let received = received.await;
            received.context("the thread of a listener has ended")?
        });
        try_join_all(received).await
    }
}

/// Collects what a listener receives, up to the fence or an error.
struct Collector {
    probes: Vec<(u32, Instant)>,
    load: u64,
    done: Option<oneshot::Sender<anyhow::Result<Received>>>,
}

impl Collector {
    fn arrived(&mut self, arrival: Result<Notification, Error>) {
        let end = match arrival {
            Ok(notification) => self.take(Origin::of(notification.payload())).transpose(),
            Err(error) => Some(Err(error.context("a listener failed"))),
        };
        if let Some(end) = end
            && let Some(done) = self.done.take()
        {
            // Nobody wants it any more if the receiver has gone.
            let _ = done.send(end);
        }
    }

    /// Returns all that was received if this is the fence.
    fn take(&mut self, origin: Origin) -> anyhow::Result<Option<Received>> {
        match origin {
            Origin::Load => self.load += 1,
            Origin::Probe(number) => {
                if let Some(&(last, _)) = self.probes.last() {
                    ensure!(
                        number > last,
                        "probe {number} arrived at a listener after probe {last}: the server \
                         changed their order, or sent one twice"
                    );
                }
                self.probes.push((number, Instant::now()));
            }
            Origin::Fence => {
                return Ok(Some(Received {
                    probes: mem::take(&mut self.probes),
                    fence: Instant::now(),
                    load: self.load,
                }));
            }
        }
        Ok(None)
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
