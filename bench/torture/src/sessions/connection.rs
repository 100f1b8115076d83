//! Connections of the sessions, and the errors that they may have.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::AbortHandle;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{
    AsyncMessage, Client, Connection, NoTls, Notification, SimpleQueryMessage, Socket,
};

use crate::checker::finding::{Finding, error_text};
use crate::sessions::run_state::Shared;
use crate::sessions::standby_state::Standby;

/// Between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Why a session cannot go on.
#[derive(Debug)]
pub enum End {
    /// It was terminated.
    Lost,
    Finding(Finding),
}

impl From<Finding> for End {
    fn from(finding: Finding) -> Self {
        Self::Finding(finding)
    }
}

/// A connection that is read by a task of its own.
pub struct Connected {
    pub client: Client,
    /// Aborting it closes the connection at once.
    pub driver: AbortHandle,
    pub pid: i32,
    pub notifications: UnboundedReceiver<Notification>,
    /// `Standby::stops` of its server, if that is a standby, before it connected.
    pub stops: u32,
}

impl Shared {
    /// Makes a connection to the primary.
    pub async fn connect(self: &Arc<Self>, who: &str) -> Result<Connected, Finding> {
        self.connect_to(None, who).await
    }

    /// Makes a connection to the standby, or else to the primary; what is in the way may go
    /// away.
    pub async fn connect_to(
        self: &Arc<Self>,
        standby: Option<&Standby>,
        who: &str,
    ) -> Result<Connected, Finding> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.try_connect(standby).await {
                Ok(connected) => {
                    self.forget_end(connected.pid);
                    return Ok(connected);
                }
                Err(_) if Instant::now() < deadline => {}
                Err(error) => return Err(Finding::no_connection(who, &error_text(&error))),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn try_connect(
        self: &Arc<Self>,
        standby: Option<&Standby>,
    ) -> Result<Connected, tokio_postgres::Error> {
        let config = standby.map_or(&self.config, |standby| &standby.config);
        let stops = standby.map_or(0, Standby::stops);
        let (client, connection) = config.connect(NoTls).await?;
        let (sender, notifications) = mpsc::unbounded_channel();
        let driver = tokio::spawn(drive(connection, Arc::clone(self), sender)).abort_handle();
        // A standby may not have replayed yet what the torture works on.
        let sql = "SELECT pg_backend_pid() WHERE to_regproc('last_transactions') IS NOT NULL";
        let pid = client.query_one(sql, &[]).await?.try_get(0)?;
        Ok(Connected {
            client,
            driver,
            pid,
            notifications,
            stops,
        })
    }

    /// What it means for a session that its connection is lost. `standby` is where it was, if it
    /// was there, and its `stops` before it connected.
    pub fn lost(
        &self,
        who: &str,
        pid: i32,
        standby: Option<(&Standby, u32)>,
        error: &tokio_postgres::Error,
    ) -> End {
        let is_stopped = standby.is_some_and(|(standby, stops)| standby.may_have_ended(stops));
        if is_stopped || self.is_ended(pid) {
            return End::Lost;
        }
        Finding::lost_connection(who, pid, error).into()
    }
}

/// Reads a connection until it ends; what was asked on it fails then. The server warns when it is
/// interrupted while it waits for the standby: the commit record is written by then.
async fn drive(
    mut connection: Connection<Socket, NoTlsStream>,
    shared: Arc<Shared>,
    notifications: UnboundedSender<Notification>,
) {
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            AsyncMessage::Notice(notice)
                if [SqlState::QUERY_CANCELED, SqlState::ADMIN_SHUTDOWN].contains(notice.code()) =>
            {
                shared.tally().interrupted_in_commit += 1;
            }
            AsyncMessage::Notification(notification) => {
                // Who does not take it any more has gone.
                let _ = notifications.send(notification);
            }
            _ => {}
        }
    }
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

/// Executes SQL in a session that nothing disturbs.
pub async fn execute(
    shared: &Shared,
    who: &str,
    client: &Client,
    sql: &str,
) -> Result<Vec<SimpleQueryMessage>, Finding> {
    within(shared, who, sql, client.simple_query(sql))
        .await?
        .map_err(|error| Finding::unexpected_error(who, sql, &error))
}

/// The first value of an answer.
pub fn first_value(answer: &[SimpleQueryMessage]) -> Option<&str> {
    answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    })
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
