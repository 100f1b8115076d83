//! A session that listens.

use std::future::poll_fn;

use thiserror::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket, tls::NoTlsStream};

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
    notifications: UnboundedReceiver<Result<(), tokio_postgres::Error>>,
}

impl Session {
    /// Connects, and LISTENs on `channel`.
    pub async fn listen(config: &Config, channel: &str) -> Result<Self, SessionError> {
        let (client, connection) = config.connect(NoTls).await?;
        let (sender, notifications) = mpsc::unbounded_channel();
        tokio::spawn(forward(connection, sender));
        client.batch_execute(&format!("LISTEN {channel}")).await?;
        Ok(Self {
            client,
            notifications,
        })
    }

    /// NOTIFYs `channel`, and waits until the server has completed that command.
    pub async fn notify(&self, channel: &str) -> Result<(), SessionError> {
        self.client
            .simple_query(&format!("NOTIFY {channel}"))
            .await?;
        Ok(())
    }

    /// Waits for the next notification on the channel of this session.
    pub async fn notified(&mut self) -> Result<(), SessionError> {
        match self.notifications.recv().await {
            Some(notification) => Ok(notification?),
            None => Err(SessionError::Closed),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// Runs the connection until it ends, and hands over the notifications.
async fn forward(
    mut connection: Connection<Socket, NoTlsStream>,
    sender: UnboundedSender<Result<(), tokio_postgres::Error>>,
) {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        let message = match message {
            Ok(AsyncMessage::Notification(_)) => Ok(()),
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
