//! The transaction that is measured.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use thiserror::Error;

use crate::cpu;
use crate::crowd::{Crowd, CrowdError};
use crate::server::Server;
use crate::session::{Session, SessionError};

#[derive(Debug, Error)]
pub enum SendingError {
    #[error("the sender failed")]
    Sender(#[source] SessionError),
    #[error(transparent)]
    Listeners(#[from] CrowdError),
    #[error("a session could not connect")]
    Connect(#[source] SessionError),
    #[error("there was no connection within {0:?}: if the server is only slow, raise --timeout")]
    NoConnection(Duration),
    #[error("a transaction took longer than {0:?}: if the server is only slow, raise --timeout")]
    Endless(Duration),
    #[error(
        "the sender had received {received} of its own {sent} notifications {timeout:?} after \
         COMMIT: if the server is only slow, raise --timeout"
    )]
    Missing {
        received: u64,
        sent: u64,
        timeout: Duration,
    },
    #[error("the sender received {0} notifications that it had not sent: the server invented them")]
    Excess(u64),
    #[error("{0} of {1} idle sessions lost their connection: these figures would not be for them")]
    IdleSessionsLost(usize, usize),
    #[error("could not read this program's processor time")]
    ProcessorTime(#[from] Errno),
}

/// How long each part took.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// From COMMIT's dispatch to its completion.
    pub commit: Duration,
    /// From BEGIN's dispatch to there.
    pub transaction: Duration,
    /// From COMMIT's dispatch until the last listener has everything.
    pub all_received: Duration,
    /// Of `commit`: the processor time of this thread.
    pub client: Duration,
}

/// One notification on each of a number of channels.
pub struct Transaction {
    /// What the names of the channels begin with. Their numbers follow, from 1.
    prefix: String,
    channels: u32,
}

impl Transaction {
    pub fn new(server: &Server, channels: u32) -> Self {
        Self {
            prefix: server.channel("channel_"),
            channels,
        }
    }

    /// Statements that make a session listen on all channels.
    pub fn listen(&self) -> String {
        (1..=self.channels)
            .map(|number| format!("LISTEN {}{number};", self.prefix))
            .collect()
    }

    /// All notifications, by a function, so that this is not mostly parsing.
    fn notify(&self) -> String {
        format!(
            "BEGIN; SELECT count(pg_notify('{}' || n, '')) FROM generate_series(1, {}) AS n",
            self.prefix, self.channels
        )
    }

    /// Makes the sender listen.
    pub async fn listen_to_oneself(
        &self,
        sender: &Session,
        timeout: Duration,
    ) -> Result<(), SendingError> {
        execute(sender, &self.listen(), timeout).await
    }

    /// Runs it once, and waits until every listener has received everything.
    pub async fn run(
        &self,
        sender: &mut Session,
        sender_listens: bool,
        listeners: &Crowd,
        timeout: Duration,
    ) -> Result<Timings, SendingError> {
        match sender.take_notifications().map_err(SendingError::Sender)? {
            0 => {}
            excess => return Err(SendingError::Excess(excess)),
        }
        listeners.expect(self.channels.into())?;

        let begin = Instant::now();
        execute(sender, &self.notify(), timeout).await?;
        let processor_time = cpu::time_of_this_thread()?;
        let committing = Instant::now();
        execute(sender, "COMMIT", timeout).await?;
        let committed = Instant::now();
        let client = cpu::time_of_this_thread()? - processor_time;

        let mut all_received = committed;
        if sender_listens {
            self.receive(sender, timeout).await?;
            all_received = Instant::now();
        }
        if let Some(&last) = listeners.arrivals(timeout).await?.last() {
            all_received = if sender_listens {
                all_received.max(last)
            } else {
                last
            };
        }
        Ok(Timings {
            commit: committed - committing,
            transaction: committed - begin,
            all_received: all_received.saturating_duration_since(committing),
            client,
        })
    }

    /// Waits until the sender has its own notifications, which is at once if
    /// the server sends them before it reports COMMIT, as PostgreSQL does.
    async fn receive(&self, sender: &mut Session, timeout: Duration) -> Result<(), SendingError> {
        let sent = u64::from(self.channels);
        let mut received = sender.take_notifications().map_err(SendingError::Sender)?;
        while received < sent {
            match tokio::time::timeout(timeout, sender.notified()).await {
                Ok(notified) => {
                    notified.map_err(SendingError::Sender)?;
                    received += 1;
                }
                Err(_) => {
                    return Err(SendingError::Missing {
                        received,
                        sent,
                        timeout,
                    });
                }
            }
        }
        match received - sent {
            0 => Ok(()),
            excess => Err(SendingError::Excess(excess)),
        }
    }
}

async fn execute(
    session: &Session,
    statements: &str,
    timeout: Duration,
) -> Result<(), SendingError> {
    tokio::time::timeout(timeout, session.execute(statements))
        .await
        .map_err(|_| SendingError::Endless(timeout))?
        .map_err(SendingError::Sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_notification_on_each_channel() {
        let transaction = Transaction {
            prefix: "channel_".to_owned(),
            channels: 3,
        };
        assert_eq!(
            transaction.listen(),
            "LISTEN channel_1;LISTEN channel_2;LISTEN channel_3;"
        );
        assert_eq!(
            transaction.notify(),
            "BEGIN; SELECT count(pg_notify('channel_' || n, '')) FROM generate_series(1, 3) AS n"
        );
    }
}
