//! The ping-pong: round trips of notifications between a session and one or several
//! that answer.
//!
//! The method is that of the benchmark in the discussion of PostgreSQL's own
//! optimisation ("Optimize LISTEN/NOTIFY", pgsql-hackers: October 2025 for one that
//! answers, July 2025, message 8, for a group).

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use futures_util::future::try_join_all;
use pinpoint_servers::connection::within;
use pinpoint_servers::server::Server;

use crate::clients::latency::Latencies;
use crate::clients::session::Session;
use crate::report::results::Values;

pub const PER_SEC: &str = "round_trips_per_sec";
pub const P99_LATENCY: &str = "p99_latency_usec";
pub const P50_LATENCY: &str = "p50_latency_usec";
pub const MAX_LATENCY: &str = "max_latency_usec";

#[derive(Debug, Clone, Copy)]
pub struct RoundTrips {
    /// Sessions that answer, all on one channel.
    pub group: u32,
    pub warmup: Duration,
    pub duration: Duration,
}

impl RoundTrips {
    pub fn sessions(&self) -> u32 {
        1 + self.group
    }

    pub async fn run(&self, server: &Server, timeout: Duration) -> anyhow::Result<Values> {
        let config = server.config();
        let (forth, back) = (server.channel("pong"), server.channel("ping"));
        let listen = async |channel| {
            let listening = Session::listen(&config, channel);
            within(timeout, "a session's connection and LISTEN", listening).await?
        };
        let mut ping = listen(&back).await?;
        let mut answering = try_join_all((0..self.group).map(|_| listen(&forth))).await?;

        // They are independent, as programs would be: one may answer before the first
        // knows that its own NOTIFY is complete.
        let answers = answering.iter_mut().map(|session| answer(session, &back));
        tokio::select! {
            values = self.serve(&mut ping, &forth, timeout) => values,
            Err(error) = try_join_all(answers) => Err(error),
        }
    }

    /// Goes back and forth, first for the warm-up, and takes the time of the rest.
    async fn serve(
        &self,
        ping: &mut Session,
        channel: &str,
        timeout: Duration,
    ) -> anyhow::Result<Values> {
        let mut numbers = 0_u64..;
        let mut next = async || {
            let number = numbers.next().expect("there is no last number");
            self.round_trip(ping, channel, number, timeout).await
        };
        let start = Instant::now();
        while start.elapsed() < self.warmup {
            next().await?;
        }
        let mut latencies = Latencies::new();
        let start = Instant::now();
        loop {
            latencies.record(next().await?);
            let elapsed = start.elapsed();
            if elapsed >= self.duration {
                return Ok(values(&latencies, elapsed));
            }
        }
    }

    async fn round_trip(
        &self,
        ping: &mut Session,
        channel: &str,
        number: u64,
        timeout: Duration,
    ) -> anyhow::Result<Duration> {
        let group = self.group;
        let mut received = 0;
        let start = Instant::now();
        let there_and_back = async {
            ping.execute(&format!("NOTIFY {channel}, '{number}'"))
                .await?;
            while received < group {
                let got = ping.notified().await?;
                ensure!(
                    got.parse() == Ok(number),
                    "an answer to round trip {got} came back in round trip {number}: the server \
                     repeated or held back a notification"
                );
                received += 1;
            }
            Ok(())
        };
        match tokio::time::timeout(timeout, there_and_back).await {
            Ok(result) => result?,
            Err(_) => bail!(
                "only {received} of {group} answers came back within {timeout:?}: if the server \
                 is only slow, raise --timeout"
            ),
        }
        Ok(start.elapsed())
    }
}

/// A session that answers, for ever.
async fn answer(session: &mut Session, channel: &str) -> anyhow::Result<Infallible> {
    loop {
        let number = session.notified().await?;
        session
            .execute(&format!("NOTIFY {channel}, '{number}'"))
            .await?;
    }
}

/// The figures of a run that took `elapsed`, by the latencies of its round trips.
fn values(latencies: &Latencies, elapsed: Duration) -> Values {
    let rate = latencies.count() as f64 / elapsed.as_secs_f64();
    let mut values = Values::from([(PER_SEC.to_owned(), rate)]);
    let latencies = [
        (P50_LATENCY, latencies.at_quantile(0.50)),
        (P99_LATENCY, latencies.at_quantile(0.99)),
        (MAX_LATENCY, latencies.max()),
    ];
    for (name, latency) in latencies {
        values.extend(latency.map(|latency| (name.to_owned(), latency as f64)));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::latency::tests::of;

    #[test]
    fn figures_of_a_run() {
        let expected = [
            (PER_SEC, 200.0),
            (P50_LATENCY, 50.0),
            (P99_LATENCY, 99.0),
            (MAX_LATENCY, 100.0),
        ];
        assert_eq!(
            values(&of(1..=100), Duration::from_millis(500)),
            expected
                .map(|(name, value)| (name.to_owned(), value))
                .into()
        );
    }
}
