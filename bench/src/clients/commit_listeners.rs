//! Many sessions that listen, all read by one thread.
//!
//! They are not read by the thread that sends, so that it can be measured how
//! long the sender waits: otherwise it would get to know of its COMMIT only when
//! everything that arrived in the meantime has been read. One thread for each
//! session would be as many threads as the server has processes, competing with
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Error, anyhow, bail};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_postgres::Config;

use super::reader::Readers;

/// The sessions. They end when this is dropped.
#[derive(Debug)]
pub struct CommitListeners {
    sessions: usize,
    expected: Arc<AtomicU64>,
    complete: UnboundedReceiver<anyhow::Result<Instant>>,
    pub readers: Readers,
}

impl CommitListeners {
    /// Connects `sessions`, each of which executes `statements` to listen.
    pub async fn connect(
        sessions: usize,
        config: &Config,
        statements: &str,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let expected = Arc::new(AtomicU64::new(0));
        let (sender, complete) = mpsc::unbounded_channel();
        let on_arrival = |_| {
            let mut counter = Counter {
                received: 0,
                expected: expected.clone(),
                complete: sender.clone(),
            };
            move |arrival: Result<_, Error>| counter.count(arrival.map(|_| Instant::now()))
        };
        let readers = Readers::connect(1, sessions, config, statements, timeout, on_arrival);
        Ok(Self {
            readers: readers.await?,
            sessions,
            expected,
            complete,
        })
    }

    /// Each session is to receive `count` more notifications.
    pub fn expect(&mut self, count: u32) -> anyhow::Result<()> {
        if let Ok(complete) = self.complete.try_recv() {
            complete?;
        }
        self.expected.fetch_add(count.into(), Ordering::SeqCst);
        Ok(())
    }

    /// Waits until every session has received what was expected, and returns when
    /// each had the last of it.
    pub async fn arrivals(&mut self, timeout: Duration) -> anyhow::Result<Vec<Instant>> {
        let mut arrivals = Vec::new();
        let everywhere = async {
            while arrivals.len() < self.sessions
                && let Some(complete) = self.complete.recv().await
            {
                arrivals.push(complete?);
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(timeout, everywhere).await {
            Ok(result) => result.map(|()| arrivals),
            Err(_) => bail!(
                "only {} of {} listeners had received all notifications after {timeout:?}: if \
                 the server is only slow, raise --timeout",
                arrivals.len(),
                self.sessions
            ),
        }
    }
}

/// Counts what a session receives.
struct Counter {
    received: u64,
    /// By each session, since it began.
    expected: Arc<AtomicU64>,
    /// Is told when everything has been received, and what went wrong.
    complete: UnboundedSender<anyhow::Result<Instant>>,
}

impl Counter {
    fn count(&mut self, arrival: Result<Instant, Error>) {
        self.received += 1;
        let expected = self.expected.load(Ordering::SeqCst);
        let complete = match arrival {
            Ok(_) if self.received < expected => return,
            Ok(_) if self.received > expected => Err(anyhow!(
                "a listener received a notification that had not been sent: the server invented it"
            )),
            arrival => arrival.map_err(|error| error.context("a listener failed")),
        };
        // Nobody wants it any more if the receiver has gone.
        let _ = self.complete.send(complete);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_completes_a_round_is_told_and_what_is_too_much() {
        let (sender, mut complete) = mpsc::unbounded_channel();
        let mut counter = Counter {
            received: 0,
            expected: Arc::new(AtomicU64::new(2)),
            complete: sender,
        };
        let start = Instant::now();
        let times = [1, 2, 3, 4].map(|ms| start + Duration::from_millis(ms));
        times[..2].iter().for_each(|time| counter.count(Ok(*time)));
        assert_eq!(complete.try_recv().unwrap().unwrap(), times[1]);
        assert!(complete.try_recv().is_err());

        counter.expected.store(3, Ordering::SeqCst);
        times[2..].iter().for_each(|time| counter.count(Ok(*time)));
        assert_eq!(complete.try_recv().unwrap().unwrap(), times[2]);
        let error = complete.try_recv().unwrap().unwrap_err().to_string();
        assert!(error.contains("had not been sent"), "{error}");

        counter.count(Err(anyhow!("gone")));
        let error = complete.try_recv().unwrap().unwrap_err();
        assert_eq!(format!("{error:#}"), "a listener failed: gone");
    }
}
