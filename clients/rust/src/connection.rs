//! Connections, with limits of time, and what a client knows of their server.

use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Config, Notification, Row, Socket};

use crate::client::Shared;
use crate::error::NO_LIVE;
use crate::Error;

// to_regprocedure raises an error if the role may not use the schema. With pinpoint.sql there are no heartbeats, even if
// the server has the library for another database.
const INQUIRY: &str = "
    SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), installed AND NOT usable,
           CASE WHEN usable THEN to_regprocedure('pinpoint.changed_since(text,text[])') IS NOT NULL ELSE false END,
           CASE WHEN usable THEN to_regprocedure('pinpoint.channels_of(text)') IS NOT NULL ELSE false END,
           coalesce((SELECT setting::int FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'
                     AND EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_pinpoint')), 0),
           (SELECT coalesce(min(setting::int), 0) FROM pg_settings
            WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')
    FROM (SELECT count(*) > 0 AS installed, coalesce(bool_or(has_schema_privilege(oid, 'USAGE')), false) AS usable
          FROM pg_namespace WHERE nspname = 'pinpoint') AS schema";
const POSITION: &str = "SELECT pinpoint.position()";
const STAY: &str = "SELECT set_config(name, CASE setting WHEN '0' THEN '1s' ELSE '0' END, false) FROM pg_settings
    WHERE name = 'idle_session_timeout' AND setting <> '0'
       OR name = 'client_connection_check_interval' AND setting = '0' AND version() ~ 'linux'";

/// What a client knows of the server of a connection.
pub(crate) struct Server {
    pub version: i32,
    pub standby: bool,
    /// There is a schema pinpoint that the role may not use.
    pub denied: bool,
    /// 1.0 or later
    pub pinpoint: bool,
    /// 1.1 or later
    pub current: bool,
    /// Of heartbeats; zero if there are none.
    pub interval: Duration,
    /// Of a statement or a transaction; zero if there is none.
    pub time_limit: Duration,
}

pub(crate) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub(crate) type Connector = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Session, Error>> + Send>> + Send + Sync>;

/// A connection. It is closed when this is dropped, whatever the server is doing.
pub(crate) struct Session {
    pub client: tokio_postgres::Client,
    /// The last item is why the connection has ended, if the driver knows it.
    pub notifications: mpsc::UnboundedReceiver<Result<Notification, tokio_postgres::Error>>,
    driver: JoinHandle<()>,
    timeout: Duration,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub(crate) fn connector<T>(mut config: Config, tls: T, timeout: Duration) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    if config.get_application_name().is_none() {
        config.application_name("pg-pinpoint");
    }
    Arc::new(move || {
        let (config, tls) = (config.clone(), tls.clone());
        Box::pin(async move {
            let hosts = config.get_hosts().len().max(1) as u32;
            let (client, mut connection) = within(timeout * hosts, config.connect(tls)).await?;
            let (sender, notifications) = mpsc::unbounded_channel();
            let driver = tokio::spawn(async move {
                while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                    let _ = match message {
                        Ok(AsyncMessage::Notification(notification)) => sender.send(Ok(notification)),
                        Ok(_) => continue,
                        Err(error) => return sender.send(Err(error)).unwrap_or(()),
                    };
                }
            });
            Ok(Session { client, notifications, driver, timeout })
        })
    })
}

/// Fail after a time.
async fn within<T, E: Into<Error>>(timeout: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, Error> {
    let lost = |_| Error::Lost("the server does not answer".to_owned());
    tokio::time::timeout(timeout, work).await.map_err(lost)?.map_err(Into::into)
}

impl Session {
    /// The next notification.
    pub async fn notification(&mut self) -> Result<Notification, Error> {
        let closed = || Error::Lost("the connection was closed".to_owned());
        Ok(self.notifications.recv().await.ok_or_else(closed)??)
    }

    /// Execute statements without parameters.
    pub async fn execute(&self, statements: &str) -> Result<(), Error> {
        within(self.timeout, self.client.batch_execute(statements)).await
    }

    /// Execute a query, without a prepared statement, because a pooler may be in between. Only for columns
    /// whose types are not built in, tokio-postgres prepares statements, which read these types.
    pub async fn query_within(
        &self,
        timeout: Duration,
        query: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        within(timeout, self.client.query_typed(query, parameters)).await
    }

    pub async fn query(&self, query: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        self.query_within(self.timeout, query, parameters).await
    }

    /// Execute a query at READ COMMITTED, which the functions need, and return its row.
    pub async fn fetch(&self, query: &str, parameters: Parameters<'_>) -> Result<Row, Error> {
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let row = self.query(query, parameters).await?.swap_remove(0);
        self.execute("COMMIT").await?;
        Ok(row)
    }

    pub async fn inquire(&self) -> Result<Server, Error> {
        let row = self.fetch(INQUIRY, &[]).await?;
        let milliseconds = |column| Duration::from_millis(row.get::<_, i32>(column) as u64);
        let pinpoint = row.get(3);
        Ok(Server {
            version: row.get(0),
            standby: row.get(1),
            denied: row.get(2),
            pinpoint,
            current: row.get(4),
            interval: if pinpoint { milliseconds(5) } else { Duration::ZERO },
            time_limit: milliseconds(6),
        })
    }

    /// The session does not end because it is idle, and what it executes ends with its connection. It is for this client
    /// only.
    pub async fn stay(&self) -> Result<(), Error> {
        self.query(STAY, &[]).await.map(|_| ())
    }

    /// Is it an error because the server has ended the session?
    pub fn has_ended(&self, error: &Error) -> bool {
        let Error::Postgres(error) = error else { return false };
        self.client.is_closed() || error.is_closed() || error.code().is_some_and(|code| code.code().starts_with("57P"))
    }

    /// Connect to the server on which the client listens.
    pub async fn for_live(shared: &Shared) -> Result<Session, Error> {
        let mut session = (shared.connector)().await?;
        session.notifications.close(); // of other clients of a pooler
        let server = session.inquire().await?;
        if server.denied {
            return Err(Error::Denied);
        }
        if !server.current {
            return Err(NO_LIVE);
        }
        let position: String = session.fetch(POSITION, &[]).await?.get(0);
        let (heard, own) = shared.state(|state| (state.position.clone(), state.own_sessions));
        check_server(heard, &position)?;
        if own {
            session.stay().await?;
        }
        Ok(session)
    }
}

/// Is a position of the server that the client has heard? Its first two parts tell the server.
pub(crate) fn check_server(heard: Option<String>, position: &str) -> Result<(), Error> {
    if heard.is_some_and(|heard| heard.split('-').take(2).eq(position.split('-').take(2))) {
        return Ok(());
    }
    Err(Error::Lost("the connection leads to another server than the one on which the client listens".to_owned()))
}
