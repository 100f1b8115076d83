//! The benchmark `hub`: one notification for many listeners, as an application
//! does it that tells all of its processes to forget something they have cached.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;

use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::cli::CommonArgs;
use crate::cli::values::{MAX_CONNECTIONS, ascending, positive_seconds};
use crate::crowd::{Crowd, CrowdError};
use crate::results::{Axis, Better, Figure, Scale, Summary, Values};
use crate::server::Server;
use crate::session::{Session, SessionError};

/// For the time that is left to be told: what a listener adds to a notification.
const TIME_OF_A_LISTENER: Duration = Duration::from_micros(30);

/// For `all --quick`.
pub const QUICK: &[&str] = &[
    "--listeners=1,100,1000",
    "--notifications=15",
    "--warmup=2",
    "--runs=2",
];

/// How long one notification takes to reach many listeners
///
/// N sessions listen on one channel, and a session notifies it. Measured is how long the sender
/// waits, and how long it takes until all listeners have the notification.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of listeners to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,10,100,1000",
        value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS),
    )]
    listeners: Vec<u32>,

    /// Send N notifications in each run
    #[arg(long, value_name = "N", default_value = "50")]
    notifications: NonZeroU32,

    /// Send N notifications before each run, without measuring
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,

    /// Runs for each number of listeners and each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

    /// Give up when a connection or a notification takes longer
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        Plan {
            listeners: ascending(self.listeners.clone()),
            notifications: self.notifications,
            warmup: self.warmup,
            runs: self.runs,
            timeout: self.timeout,
        }
    }
}

#[derive(Debug, Error)]
enum HubError {
    #[error("the sender failed")]
    Sender(#[from] SessionError),
    #[error(transparent)]
    Listeners(#[from] CrowdError),
    #[error(
        "the sender could not connect within {0:?}: if the server is only slow, raise --timeout"
    )]
    NoConnection(Duration),
    #[error("NOTIFY took longer than {0:?}: if the server is only slow, raise --timeout")]
    Endless(Duration),
}

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Ascending.
    listeners: Vec<u32>,
    /// Of each run.
    notifications: NonZeroU32,
    /// Notifications before them, which are not measured.
    warmup: u32,
    runs: NonZeroU32,
    /// For a connection, and for a notification.
    #[serde(serialize_with = "as_seconds")]
    timeout: Duration,
}

/// How long each part took, from NOTIFY's dispatch.
#[derive(Debug, Clone, Copy)]
struct Timings {
    sender: Duration,
    first: Duration,
    median: Duration,
    all: Duration,
    /// Of `all`: the processor time of the thread that reads.
    client: Duration,
}

impl Plan {
    async fn send(
        &self,
        sender: &Session,
        channel: &str,
        listeners: &Crowd,
    ) -> Result<Timings, HubError> {
        listeners.expect(1)?;
        let processor_time = listeners.processor_time().await?;
        let start = Instant::now();
        tokio::time::timeout(self.timeout, sender.notify(channel))
            .await
            .map_err(|_| HubError::Endless(self.timeout))??;
        let sent = Instant::now();
        let arrivals = listeners.arrivals(self.timeout).await?;
        let client = listeners.processor_time().await? - processor_time;
        Ok(timings(start, sent, &arrivals, client))
    }
}

/// `arrivals` are those of all listeners, of which there is at least one, in order.
fn timings(start: Instant, sent: Instant, arrivals: &[Instant], client: Duration) -> Timings {
    let from_start = |arrival: Instant| arrival.saturating_duration_since(start);
    Timings {
        sender: sent - start,
        first: from_start(arrivals[0]),
        median: from_start(arrivals[(arrivals.len() - 1) / 2]),
        all: from_start(arrivals[arrivals.len() - 1]),
        client,
    }
}

/// The sessions of one server.
#[derive(Debug)]
pub struct State {
    sender: Session,
    channel: String,
    listeners: Crowd,
}

impl Benchmark for Plan {
    type State = State;

