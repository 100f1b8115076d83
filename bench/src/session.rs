//! A session that sends and listens.

use std::future::poll_fn;

use thiserror::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, error::TryRecvError};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket, tls::NoTlsStream};

/// Where many sessions connect: so many at the same time.
pub const CONNECTING_AT_ONCE: usize = 16;

#[derive(Debug, Error)]
pub enum SessionError {
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
    #[error("the server closed the connection")]
    Closed,
}

/// A connection to a server, and the notifications that arrive on it.
///
/// The connection is read all the time by a task of its own, and closed when
/// this is dropped.
#[derive(Debug)]
pub struct Session {
    client: Client,
    /// The payloads.
    notifications: UnboundedReceiver<Result<String, tokio_postgres::Error>>,
}

impl Session {
    /// Connects.
    pub async fn connect(config: &Config) -> Result<Self, SessionError> {
        let (client, connection) = config.connect(NoTls).await?;
        let (sender, notifications) = mpsc::unbounded_channel();
        tokio::spawn(forward(connection, sender));
        Ok(Self {
            client,
            notifications,
        })
    }

    /// Connects, and LISTENs on `channel`.
    pub async fn listen(config: &Config, channel: &str) -> Result<Self, SessionError> {
        let session = Self::connect(config).await?;
        session.execute(&format!("LISTEN {channel}")).await?;
        Ok(session)
    }

    /// Executes any number of statements, and waits until the server has completed them.
    pub async fn execute(&self, statements: &str) -> Result<(), SessionError> {
        Ok(self.client.batch_execute(statements).await?)
    }

    /// NOTIFYs `channel`, and waits until the server has completed that command.
    pub async fn notify(&self, channel: &str) -> Result<(), SessionError> {
        self.client
            .simple_query(&format!("NOTIFY {channel}"))
            .await?;
        Ok(())
    }

    /// The same with a payload, which must not contain a quote.
    pub async fn notify_with(&self, channel: &str, payload: &str) -> Result<(), SessionError> {
        self.client
            .simple_query(&format!("NOTIFY {channel}, '{payload}'"))
            .await?;
        Ok(())
    }

    /// Waits for the next notification, and returns its payload.
    pub async fn notified(&mut self) -> Result<String, SessionError> {
        match self.notifications.recv().await {
            Some(notification) => Ok(notification?),
            None => Err(SessionError::Closed),
        }
    }

    /// Takes those notifications that have arrived by now, and returns how many there are.
    pub fn take_notifications(&mut self) -> Result<u64, SessionError> {
        let mut count = 0;
        loop {
            match self.notifications.try_recv() {
                Ok(notification) => notification.map(|_| count += 1)?,
                Err(TryRecvError::Empty) => return Ok(count),
                Err(TryRecvError::Disconnected) => return Err(SessionError::Closed),
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// Runs the connection until it ends, and hands over the notifications.
async fn forward(
    mut connection: Connection<Socket, NoTlsStream>,
    sender: UnboundedSender<Result<String, tokio_postgres::Error>>,
) {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        let message = match message {
            Ok(AsyncMessage::Notification(notification)) => Ok(notification.payload().to_owned()),
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        let is_last = message.is_err();
        // Nobody takes it any more when the session has been dropped. The
        // connection still has to run, to say goodbye to the server.
        let _ = sender.send(message);
        if is_last {
            return;
        }
    }
}
