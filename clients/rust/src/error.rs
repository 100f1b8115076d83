//! Errors, and which of them another attempt does not mend.

use std::fmt::{Display, Formatter};

/// Why something does not work.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An error of the server, or of the driver.
    Postgres(tokio_postgres::Error),
    /// An option is out of its range.
    Options(String),
    /// An invalid name of a channel.
    Channel(String),
    /// A parameter of a live query cannot be sent with its type.
    Parameter(Box<dyn std::error::Error + Send + Sync>),
    /// A live query reads this table, which is not watched.
    NotWatched(String),
    /// The server does not support what the client needs.
    Unsupported(&'static str),
    /// A live query of a role that may not use the schema `pinpoint`.
    Denied,
    /// The server does not answer, or is another one.
    Lost(String),
    /// The client was closed.
    Closed,
    /// A task of the client has ended: the Tokio runtime in which it ran has ended, or the task has panicked.
    Ended,
}

pub(crate) const NO_LISTEN: Error = Error::Unsupported(
    "LISTEN does not work through this connection, because a pooler gives each transaction another session; connect \
     to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later, or its pinpoint.sql, in this \
     database",
);
pub(crate) const NO_WAIT: Error =
    Error::Unsupported("waiting needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database");
pub(crate) const NO_LIVE: Error =
    Error::Unsupported("a live query needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database");

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Postgres(error) => match (error.as_db_error(), std::error::Error::source(error)) {
                (Some(error), _) => write!(f, "{error}"),
                (None, Some(source)) => write!(f, "{error}: {source}"),
                (None, None) => write!(f, "{error}"),
            },
            Error::NotWatched(table) => write!(
                f,
                "the table \"{table}\" is not watched: execute SELECT pinpoint.watch('{}')",
                table.replace('\'', "''")
            ),
            Error::Parameter(error) => write!(f, "a parameter cannot be sent: {error}"),
            Error::Options(text) | Error::Channel(text) | Error::Lost(text) => f.write_str(text),
            Error::Unsupported(text) => f.write_str(text),
            Error::Denied => f.write_str(
                "a live query needs a privilege for the schema pinpoint: GRANT USAGE ON SCHEMA pinpoint TO the role \
                 of the connection",
            ),
            Error::Closed => f.write_str("the client is closed"),
            Error::Ended => {
                f.write_str("a task of the client has ended, because its runtime has ended or it has panicked")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Postgres(error) => Some(error),
            Error::Parameter(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Error::Postgres(error)
    }
}

impl Error {
    /// The SQLSTATE: that of the server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1, 42501 without
    /// USAGE on its schema. None of other errors.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Postgres(error) => error.code().map(|code| code.code()),
            Error::NotWatched(_) => Some("55000"),
            Error::Unsupported(_) => Some("0A000"),
            Error::Denied => Some("42501"),
            _ => None,
        }
    }

    /// Another attempt does not mend it. A proxy may send any text as a SQLSTATE, or none.
    pub(crate) fn is_permanent(&self) -> bool {
        match (self.code(), self) {
            (Some(code), _) => PERMANENT.contains(&code),
            (None, Error::Postgres(_)) => is_permanent_text(&self.to_string()),
            _ => false,
        }
    }

    /// The same error, for who reads it.
    pub(crate) fn repeats(&self, other: &Error) -> bool {
        self.code() == other.code() && self.to_string() == other.to_string()
    }
}

/// No such role or not admitted, a wrong password, no such database, a missing privilege, not supported.
const PERMANENT: [&str; 5] = ["28000", "28P01", "3D000", "42501", "0A000"];

/// Of the driver, whose errors have no codes.
pub(crate) fn is_permanent_text(text: &str) -> bool {
    ["certificate", "does not support TLS", "invalid configuration"].iter().any(|part| text.contains(part))
}
