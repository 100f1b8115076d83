//! Many sessions that listen, all read by one thread.
//!
//! They are not read by the thread that sends, so that it can be measured how
//! long the sender waits: otherwise it would get to know of its COMMIT only when
//! everything that arrived in the meantime has been read. One thread for each
//! session would be as many threads as the server has processes, competing with
//! them.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use nix::errno::Errno;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls, Socket, tls::NoTlsStream};

use crate::cpu;
use crate::session::{CONNECTING_AT_ONCE, SessionError};

#[derive(Debug, Error)]
pub enum CrowdError {
    #[error("could not start a thread for the listeners")]
    Thread(#[source] io::Error),
    #[error("a listener failed")]
    Session(#[from] SessionError),
    #[error(
        "a listener could not connect and LISTEN within {0:?}: if the server is only slow, \
         raise --timeout"
    )]
    NoConnection(Duration),
    #[error(
        "only {received} of {expected} notifications had arrived at {listeners} listeners after \
         {timeout:?}: if the server is only slow, raise --timeout"
    )]
    Missing {
        received: u64,
        expected: u64,
        listeners: usize,
        timeout: Duration,
    },
    #[error(
        "a listener received {received} notifications where {expected} have been sent: \
         the server invented some"
    )]
    Excess { received: u64, expected: u64 },
    #[error("could not read the processor time of the listeners' thread")]
    ProcessorTime(#[from] Errno),
}

