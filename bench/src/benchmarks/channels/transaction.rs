//! The transaction that is measured.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinpoint_servers::server::Server;
use pinpoint_servers::within::within;

use crate::clients::cpu;
use crate::clients::crowd::Crowd;
use crate::clients::session::Session;

/// How long each part took.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// From COMMIT's dispatch to its completion.
    pub commit: Duration,
    /// From BEGIN's dispatch to there.
    pub transaction: Duration,
    /// From COMMIT's dispatch until the first, half, and all of the listeners have
    /// everything.
    pub received: [Duration; 3],
    /// Of `commit`: the processor time of this thread.
    pub client: Duration,
    /// The processor time of the thread that reads the listeners, until all have
    /// everything.
    pub listeners: Duration,
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

    /// Runs it once, and waits until every listener has received everything.
    pub async fn run(
        &self,
        sender: &mut Session,
        sender_listens: bool,
        crowd: &Crowd,
        timeout: Duration,
    ) -> anyhow::Result<Timings> {
        ensure_none_invented(sender.take_notifications().context("the sender failed")?)?;
        crowd.expect(self.channels)?;
        let crowd_before = crowd.processor_time().await?;

        let begin = Instant::now();
        execute(sender, &self.notify(), timeout).await?;
        let processor_time = cpu::time_of_this_thread()?;
        let committing = Instant::now();
        execute(sender, "COMMIT", timeout).await?;
        let committed = Instant::now();
        let client = cpu::time_of_this_thread()? - processor_time;

        let mut arrivals = Vec::new();
        if sender_listens {
            self.receive(sender, timeout).await?;
            arrivals.push(Instant::now());
        }
        arrivals.extend(crowd.arrivals(timeout).await?);
        arrivals.sort_unstable();
        let last = arrivals.len() - 1;
        let received =
            [0, last / 2, last].map(|place| arrivals[place].saturating_duration_since(committing));
        Ok(Timings {
            commit: committed - committing,
            transaction: committed - begin,
            received,
            client,
            listeners: crowd.processor_time().await? - crowd_before,
        })
    }

    /// Waits until the sender has its own notifications, which is at once if
    /// the server sends them before it reports COMMIT, as PostgreSQL does.
    async fn receive(&self, sender: &mut Session, timeout: Duration) -> anyhow::Result<()> {
        let mut received = sender.take_notifications().context("the sender failed")?;
        while received < self.channels {
            let notified = within(timeout, "a notification to the sender", sender.notified());
            notified.await?.context("the sender failed")?;
            received += 1;
        }
        ensure_none_invented(received - self.channels)
    }
}

fn ensure_none_invented(count: u32) -> anyhow::Result<()> {
    ensure!(
        count == 0,
        "the sender received {count} notifications that it had not sent: the server invented them"
    );
    Ok(())
}

async fn execute(session: &Session, statements: &str, timeout: Duration) -> anyhow::Result<()> {
    let executed = within(timeout, "a transaction", session.execute(statements));
    executed.await?.context("the sender failed")
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