    fn name(&self) -> &'static str {
        "hub"
    }

    fn question(&self) -> &'static str {
        "How long does one notification to many listeners take, for the sender and until all have it?"
    }

    fn method(&self) -> Vec<String> {
        vec![
            format!(
                "N sessions listen on one channel, and one more session notifies it. The next \
                 NOTIFY is sent when all listeners have the one before; one that does not arrive \
                 everywhere, or arrives twice, is an error. A run is {} notifications after {} \
                 that are not measured, and each figure is their median.",
                self.notifications, self.warmup
            ),
            "sender_msec is the time from NOTIFY's dispatch to its completion: what the sender \
             waits for. all_received_msec, first_received_msec and median_received_msec are the \
             times from NOTIFY's dispatch until the last, the first and half of the listeners \
             have it."
                .to_owned(),
            "All listeners are read by one thread of this program, another one than that of the \
             sender. It takes part in the race: the server's processes wake up and send, and this \
             thread reads what they send on the same cores, one after the other. client_msec is \
             the processor time that it has used from NOTIFY's dispatch until all have it. No \
             server can make all_received_msec shorter than that, and as it is the same work for \
             all of them, it makes their ratio smaller than it is."
                .to_owned(),
        ]
    }

    fn axis(&self) -> Axis {
        Axis {
            name: "listeners".to_owned(),
            label: "listeners".to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name: &str, label: &str, chart| Figure {
            name: name.to_owned(),
            label: label.to_owned(),
            better: Better::Lower,
            scale: Scale::Logarithmic,
            chart,
            is_ratio: false,
        };
        vec![
            figure("all_received_msec", "until all have it, ms", true),
            figure("sender_msec", "until the sender goes on, ms", true),
            figure("first_received_msec", "until the first has it, ms", false),
            figure(
                "median_received_msec",
                "until half of them have it, ms",
                false,
            ),
            figure("client_msec", "this program's own part, ms", false),
        ]
    }

    fn points(&self) -> Vec<PointId> {
        self.listeners.iter().map(|&x| PointId::at(x)).collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    fn run_time(&self) -> Duration {
        let listeners = self.listeners.iter().sum::<u32>() / self.listeners.len() as u32;
        TIME_OF_A_LISTENER * listeners * (self.notifications.get() + self.warmup)
    }

    fn sessions(&self) -> u32 {
        1 + self.listeners.last().copied().unwrap_or(0)
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<State> {
        let config = server.config();
        let sender = tokio::time::timeout(self.timeout, Session::connect(&config))
            .await
            .map_err(|_| HubError::NoConnection(self.timeout))?
            .map_err(HubError::Sender)?;
        Ok(State {
            sender,
            channel: server.channel("hub"),
            listeners: Crowd::new()?,
        })
    }

    async fn prepare(
        &self,
        server: &Server,
        state: &mut State,
        point: &PointId,
    ) -> anyhow::Result<()> {
        let statement = format!("LISTEN {}", state.channel);
        let size = usize::try_from(point.x)?;
        state
            .listeners
            .grow(size, &server.config(), &statement, self.timeout)
            .await?;
        Ok(())
    }

    async fn measure(
        &self,
        _server: &Server,
        state: &mut State,
        _point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        let mut all = Vec::new();
        for number in 0..self.warmup + self.notifications.get() {
            let timings = self
                .send(&state.sender, &state.channel, &state.listeners)
                .await?;
            if number >= self.warmup {
                all.push(timings);
            }
        }
        Ok(values(&all))
    }
}

/// The figures of a run, from its notifications, of which there is at least one.
fn values(timings: &[Timings]) -> Values {
    let median = |time: fn(&Timings) -> Duration| {
        let summary = Summary::of_milliseconds(timings.iter().map(time));
        summary.expect("there is at least one notification").median
    };
    [
        ("all_received_msec", median(|timings| timings.all)),
        ("sender_msec", median(|timings| timings.sender)),
        ("first_received_msec", median(|timings| timings.first)),
        ("median_received_msec", median(|timings| timings.median)),
        ("client_msec", median(|timings| timings.client)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn times_are_from_dispatch() {
        let start = Instant::now();
        let arrivals = [2, 3, 9, 10].map(|ms| start + ms * MS);
        let timings = timings(start, start + 5 * MS, &arrivals, 4 * MS);
        assert_eq!(timings.sender, 5 * MS);
        assert_eq!(timings.first, 2 * MS);
        assert_eq!(timings.median, 3 * MS);
        assert_eq!(timings.all, 10 * MS);
        assert_eq!(timings.client, 4 * MS);
    }

    #[test]
    fn a_run_is_the_median_of_its_notifications() {
        let timings = [7, 50, 8].map(|all| Timings {
            sender: MS,
            first: 2 * MS,
            median: 3 * MS,
            all: all * MS,
            client: 4 * MS,
        });
        let values = values(&timings);
        assert_eq!(values["all_received_msec"], 8.0);
        assert_eq!(values["sender_msec"], 1.0);
        let figures = plan().figures();
        assert_eq!(figures.len(), values.len());
        for figure in figures {
            assert!(values.contains_key(&figure.name), "{}", figure.name);
        }
    }

    fn plan() -> Plan {
        Plan {
            listeners: vec![1, 100],
            notifications: NonZeroU32::MIN,
            warmup: 0,
            runs: NonZeroU32::MIN,
            timeout: MS,
        }
    }

    #[test]
    fn there_is_room_for_the_sender() {
        assert_eq!(plan().sessions(), 101);
    }
}
