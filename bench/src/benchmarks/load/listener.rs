//! A listener that reads everything, as fast as it comes.

use std::time::Instant;

use anyhow::{Context, Error, ensure};
use tokio::sync::mpsc;
use tokio_postgres::Config;

use super::form::Origin;
use crate::clients::reader::ReaderThread;

/// A session that listens, read by a thread of its own. It ends when this is dropped.
#[derive(Debug)]
pub struct Listener {
    arrivals: mpsc::UnboundedReceiver<Result<Arrival, Error>>,
    _thread: ReaderThread,
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
    /// When each probe arrived, in the order of their numbers.
    pub probes: Vec<Instant>,
    pub fence: Instant,
    /// Notifications of the load.
    pub load: u64,
}

impl Listener {
    /// Connects, and LISTENs on `channel`.
    pub async fn start(config: Config, channel: &str) -> anyhow::Result<Self> {
        let thread = ReaderThread::start()?;
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let mut load = 0;
        let on_arrival = move |arrival: Result<tokio_postgres::Notification, Error>| {
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
            .listen(config, format!("LISTEN {channel}"), on_arrival)
            .await
            .context("a listener failed")?;
        Ok(Self {
            arrivals,
            _thread: thread,
        })
    }

    /// Waits for the fence, and returns all that came before it.
    pub async fn receive(&mut self) -> anyhow::Result<Received> {
        let mut probes = Vec::new();
        loop {
            let arrival = self.arrivals.recv().await;
            let arrival = arrival.context("the thread of a listener has ended")?;
            let arrival = arrival.context("a listener failed")?;
            match arrival.origin {
                Origin::Probe(got) => {
                    let expected = probes.len() as u32;
                    ensure!(
                        got == expected,
                        "probe {got} arrived at a listener where probe {expected} was due: the \
                         server lost a notification or changed their order"
                    );
                    probes.push(arrival.at);
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
}
