//! The connection of a listener whose session may be ended by others.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use pinpoint_servers::workspace::SOCKET;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_postgres::config::Host;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls};

use crate::checker::finding::error_text;

/// A socket on which writing does not fail if the server has closed it. If a write failed,
/// the library would give up the connection, and what the server had sent before could not
/// be read any more. For the server it is delivered, and on a shared channel no other
/// session receives it.
pub struct ReadToEnd(UnixStream);

impl ReadToEnd {
    /// Connects to a server on this machine. The error is a text.
    pub async fn connect(
        config: &Config,
    ) -> Result<(Client, Connection<Self, NoTlsStream>), String> {
        let Some(Host::Unix(folder)) = config.get_hosts().first() else {
            return Err("the server has no folder for its socket".to_owned());
        };
        let socket = UnixStream::connect(folder.join(SOCKET)).await;
        let socket = socket.map_err(|error| error.to_string())?;
        let connected = config.connect_raw(Self(socket), NoTls).await;
        connected.map_err(|error| error_text(&error))
    }

    fn socket(self: Pin<&mut Self>) -> Pin<&mut UnixStream> {
        Pin::new(&mut self.get_mut().0)
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

impl AsyncRead for ReadToEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.socket().poll_read(context, buffer)
    }
}

impl AsyncWrite for ReadToEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.socket().poll_write(context, bytes) {
            Poll::Ready(Err(error)) if is_closed(&error) => Poll::Ready(Ok(bytes.len())),
            written => written,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_was_sent_before_the_end_can_be_read_after_a_write() {
        let (socket, mut server) = UnixStream::pair().unwrap();
        server.write_all(b"notification").await.unwrap();
        drop(server);
        let mut socket = ReadToEnd(socket);
        socket.write_all(b"query").await.unwrap();
        let mut received = Vec::new();
        socket.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"notification");
    }
}
