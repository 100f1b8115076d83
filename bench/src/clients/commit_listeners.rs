//! Many sessions that listen, all read by one thread.
//!
//! They are not read by the thread that sends, so that it can be measured how
//! long the sender waits: otherwise it would get to know of its COMMIT only when
//! everything that arrived in the meantime has been read. One thread for each
//! session would be as many threads as the server has processes, competing with
//! them.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, anyhow, bail};
use tokio::sync::Notify;
use tokio_postgres::{Config, Notification};

use super::reader::Readers;

/// The sessions. They end when this is dropped.
#[derive(Debug)]
pub struct CommitListeners {
    pub rounds: Arc<Rounds>,
    pub readers: Readers,
}

impl CommitListeners {
    /// Connects `size` sessions, each of which executes `statements` to listen.
    pub async fn connect(
        size: usize,
        config: &Config,
        statements: &str,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let rounds = Arc::new(Rounds::of(size));
        let on_arrival = |number| {
            let rounds = rounds.clone();
            move |arrival: Result<Notification, Error>| match arrival {
                Ok(_) => rounds.received(number, Instant::now()),
                Err(error) => rounds.fail(error.context("a listener failed")),
            }
        };
        let readers = Readers::connect(1, size, config, statements, timeout, on_arrival);
        Ok(Self {
            readers: readers.await?,
            rounds,
        })
    }
}

/// What the sessions receive, round by round.
#[derive(Debug)]
pub struct Rounds {
    round: Mutex<Round>,
    /// When a round is complete, or a session has failed.
    changed: Notify,
}

/// From one `expect` to the next.
#[derive(Debug)]
struct Round {
    /// By each session.
    expected: u32,
    /// By each session, until now.
    received: Vec<u32>,
    /// When a session had everything.
    arrivals: Vec<Instant>,
    failure: Option<Error>,
}

impl Rounds {
    fn of(sessions: usize) -> Self {
        Self {
            round: Mutex::new(Round {
                expected: 0,
                received: vec![0; sessions],
                arrivals: Vec::new(),
                failure: None,
            }),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Round> {
        // Nothing that is done with it panics.
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on each session is to receive `count` notifications.
    pub fn expect(&self, count: u32) -> anyhow::Result<()> {
        let mut round = self.lock();
        round.failure.take().map_or(Ok(()), Err)?;
        round.expected = count;
        round.received.fill(0);
        round.arrivals.clear();
        Ok(())
    }

    /// Waits until every session has received what was expected, and returns when
    /// each had the last of it.
    pub async fn arrivals(&self, timeout: Duration) -> anyhow::Result<Vec<Instant>> {
        let everywhere = async {
            loop {
                let changed = self.changed.notified();
                {
                    let mut round = self.lock();
                    round.failure.take().map_or(Ok(()), Err)?;
                    if round.arrivals.len() == round.received.len() {
                        return Ok(mem::take(&mut round.arrivals));
                    }
                }
                changed.await;
            }
        };
        if let Ok(result) = tokio::time::timeout(timeout, everywhere).await {
            return result;
        }
        let round = self.lock();
        let (size, received) = (round.received.len(), round.received.iter().sum::<u32>());
        bail!(
            "only {received} of {} notifications had arrived at {size} listeners after \
             {timeout:?}: if the server is only slow, raise --timeout",
            u64::from(round.expected) * size as u64
        )
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

    #[tokio::test(flavor = "current_thread")]
    async fn a_session_has_arrived_with_its_last_notification() {
        let rounds = Rounds::of(2);
        rounds.expect(2).unwrap();
        let start = Instant::now();
        let times = [0, 1, 2, 3].map(|n| start + n * SHORT);
        for (session, time) in [1, 0, 0, 1].into_iter().zip(times) {
            rounds.received(session, time);
        }
        assert_eq!(rounds.arrivals(SHORT).await.unwrap(), times[2..]);
        // Nobody has nothing to wait for.
        let nobody = Rounds::of(0);
        nobody.expect(5).unwrap();
        assert_eq!(nobody.arrivals(SHORT).await.unwrap(), []);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_missing_is_counted() {
        let rounds = Rounds::of(3);
        rounds.expect(2).unwrap();
        for session in [0, 0, 2] {
            rounds.received(session, Instant::now());
        }
        let error = rounds.arrivals(SHORT).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "only 3 of 6 notifications had arrived at 3 listeners after 1ms: \
             if the server is only slow, raise --timeout"
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn more_than_was_sent_is_an_error_of_the_next_round_at_the_latest() {
        let rounds = Rounds::of(1);
        rounds.expect(1).unwrap();
        rounds.received(0, Instant::now());
        rounds.arrivals(SHORT).await.unwrap();
        rounds.received(0, Instant::now());
        let error = rounds.expect(1).unwrap_err();
        assert!(error.to_string().contains("received 2 notifications"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_session_that_fails_ends_the_waiting() {
        let rounds = Rounds::of(1);
        rounds.expect(1).unwrap();
        rounds.fail(anyhow!("gone"));
        let error = rounds.arrivals(Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.to_string(), "gone");
    }
}