/// The sessions. They end when this is dropped.
#[derive(Debug)]
pub struct Crowd {
    size: usize,
    shared: Arc<Shared>,
    runtime: Handle,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Nobody yet.
    pub fn new() -> Result<Self, CrowdError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CrowdError::Thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("listeners".to_owned())
            .spawn(move || {
                // An error only says that the other end is gone, as it should be.
                let _ = runtime.block_on(stopped);
            })
            .map_err(CrowdError::Thread)?;
        Ok(Self {
            size: 0,
            shared: Arc::default(),
            runtime: handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Connects more sessions, until there are `size`. Each executes `statements`,
    /// which make it listen.
    pub async fn grow(
        &mut self,
        size: usize,
        config: &Config,
        statements: &str,
        timeout: Duration,
    ) -> Result<(), CrowdError> {
        self.shared.lock().received.resize(size.max(self.size), 0);
        let statements: Arc<str> = statements.into();
        let this = &*self;
        stream::iter(this.size..size)
            .map(|number| {
                let (ready, is_ready) = oneshot::channel();
                let shared = this.shared.clone();
                let config = config.clone();
                let statements = statements.clone();
                this.runtime.spawn(async move {
                    if let Err(error) = listen(&config, &statements, ready, number, &shared).await {
                        shared.fail(error.into());
                    }
                });
                async move {
                    tokio::time::timeout(timeout, is_ready)
                        .await
                        .map_err(|_| CrowdError::NoConnection(timeout))?
                        // The session says itself why it has failed.
                        .map_err(|_| this.shared.failure())
                }
            })
            .buffer_unordered(CONNECTING_AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.size = size.max(self.size);
        Ok(())
    }

    /// From now on each session is to receive `count` notifications.
    pub fn expect(&self, count: u64) -> Result<(), CrowdError> {
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
    pub async fn arrivals(&self, timeout: Duration) -> Result<Vec<Instant>, CrowdError> {
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
                Err(CrowdError::Missing {
                    received: round.received.iter().sum(),
                    expected: round.expected * self.size as u64,
                    listeners: self.size,
                    timeout,
                })
            }
        }
    }

    /// The processor time that the thread of the sessions has used.
    pub async fn processor_time(&self) -> Result<Duration, CrowdError> {
        let time = self.runtime.spawn(async { cpu::time_of_this_thread() });
        Ok(time.await.map_err(|_| SessionError::Closed)??)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
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
    expected: u64,
    /// By each session, until now.
    received: Vec<u64>,
    /// When a session had everything.
    arrivals: Vec<Instant>,
    failure: Option<CrowdError>,
}

impl Round {
    /// The arrivals, if there are as many as sessions.
    fn finish(&mut self, sessions: usize) -> Result<Option<Vec<Instant>>, CrowdError> {
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
            round.failure = Some(CrowdError::Excess { received, expected });
            self.changed.notify_one();
        } else if received == expected {
            round.arrivals.push(at);
            if round.arrivals.len() == round.received.len() {
                self.changed.notify_one();
            }
        }
    }

    fn fail(&self, error: CrowdError) {
        self.lock().failure = Some(error);
        self.changed.notify_one();
    }

    fn failure(&self) -> CrowdError {
        let failure = self.lock().failure.take();
        failure.unwrap_or(CrowdError::Session(SessionError::Closed))
    }
}

/// One of the sessions. Reads until it fails.
async fn listen(
    config: &Config,
    statements: &str,
    ready: oneshot::Sender<()>,
    number: usize,
    shared: &Shared,
) -> Result<(), SessionError> {
    let (client, connection) = config.connect(NoTls).await?;
    let mut reading = std::pin::pin!(read(connection, number, shared));
    tokio::select! {
        result = &mut reading => return result,
        result = client.batch_execute(statements) => result?,
    }
    // Whoever waited for it may have been dropped.
    let _ = ready.send(());
    reading.await
}

async fn read(
    mut connection: Connection<Socket, NoTlsStream>,
    number: usize,
    shared: &Shared,
) -> Result<(), SessionError> {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message? {
            shared.received(number, Instant::now());
        }
    }
    Err(SessionError::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    /// A crowd of which nobody is connected.
    fn crowd(size: usize) -> Crowd {
        let mut crowd = Crowd::new().unwrap();
        crowd.size = size;
        crowd.shared.lock().received.resize(size, 0);
        crowd
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_session_has_arrived_with_its_last_notification() {
        let crowd = crowd(2);
        crowd.expect(2).unwrap();
        let start = Instant::now();
        let times = [0, 1, 2, 3].map(|n| start + n * SHORT);
        for (session, time) in [1, 0, 0, 1].into_iter().zip(times) {
            crowd.shared.received(session, time);
        }
        let arrivals = crowd.arrivals(SHORT).await.unwrap();
        assert_eq!(arrivals, times[2..]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_missing_is_counted() {
        let crowd = crowd(3);
        crowd.expect(2).unwrap();
        for session in [0, 0, 2] {
            crowd.shared.received(session, Instant::now());
        }
        let error = crowd.arrivals(SHORT).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "only 3 of 6 notifications had arrived at 3 listeners after 1ms: \
             if the server is only slow, raise --timeout"
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn more_than_was_sent_is_an_error_of_the_next_round_at_the_latest() {
        let crowd = crowd(1);
        crowd.expect(1).unwrap();
        crowd.shared.received(0, Instant::now());
        crowd.arrivals(SHORT).await.unwrap();
        crowd.shared.received(0, Instant::now());
        let error = crowd.expect(1).unwrap_err();
        assert!(
            matches!(
                error,
                CrowdError::Excess {
                    received: 2,
                    expected: 1
                }
            ),
            "{error}"
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nobody_has_nothing_to_wait_for() {
        let crowd = crowd(0);
        crowd.expect(5).unwrap();
        assert_eq!(crowd.arrivals(SHORT).await.unwrap(), []);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_session_that_fails_ends_the_waiting() {
        let crowd = crowd(1);
        crowd.expect(1).unwrap();
        let shared = crowd.shared.clone();
        crowd
            .runtime
            .spawn(async move { shared.fail(SessionError::Closed.into()) });
        let error = crowd.arrivals(Duration::from_secs(60)).await.unwrap_err();
        assert!(matches!(error, CrowdError::Session(_)), "{error}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_thread_tells_its_own_processor_time() {
        let crowd = crowd(0);
        let first = crowd.processor_time().await.unwrap();
        let second = crowd.processor_time().await.unwrap();
        assert!(second > first, "{first:?} {second:?}");
    }
}
