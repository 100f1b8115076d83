//! What the torture finds.

use std::time::Duration;

use thiserror::Error;

use crate::checker::difference::Difference;

/// Why the server under torture did not pass.
#[derive(Debug, Error)]
pub enum Finding {
    #[error("{0}")]
    Difference(Box<Difference>),
    /// A step took too long.
    #[error("{0}")]
    Hang(String),
    #[error("{0}")]
    Failure(String),
}

impl From<Box<Difference>> for Finding {
    fn from(difference: Box<Difference>) -> Self {
        Self::Difference(difference)
    }
}

impl Finding {
    /// A wait that took too long; what the sessions are doing is added later.
    pub fn hang(who: &str, what: &str, timeout: Duration) -> Self {
        Self::Hang(format!("{who} waited {timeout:?} in vain for {what}."))
    }

    pub fn unexpected_error(who: &str, sql: &str, error: &tokio_postgres::Error) -> Self {
        Self::unexpected_answer(who, sql, &error_text(error))
    }

    pub fn unexpected_answer(who: &str, sql: &str, error: &str) -> Self {
        Self::Failure(format!(
            "{who} got an error that nothing explains: {error}\nIt was the answer to: {}",
            shorten(sql)
        ))
    }

    pub fn missing_error(who: &str, sql: &str, sqlstate: &str) -> Self {
        Self::Failure(format!(
            "{who} expected the error {sqlstate}, but got none\nIt was the answer to: {}",
            shorten(sql)
        ))
    }

    pub fn lost_connection(who: &str, pid: i32, error: &tokio_postgres::Error) -> Self {
        let error = error_text(error);
        Self::Failure(format!(
            "{who} (PID {pid}) lost its connection unexpectedly: {error}"
        ))
    }

    pub fn no_connection(who: &str, error: &str) -> Self {
        Self::Failure(format!("{who} could not connect: {error}"))
    }
}

/// What PostgreSQL said, on one line.
pub fn error_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => {
            let mut text = format!("{} ({})", error.message(), error.code().code());
            if let Some(detail) = error.detail() {
                text.push_str(": ");
                text.push_str(detail);
            }
            text
        }
        None => error.to_string(),
    }
}

/// SQL that may be very long, as far as it helps.
pub fn shorten(sql: &str) -> String {
    const ENOUGH: usize = 400;
    match sql.char_indices().nth(ENOUGH) {
        Some((end, _)) => format!("{} ...", &sql[..end]),
        None => sql.to_owned(),
    }
}
