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

use anyhow::{anyhow, bail};
use bytes::{Buf, BufMut, BytesMut};
use postgres_protocol::message::{backend, frontend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedSender;

use crate::sessions::decoded_commits::{Decoder, Decoding};
use crate::sessions::schema::SLOT;
use crate::workload::identity::Lsn;

/// Name of this standby, for `synchronous_standby_names`.
pub const STANDBY: &str = "pinpoint_torture";

/// How often the server is told what has arrived when nothing arrives, and when
/// confirmations were held back before.
const CONFIRMATION_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes that are read at a time.
const READ_SIZE: usize = 64 * 1024;

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
    /// What was received, and is not yet dealt with.
    inbox: BytesMut,
    decoder: Decoder,
}

impl Replication {
    /// Connects to the server whose socket this is, and starts to stream.
    pub async fn start(socket: &Path) -> anyhow::Result<Self> {
        let mut replication = Self {
            stream: UnixStream::connect(socket).await?,
            inbox: BytesMut::new(),
            decoder: Decoder::default(),
        };
        let parameters = [
            ("user", "postgres"),
            ("database", "postgres"),
            ("replication", "database"),
            ("application_name", STANDBY),
            ("client_encoding", "UTF8"),
        ];
        let mut message = BytesMut::new();
        frontend::startup_message(parameters, &mut message)?;
        replication.stream.write_all(&message).await?;
        replication.wait_for(b'Z').await?;

        let command = format!(
            "START_REPLICATION SLOT {SLOT} LOGICAL 0/0 \
             (\"include-xids\" '0', \"skip-empty-xacts\" '1')"
        );
        message.clear();
        frontend::query(&command, &mut message)?;
        replication.stream.write_all(&message).await?;
        replication.wait_for(b'W').await?;
        Ok(replication)
    }

    /// Goes on to the message of that type, while the session is set up.
    async fn wait_for(&mut self, kind: u8) -> anyhow::Result<()> {
        loop {
            while let Some((found, body)) = take(&mut self.inbox)? {
                match found {
                    _ if found == kind => return Ok(()),
                    b'E' => bail!("the server refuses to replicate: {}", error_text(&body)),
                    // Authentication that is ok, ParameterStatus, BackendKeyData, a notice
                    b'R' | b'S' | b'K' | b'N' => {}
                    other => return Err(unexpected(other)),
                }
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        self.inbox.reserve(READ_SIZE);
        match self.stream.read_buf(&mut self.inbox).await? {
            0 => bail!("the server closed the replication connection"),
            _ => Ok(()),
        }
    }

    /// Hands over what is decoded, until the connection fails or nobody takes
    /// it any more.
    pub async fn run(
        mut self,
        confirmations: Arc<Confirmations>,
        decoded: UnboundedSender<Decoding>,
    ) -> anyhow::Result<()> {
        let mut interval = tokio::time::interval(CONFIRMATION_INTERVAL);
        loop {
            tokio::select! {
                read = self.read() => read?,
                _ = interval.tick() => {}
            }
            while let Some((kind, body)) = take(&mut self.inbox)? {
                match kind {
                    b'd' => {
                        if let Some(decoding) = self.copy_data(&body, &confirmations)?
                            && decoded.send(decoding).is_err()
                        {
                            return Ok(());
                        }
                    }
                    b'E' => bail!("the server ended the replication: {}", error_text(&body)),
                    b'N' | b'S' => {}
                    other => return Err(unexpected(other)),
                }
            }
            if !confirmations.is_held_back.load(Ordering::Relaxed) {
                let received = confirmations.received.load(Ordering::Relaxed);
                self.stream
                    .write_all(&status_update(Lsn(received))?)
                    .await?;
            }
        }
    }

    fn copy_data(
        &mut self,
        body: &[u8],
        confirmations: &Confirmations,
    ) -> anyhow::Result<Option<Decoding>> {
        let mut rest = body;
        let (Ok(kind), Ok(lsn)) = (rest.try_get_u8(), rest.try_get_u64()) else {
            return Err(unexpected(b'd'));
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
            _ => return Err(unexpected(kind)),
        };
        confirmations.received.fetch_max(lsn, Ordering::Relaxed);
        Ok(decoding)
    }
}

fn unexpected(kind: u8) -> anyhow::Error {
    let kind = char::from(kind);
    anyhow!("the server sent a message of type {kind:?} that has no place in replication")
}

/// Everything up to `lsn` is written, flushed and applied.
fn status_update(lsn: Lsn) -> io::Result<BytesMut> {
    let mut body = BytesMut::new();
    body.put_u8(b'r');
    for _ in ["written", "flushed", "applied"] {
        body.put_u64(lsn.0);
    }
    let no_time = 0;
    body.put_i64(no_time);
    let wants_no_answer = 0;
    body.put_u8(wants_no_answer);
    let mut message = BytesMut::new();
    frontend::CopyData::new(body)?.write(&mut message);
    Ok(message)
}

/// Takes the first message, if all of it is there: its type and its body. The types of
/// `postgres_protocol` do not have those of replication.
fn take(inbox: &mut BytesMut) -> io::Result<Option<(u8, BytesMut)>> {
    let Some(header) = backend::Header::parse(inbox)? else {
        return Ok(None);
    };
    let length = 1 + header.len() as usize;
    if inbox.len() < length {
        return Ok(None);
    }
    let mut message = inbox.split_to(length);
    message.advance(5);
    Ok(Some((header.tag(), message)))
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
        let mut inbox = BytesMut::from(&[b'd', 0, 0, 0, 6, 1, 2, b'Z', 0, 0, 0, 5][..]);
        let mut next = |more: &[u8]| {
            inbox.extend_from_slice(more);
            take(&mut inbox).unwrap()
        };
        assert_eq!(next(b""), Some((b'd', BytesMut::from(&[1, 2][..]))));
        assert_eq!(next(b""), None);
        assert_eq!(next(b"I"), Some((b'Z', BytesMut::from("I"))));
        assert_eq!(next(b""), None);
        assert!(inbox.is_empty());
    }

    #[test]
    fn the_text_of_an_error() {
        let body = b"SERROR\0C42704\0Mreplication slot does not exist\0\0";
        assert_eq!(error_text(body), "replication slot does not exist");
        assert_eq!(error_text(b"\0"), "no reason given");
    }
}
