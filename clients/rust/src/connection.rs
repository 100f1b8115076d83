//! Connections, with limits of time.

use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Config, Notification, Row, Socket};

use crate::Error;

pub(crate) type Connector = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Session, Error>> + Send>> + Send + Sync>;

/// A connection. It is closed when this is dropped, whatever the server is doing.
pub(crate) struct Session {
    pub client: tokio_postgres::Client,
    /// Ends with the connection.
    pub notifications: mpsc::UnboundedReceiver<Notification>,
    driver: JoinHandle<()>,
    timeout: Duration,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub(crate) fn connector<T>(config: Config, tls: T, timeout: Duration) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Arc::new(move || {
        let (config, tls) = (config.clone(), tls.clone());
        Box::pin(async move {
            let hosts = config.get_hosts().len().max(1) as u32;
            let (client, mut connection) = within(timeout * hosts, async { Ok(config.connect(tls).await?) }).await?;
            let (sender, notifications) = mpsc::unbounded_channel();
            let driver = tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                    if let AsyncMessage::Notification(notification) = message {
                        let _ = sender.send(notification);
                    }
                }
            });
            Ok(Session { client, notifications, driver, timeout })
        })
    })
}

/// Fail after a time.
pub(crate) async fn within<T>(timeout: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Lost("the server does not answer".to_owned())),
    }
}

impl Session {
    /// Execute statements without parameters.
    pub async fn execute(&self, statements: &str) -> Result<(), Error> {
        within(self.timeout, async { Ok(self.client.batch_execute(statements).await?) }).await
    }

    /// Execute a query, without a prepared statement, because a pooler may be in between. Only for columns
    /// whose types are not built in, tokio-postgres prepares statements, which read these types.
    pub async fn query(&self, query: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, Error> {
        within(self.timeout, async { Ok(self.client.query_typed(query, parameters).await?) }).await
    }

    /// Execute a query at READ COMMITTED, which the functions need, and return its row.
    pub async fn fetch(&self, query: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Row, Error> {
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let row = self.query(query, parameters).await?.swap_remove(0);
        self.execute("COMMIT").await?;
        Ok(row)
    }
}
