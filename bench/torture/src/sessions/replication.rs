//! The decoded stream: a session of the streaming replication protocol
//! (PostgreSQL's documentation, chapter "Frontend/Backend Protocol").
//!
//! To the server this client is a standby. It confirms what it has received,
//! so it can be the one that synchronous commits wait for, and it can let them
//! wait.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedSender;

use crate::sessions::decoded_commits::{Decoder, Decoding, OracleError};
use crate::sessions::schema::SLOT;
use crate::workload::identity::Lsn;

/// Name of this standby, for `synchronous_standby_names`.
pub const STANDBY: &str = "pinpoint_torture";

const PROTOCOL_VERSION: i32 = 3 << 16;

/// How often the server is told what has arrived when nothing arrives, and when
/// confirmations were held back before.
const CONFIRMATION_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes that are read at a time.
const READ_SIZE: usize = 64 * 1024;

#[derive(Debug, Error)]
pub enum ReplicationError {
    #[error("the replication connection failed")]
    Io(#[from] io::Error),
    #[error("the server refuses to replicate: {0}")]
    Refused(String),
    #[error("the server ended the replication: {0}")]
    Ended(String),
    #[error("the server sent a message of type {0:?} that has no place in replication")]
    Unexpected(char),
    #[error(transparent)]
    Oracle(#[from] OracleError),
}

/// What is confirmed to the server, and whether it is.
#[derive(Debug, Default)]
pub struct Confirmations {
    is_held_back: AtomicBool,
    received: AtomicU64,
}

impl Confirmations {
    /// Lets synchronous commits wait, or go on.
    pub fn hold_back(&self, is_held_back: bool) {
        self.is_held_back.store(is_held_back, Ordering::Relaxed);
    }
}

/// A connection that replicates.
#[derive(Debug)]
pub struct Replication {
    stream: UnixStream,
    inbox: Inbox,
    decoder: Decoder,
}

impl Replication {
    /// Connects to the server whose socket this is, and starts to stream.
    pub async fn start(socket: &Path) -> Result<Self, ReplicationError> {
        let mut replication = Self {
            stream: UnixStream::connect(socket).await?,
            inbox: Inbox::default(),
            decoder: Decoder::default(),
        };
        replication.send_startup().await?;
        replication.wait_for(b'Z').await?;
        let command = format!(
            "START_REPLICATION SLOT {SLOT} LOGICAL 0/0 \
             (\"include-xids\" '0', \"skip-empty-xacts\" '1')\0"
        );
        replication.send(b'Q', command.as_bytes()).await?;
        replication.wait_for(b'W').await?;
        Ok(replication)
    }

    async fn send_startup(&mut self) -> Result<(), ReplicationError> {
        let mut body = PROTOCOL_VERSION.to_be_bytes().to_vec();
        for text in [
            "user",
            "postgres",
            "database",
            "postgres",
            "replication",
            "database",
            "application_name",
            STANDBY,
            "client_encoding",
            "UTF8",
            "",
        ] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        let mut message = message_length(&body).to_vec();
        message.append(&mut body);
        self.stream.write_all(&message).await?;
        Ok(())
    }

    async fn send(&mut self, kind: u8, body: &[u8]) -> Result<(), ReplicationError> {
        let mut message = vec![kind];
        message.extend_from_slice(&message_length(body));
        message.extend_from_slice(body);
        self.stream.write_all(&message).await?;
        Ok(())
    }

    /// Goes on to the message of that type, while the session is set up.
    async fn wait_for(&mut self, kind: u8) -> Result<(), ReplicationError> {
        loop {
            while let Some(message) = self.inbox.take() {
                match message.kind {
                    found if found == kind => return Ok(()),
                    b'E' => return Err(ReplicationError::Refused(error_text(&message.body))),
                    // Authentication that is ok, ParameterStatus, BackendKeyData, a notice
                    b'R' | b'S' | b'K' | b'N' => {}
                    other => return Err(ReplicationError::Unexpected(other.into())),
                }
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), ReplicationError> {
        let buffer = self.inbox.room();
        match self.stream.read_buf(buffer).await? {
            0 => Err(ReplicationError::Ended("connection closed".to_owned())),
            _ => Ok(()),
        }
    }

    /// Hands over what is decoded, until the connection fails or nobody takes
    /// it any more.
    pub async fn run(
        mut self,
        confirmations: Arc<Confirmations>,
        decoded: UnboundedSender<Decoding>,
    ) -> Result<(), ReplicationError> {
        let mut interval = tokio::time::interval(CONFIRMATION_INTERVAL);
        loop {
            tokio::select! {
                read = self.read() => read?,
                _ = interval.tick() => {}
            }
            while let Some(message) = self.inbox.take() {
                match message.kind {
                    b'd' => {
                        if let Some(decoding) = self.copy_data(&message.body, &confirmations)?
                            && decoded.send(decoding).is_err()
                        {
                            return Ok(());
                        }
                    }
                    b'E' => return Err(ReplicationError::Ended(error_text(&message.body))),
                    b'N' | b'S' => {}
                    other => return Err(ReplicationError::Unexpected(other.into())),
                }
            }
            if !confirmations.is_held_back.load(Ordering::Relaxed) {
                let received = confirmations.received.load(Ordering::Relaxed);
                self.send(b'd', &status_update(Lsn(received))).await?;
            }
        }
    }

    fn copy_data(
        &mut self,
        body: &[u8],
        confirmations: &Confirmations,
    ) -> Result<Option<Decoding>, ReplicationError> {
        let unexpected = |kind: Option<&u8>| {
            ReplicationError::Unexpected(kind.copied().unwrap_or_default().into())
        };
        let (kind, lsn) = match (body.first(), body.get(1..9)) {
            (Some(kind), Some(lsn)) => {
                let lsn = u64::from_be_bytes(lsn.try_into().expect("these are 8 bytes"));
                (*kind, lsn)
            }
            (kind, _) => return Err(unexpected(kind)),
        };
        let decoding = match kind {
            // Keepalive: the server has sent everything up to here.
            b'k' => None,
            // XLogData: start, end, time, and then a line of the plugin
            b'w' if body.len() >= 25 => {
                let line = String::from_utf8_lossy(&body[25..]);
                let decoding = self.decoder.decode(Lsn(lsn), &line)?;
                if line != "COMMIT" {
                    return Ok(decoding);
                }
                decoding
            }
            _ => return Err(unexpected(Some(&kind))),
        };
        confirmations.received.fetch_max(lsn, Ordering::Relaxed);
        Ok(decoding)
    }
}

/// Everything up to `lsn` is written, flushed and applied.
fn status_update(lsn: Lsn) -> Vec<u8> {
    let mut body = vec![b'r'];
    for _ in ["written", "flushed", "applied"] {
        body.extend_from_slice(&lsn.0.to_be_bytes());
    }
    let no_time = 0_i64;
    body.extend_from_slice(&no_time.to_be_bytes());
    let wants_no_answer = 0;
    body.push(wants_no_answer);
    body
}

/// The length includes itself.
fn message_length(body: &[u8]) -> [u8; 4] {
    let length = i32::try_from(body.len() + 4).expect("messages are short");
    length.to_be_bytes()
}

#[derive(Debug, PartialEq, Eq)]
struct Message {
    kind: u8,
    body: Vec<u8>,
}

/// What was received, and is not yet dealt with.
#[derive(Debug, Default)]
struct Inbox {
    bytes: Vec<u8>,
    /// Bytes at the beginning that are dealt with.
    taken: usize,
}

impl Inbox {
    /// Where more can be added at the end.
    fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.reserve(READ_SIZE);
        &mut self.bytes
    }

    /// Takes the first message, if all of it is there.
    fn take(&mut self) -> Option<Message> {
        let bytes = &self.bytes[self.taken..];
        let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
        let message = Message {
            kind: bytes[0],
            body: bytes.get(5..=length)?.to_vec(),
        };
        self.taken += length + 1;
        Some(message)
    }
}

/// The text of an ErrorResponse: fields of a letter and a string each.
fn error_text(body: &[u8]) -> String {
    body.split(|&byte| byte == 0)
        .find_map(|field| field.strip_prefix(b"M"))
        .map_or_else(
            || "no reason given".to_owned(),
            |text| String::from_utf8_lossy(text).into_owned(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_when_they_are_complete() {
        let mut inbox = Inbox::default();
        inbox
            .room()
            .extend([b'd', 0, 0, 0, 6, 1, 2, b'Z', 0, 0, 0, 5]);
        let first = Message {
            kind: b'd',
            body: vec![1, 2],
        };
        assert_eq!(inbox.take(), Some(first));
        assert_eq!(inbox.take(), None);
        inbox.room().push(b'I');
        let second = Message {
            kind: b'Z',
            body: vec![b'I'],
        };
        assert_eq!(inbox.take(), Some(second));
        assert_eq!(inbox.take(), None);
        assert!(inbox.room().is_empty());
    }

    #[test]
    fn the_text_of_an_error() {
        let body = b"SERROR\0C42704\0Mreplication slot does not exist\0\0";
        assert_eq!(error_text(body), "replication slot does not exist");
        assert_eq!(error_text(b"\0"), "no reason given");
    }
}
