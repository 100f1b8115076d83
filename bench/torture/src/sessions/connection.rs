//! Connections of the sessions, and the errors that they may have.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Socket};

use crate::checker::finding::{Finding, error_text};
use crate::sessions::run_state::Shared;

/// Between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl Shared {
    /// Makes a connection; what is in the way may go away.
    pub async fn connect(self: &Arc<Self>, who: &str) -> Result<Connected, Finding> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.try_connect().await {
                Ok(connected) => {
                    self.forget_end(connected.pid);
                    return Ok(connected);
                }
                Err(_) if Instant::now() < deadline => {}
                Err(error) => {
                    return Err(Finding::NoConnection {
                        who: who.to_owned(),
                        error: error_text(&error),
                    });
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn try_connect(self: &Arc<Self>) -> Result<Connected, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        let driver = tokio::spawn(drive(connection, Arc::clone(self))).abort_handle();
        let pid = client
            .query_one("SELECT pg_backend_pid()", &[])
            .await?
            .try_get(0)?;
        Ok(Connected {
            client,
            driver,
            pid,
        })
    }
}

/// Reads a connection until it ends. The server warns when it is interrupted
/// while it waits for the standby: the commit record is written by then.
async fn drive(mut connection: Connection<Socket, NoTlsStream>, shared: Arc<Shared>) {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notice(notice))
                if [SqlState::QUERY_CANCELED, SqlState::ADMIN_SHUTDOWN].contains(notice.code()) =>
            {
                shared.tally().interrupted_in_commit += 1;
            }
            Ok(_) => {}
            // What was asked on this connection fails as well.
            Err(_) => return,
        }
    }
}

/// A connection that is read by a task of its own.
pub struct Connected {
    pub client: Client,
    /// Aborting it closes the connection at once.
    pub driver: AbortHandle,
    pub pid: i32,
}

/// Waits for the future, but not for longer than anything may take.
pub async fn within<T>(
    shared: &Shared,
    who: &str,
    what: &str,
    future: impl Future<Output = T>,
) -> Result<T, Finding> {
    tokio::time::timeout(shared.timeout, future)
        .await
        .map_err(|_| Finding::hang(who, what, shared.timeout))
}

/// Executes a command in a session that nothing disturbs.
pub async fn execute(
    shared: &Shared,
    who: &str,
    client: &Client,
    sql: &str,
) -> Result<(), Finding> {
    within(shared, who, sql, client.simple_query(sql))
        .await?
        .map_err(|error| Finding::unexpected_error(who, sql, &error))?;
    Ok(())
}

/// Whether the connection is lost with this error.
pub fn is_lost(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(error) => matches!(
            error.parsed_severity(),
            Some(Severity::Fatal | Severity::Panic)
        ),
        None => true,
    }
}

/// Whether a transaction may fail with this error, by what is done to it.
pub fn is_accepted(error: &tokio_postgres::Error) -> bool {
    let accepted = [
        SqlState::QUERY_CANCELED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        // The queue is full: the transaction is refused before it commits.
        SqlState::PROGRAM_LIMIT_EXCEEDED,
    ];
    error.code().is_some_and(|code| accepted.contains(code))
}
