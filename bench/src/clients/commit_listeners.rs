//! Many sessions that listen, all read by one thread.
//!
//! They are not read by the thread that sends, so that it can be measured how
//! long the sender waits: otherwise it would get to know of its COMMIT only when
//! everything that arrived in the meantime has been read. One thread for each
//! session would be as many threads as the server has processes, competing with
//! them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, anyhow, bail};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pinpoint_servers::connection::within;
use tokio::sync::Notify;
use tokio_postgres::Config;

use super::processor_time;
use super::reader::ReaderThread;
use super::session::CONNECTING_AT_ONCE;

/// The sessions. They end when this is dropped.
#[derive(Debug)]
pub struct CommitListeners {
    size: usize,
    shared: Arc<Shared>,
    thread: ReaderThread,
}

impl CommitListeners {
    /// Connects `size` sessions, each of which executes `statements` to listen.
    pub async fn connect(
        size: usize,
        config: &Config,
        statements: &str,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let listeners = Self::new(size)?;
        let statements: Arc<str> = statements.into();
        stream::iter(0..size)
            .map(|number| {
                let shared = listeners.shared.clone();
                let thread = &listeners.thread;
                let listening = thread.listen(config.clone(), statements.clone(), move |arrival| {
                    match arrival {
                        Ok(_) => shared.received(number, Instant::now()),
                        Err(error) => shared.fail(error.context("a listener failed")),
                    }
                });
                async move { within(timeout, "a listener's connection and LISTEN", listening).await? }
            })
            .buffer_unordered(CONNECTING_AT_ONCE)
            .try_collect::<()>()
            .await
            .context("a listener could not connect")?;
        Ok(listeners)
    }

    /// Without connections.
    fn new(size: usize) -> anyhow::Result<Self> {
        let shared = Shared::default();
        shared.lock().received.resize(size, 0);
        Ok(Self {
            size,
            shared: Arc::new(shared),
            thread: ReaderThread::start()?,
        })
    }

    /// From now on each session is to receive `count` notifications.
    pub fn expect(&self, count: u32) -> anyhow::Result<()> {
        let mut round = self.shared.lock();
        if let Some(failure) = round.failure.take() {
            return Err(failure);
        }
        round.expected = count;
        round.received.fill(0);
        round.arrivals.clear();
        Ok(())
    }

    /// Waits until every session has received what was expected, and returns when
    /// each had the last of it, the earliest first.
    pub async fn arrivals(&self, timeout: Duration) -> anyhow::Result<Vec<Instant>> {
        let everywhere = async {
            loop {
                let changed = self.shared.changed.notified();
                if let Some(arrivals) = self.shared.lock().finish(self.size)? {
                    return Ok(arrivals);
                }
                changed.await;
            }
        };
        match tokio::time::timeout(timeout, everywhere).await {
            Ok(result) => result,
            Err(_) => {
                let round = self.shared.lock();
                let received: u32 = round.received.iter().sum();
                bail!(
                    "only {received} of {} notifications had arrived at {} listeners after \
                     {timeout:?}: if the server is only slow, raise --timeout",
                    u64::from(round.expected) * self.size as u64,
                    self.size
                );
            }
        }
    }

    /// The processor time that the thread of the sessions has used.
    pub async fn processor_time(&self) -> anyhow::Result<Duration> {
        self.thread.run(processor_time::of_this_thread).await?
    }
}

#[derive(Debug, Default)]
struct Shared {
    round: Mutex<Round>,
    /// When a round is complete, or a session has failed.
    changed: Notify,
}

/// From one `expect` to the next.
#[derive(Debug, Default)]
struct Round {
    /// By each session.
    expected: u32,
    /// By each session, until now.
    received: Vec<u32>,
    /// When a session had everything.
    arrivals: Vec<Instant>,
    failure: Option<Error>,
}

impl Round {
    /// The arrivals, if there are as many as sessions.
    fn finish(&mut self, sessions: usize) -> anyhow::Result<Option<Vec<Instant>>> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if self.arrivals.len() == sessions => Ok(Some(std::mem::take(&mut self.arrivals))),
            None => Ok(None),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Round> {
        // Nothing that is done with it panics.
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Session `number` has received a notification.
    fn received(&self, number: usize, at: Instant) {
        let mut round = self.lock();
        let expected = round.expected;
        round.received[number] += 1;
        let received = round.received[number];
        if received > expected {
            round.failure = Some(anyhow!(
                "a listener received {received} notifications where {expected} have been sent: \
                 the server invented some"
            ));
            self.changed.notify_one();
        } else if received == expected {
            round.arrivals.push(at);
            if round.arrivals.len() == round.received.len() {
                self.changed.notify_one();
            }
        }
    }

    fn fail(&self, error: Error) {
        self.lock().failure = Some(error);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn listeners(size: usize) -> CommitListeners {
        CommitListeners::new(size).unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_session_has_arrived_with_its_last_notification() {
        let listeners = listeners(2);
        listeners.expect(2).unwrap();
        let start = Instant::now();
        let times = [0, 1, 2, 3].map(|n| start + n * SHORT);
        for (session, time) in [1, 0, 0, 1].into_iter().zip(times) {
            listeners.shared.received(session, time);
        }
        assert_eq!(listeners.arrivals(SHORT).await.unwrap(), times[2..]);
        // Nobody has nothing to wait for.
        let nobody = self::listeners(0);
        nobody.expect(5).unwrap();
        assert_eq!(nobody.arrivals(SHORT).await.unwrap(), []);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_missing_is_counted() {
        let listeners = listeners(3);
        listeners.expect(2).unwrap();
        for session in [0, 0, 2] {
            listeners.shared.received(session, Instant::now());
        }
        let error = listeners.arrivals(SHORT).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "only 3 of 6 notifications had arrived at 3 listeners after 1ms: \
             if the server is only slow, raise --timeout"
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn more_than_was_sent_is_an_error_of_the_next_round_at_the_latest() {
        let listeners = listeners(1);
        listeners.expect(1).unwrap();
        listeners.shared.received(0, Instant::now());
        listeners.arrivals(SHORT).await.unwrap();
        listeners.shared.received(0, Instant::now());
        let error = listeners.expect(1).unwrap_err();
        assert!(error.to_string().contains("received 2 notifications"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_session_that_fails_ends_the_waiting() {
        let listeners = listeners(1);
        listeners.expect(1).unwrap();
        let shared = listeners.shared.clone();
        let failing = move || shared.fail(anyhow!("gone"));
        listeners.thread.run(failing).await.unwrap();
        let error = listeners
            .arrivals(Duration::from_secs(60))
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "gone");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_thread_tells_its_own_processor_time() {
        let listeners = listeners(0);
        let first = listeners.processor_time().await.unwrap();
        let second = listeners.processor_time().await.unwrap();
        assert!(second > first, "{first:?} {second:?}");
    }
}
