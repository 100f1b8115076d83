//! A session that sends and listens, and all that there are.

use std::time::Duration;

use anyhow::{Context, Error};
use pinpoint_servers::server::Server;
use tokio::sync::mpsc::{self, UnboundedReceiver, error::TryRecvError};
use tokio_postgres::{Client, Config};

use super::reader;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

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

    /// For statements with parameters.
    pub fn client(&self) -> &Client {
        &self.client
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

/// The sessions that this program has on a server.
pub struct Sessions<'a> {
    server: &'a Server,
    client: Client,
    count: i64,
}

impl<'a> Sessions<'a> {
    pub async fn of(server: &'a Server) -> anyhow::Result<Self> {
        let mut sessions = Self {
            server,
            client: server.connect().await?,
            count: 0,
        };
        sessions.count = sessions.count().await?;
        Ok(sessions)
    }

    /// pg_stat_activity forgets a session before its process ends and another session can
    /// take its place (`ProcKill`, PostgreSQL's proc.c).
    async fn some_are_ending(&self) -> anyhow::Result<bool> {
        let processes = self.server.session_processes();
        let sql = "SELECT EXISTS (SELECT pid FROM unnest($1::int[]) AS pid \
                   EXCEPT SELECT pid FROM pg_stat_activity)";
        Ok(self
            .client
            .query_one(sql, &[&processes])
            .await?
            .try_get(0)?)
    }

    async fn count(&self) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM pg_stat_activity \
                   WHERE application_name = 'pinpoint-bench' AND pid <> pg_backend_pid()";
        Ok(self.client.query_one(sql, &[]).await?.try_get(0)?)
    }

    /// While hundreds of them end, the machine is busy, which must not be part of the
    /// next run.
    pub async fn wait_for_others_to_go(&self) -> anyhow::Result<()> {
        while self.count().await? > self.count || self.some_are_ending().await? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
