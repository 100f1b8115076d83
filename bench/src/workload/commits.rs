//! Transactions with one notification on each of a number of channels: how long COMMIT
//! takes, and how long it takes until all listeners have everything.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinpoint_servers::connection::within;
use pinpoint_servers::server::Server;

use crate::clients::commit_listeners::CommitListeners;
use crate::clients::processor_time;
use crate::clients::session::Session;
use crate::report::results::Values;
use crate::report::stats::milliseconds;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commits {
    pub channels: u32,
    pub sender_listens: bool,
    /// Sessions beside the sender that listen, each on all channels.
    pub listeners: u32,
    pub transactions: u32,
    /// Transactions before these that are not measured.
    pub warmup: u32,
}

impl Commits {
    pub fn sessions(&self) -> u32 {
        1 + self.listeners
    }

    pub async fn run(&self, server: &Server, timeout: Duration) -> anyhow::Result<Values> {
        let transaction = Transaction {
            prefix: server.channel("channel_"),
            channels: self.channels,
        };
        let (config, statements) = (server.config(), transaction.listen());
        let size = self.listeners as usize;
        let mut listeners = CommitListeners::connect(size, &config, &statements, timeout).await?;
        let mut sender = within(timeout, "a connection", Session::connect(&config)).await??;
        if self.sender_listens {
            within(timeout, "LISTEN", sender.execute(&statements)).await??;
        }
        let mut measured = Vec::new();
        for number in 0..self.warmup.saturating_add(self.transactions) {
            let times = transaction
                .run(&mut sender, self.sender_listens, &mut listeners, timeout)
                .await?;
            if number >= self.warmup {
                measured.push(times);
            }
        }
        Ok(values(&measured))
    }
}

/// What is measured of a transaction: the figures that are made of it.
const FIGURES: [&str; 7] = [
    // From COMMIT's dispatch to its completion.
    COMMIT,
    // From BEGIN's dispatch to there.
    "transaction_msec",
    // From COMMIT's dispatch until the first, half, and all of the listeners have
    // everything.
    "first_received_msec",
    "median_received_msec",
    "all_received_msec",
    // Of COMMIT: the processor time of this thread.
    "client_msec",
    // The processor time of the thread that reads the listeners, until all have
    // everything.
    "listeners_client_msec",
];
const COMMIT: &str = "commit_msec";

/// How long each of them was.
type Times = [Duration; FIGURES.len()];

/// One notification on each of a number of channels.
struct Transaction {
    /// What the names of the channels begin with. Their numbers follow, from 1.
    prefix: String,
    channels: u32,
}

impl Transaction {
    /// Statements that make a session listen on all channels.
    fn listen(&self) -> String {
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
    async fn run(
        &self,
        sender: &mut Session,
        sender_listens: bool,
        listeners: &mut CommitListeners,
        timeout: Duration,
    ) -> anyhow::Result<Times> {
        ensure_none_invented(sender.take_notifications().context("the sender failed")?)?;
        listeners.expect(self.channels)?;
        let listeners_before = listeners.readers.processor_time().await?;

        let begin = Instant::now();
        execute(sender, &self.notify(), timeout).await?;
        let processor_time = processor_time::of_this_thread()?;
        let committing = Instant::now();
        execute(sender, "COMMIT", timeout).await?;
        let committed = Instant::now();
        let client = processor_time::of_this_thread()? - processor_time;

        let mut arrivals = Vec::new();
        if sender_listens {
            self.receive(sender, timeout).await?;
            arrivals.push(Instant::now());
        }
        arrivals.extend(listeners.arrivals(timeout).await?);
        arrivals.sort_unstable();
        let last = arrivals.len() - 1;
        let received = |place: usize| arrivals[place].saturating_duration_since(committing);
        Ok([
            committed - committing,
            committed - begin,
            received(0),
            received(last / 2),
            received(last),
            client,
            listeners.readers.processor_time().await? - listeners_before,
        ])
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

/// The figures of a run, from its transactions, of which there is at least one.
fn values(transactions: &[Times]) -> Values {
    let mut values = Values::new();
    for (position, name) in FIGURES.into_iter().enumerate() {
        let times = transactions.iter().map(|times| times[position]);
        let (median, p99) = milliseconds(times);
        values.insert(name.to_owned(), median);
        if name == COMMIT {
            values.insert("commit_p99_msec".to_owned(), p99);
        }
    }
    values
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

    #[test]
    fn a_run_is_the_median_of_its_transactions() {
        let transactions = [10, 30, 11].map(|commit| {
            let times = [commit, commit + 100, 1, 2, commit + 200, commit + 300, 3];
            times.map(Duration::from_millis)
        });
        let expected = [
            ("commit_msec", 11.0),
            ("commit_p99_msec", 30.0),
            ("transaction_msec", 111.0),
            ("first_received_msec", 1.0),
            ("median_received_msec", 2.0),
            ("all_received_msec", 211.0),
            ("client_msec", 311.0),
            ("listeners_client_msec", 3.0),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(values(&transactions), expected.into());
    }
}
