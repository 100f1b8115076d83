//! A session that sends and listens.

use anyhow::{Context, Error};
use tokio::sync::mpsc::{self, UnboundedReceiver, error::TryRecvError};
use tokio_postgres::{Client, Config};

use super::reader;

/// Where many sessions connect: so many at the same time.
pub const CONNECTING_AT_ONCE: usize = 16;

const CLOSED: &str = "the server closed the connection";

/// A connection to a server, and the notifications that arrive on it. It is closed
/// when this is dropped.
#[derive(Debug)]
pub struct Session {
    client: Client,
    /// The payloads.
    notifications: UnboundedReceiver<Result<String, Error>>,
}

impl Session {
    /// Connects.
    pub async fn connect(config: &Config) -> anyhow::Result<Self> {
        let (sender, notifications) = mpsc::unbounded_channel();
        let client = reader::connect(config, move |arrival| {
            // Nobody takes it any more when the session has been dropped.
            let _ = sender.send(arrival.map(|notification| notification.payload().to_owned()));
        })
        .await?;
        Ok(Self {
            client,
            notifications,
        })
    }

    /// Connects, and LISTENs on `channel`.
    pub async fn listen(config: &Config, channel: &str) -> anyhow::Result<Self> {
        let session = Self::connect(config).await?;
        session.execute(&format!("LISTEN {channel}")).await?;
        Ok(session)
    }

    /// Executes any number of statements, and waits until the server has completed them.
    pub async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        Ok(self.client.batch_execute(statements).await?)
    }

    /// Waits for the next notification, and returns its payload.
    pub async fn notified(&mut self) -> anyhow::Result<String> {
        self.notifications.recv().await.context(CLOSED)?
    }

    /// Takes those notifications that have arrived by now, and returns how many there are.
    pub fn take_notifications(&mut self) -> anyhow::Result<u32> {
        let mut count = 0;
        loop {
            match self.notifications.try_recv() {
                Ok(notification) => notification.map(|_| count += 1)?,
                Err(TryRecvError::Empty) => return Ok(count),
                Err(TryRecvError::Disconnected) => return Err(Error::msg(CLOSED)),
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}
