//! A listener that reads everything, as fast as it comes.

use std::future::poll_fn;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls, Socket, tls::NoTlsStream};

use super::workload::Origin;
use crate::session::SessionError;

#[derive(Debug, Error)]
pub enum ListenerError {
    #[error("could not start a thread for a listener")]
    Thread(#[source] io::Error),
    #[error("a listener failed")]
    Session(#[from] SessionError),
    #[error(
        "probe {got} arrived at a listener where probe {expected} was due: \
         the server lost a notification or changed their order"
    )]
    WrongProbe { expected: u32, got: u32 },
}

/// A session that listens. A thread of its own reads it, so that nothing else
/// that this program does delays what is read, and the other way round. The
/// session ends when this is dropped.
#[derive(Debug)]
pub struct Listener {
    arrivals: mpsc::UnboundedReceiver<Result<Arrival, SessionError>>,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The arrival of a notification that is not part of the load.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    origin: Origin,
    at: Instant,
    /// Notifications of the load until then.
    load: u64,
}

/// All that a listener has received.
#[derive(Debug)]
pub struct Received {
    /// When each probe arrived, in the order of their numbers.
    pub probes: Vec<Instant>,
    pub fence: Instant,
    /// Notifications of the load.
    pub load: u64,
}

impl Listener {
    /// Connects, and LISTENs on `channel`.
    pub async fn start(config: Config, channel: String) -> Result<Self, ListenerError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ListenerError::Thread)?;
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let (ready, is_ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("listener".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = stopped => {}
                        Err(error) = listen(config, &channel, ready, &arrived) => {
                            // Nobody is left to tell if the receiver has gone.
                            let _ = arrived.send(Err(error));
                        }
                    }
                });
            })
            .map_err(ListenerError::Thread)?;

        let mut listener = Self {
            arrivals,
            stop: Some(stop),
            thread: Some(thread),
        };
        match is_ready.await {
            Ok(()) => Ok(listener),
            // The thread has failed before.
            Err(_) => Err(listener.next().await.err().unwrap_or(SessionError::Closed))?,
        }
    }

    /// Waits for the fence, and returns all that came before it.
    pub async fn receive(&mut self) -> Result<Received, ListenerError> {
        let mut probes = Vec::new();
        loop {
            let arrival = self.next().await?;
            match arrival.origin {
                Origin::Probe(got) => {
                    let expected = probes.len() as u32;
                    if got != expected {
                        return Err(ListenerError::WrongProbe { expected, got });
                    }
                    probes.push(arrival.at);
                }
                Origin::Fence => {
                    return Ok(Received {
                        probes,
                        fence: arrival.at,
                        load: arrival.load,
                    });
                }
                Origin::Load => {}
            }
        }
    }

    async fn next(&mut self) -> Result<Arrival, SessionError> {
        self.arrivals
            .recv()
            .await
            .unwrap_or(Err(SessionError::Closed))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What the thread had to tell went through the channel.
            let _ = thread.join();
        }
    }
}

/// Reads until the session fails.
async fn listen(
    config: Config,
    channel: &str,
    ready: oneshot::Sender<()>,
    arrived: &mpsc::UnboundedSender<Result<Arrival, SessionError>>,
) -> Result<(), SessionError> {
    let (client, connection) = config.connect(NoTls).await?;
    let mut reading = std::pin::pin!(read(connection, arrived));
    let statement = format!("LISTEN {channel}");
    tokio::select! {
        result = &mut reading => return result,
        result = client.batch_execute(&statement) => result?,
    }
    // Whoever waited for it may have been dropped.
    let _ = ready.send(());
    reading.await
}

async fn read(
    mut connection: Connection<Socket, NoTlsStream>,
    arrived: &mpsc::UnboundedSender<Result<Arrival, SessionError>>,
) -> Result<(), SessionError> {
    let mut load = 0;
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        let AsyncMessage::Notification(notification) = message? else {
            continue;
        };
        match Origin::of(notification.payload()) {
            Origin::Load => load += 1,
            origin => {
                let at = Instant::now();
                // Nobody wants it any more if the receiver has gone.
                let _ = arrived.send(Ok(Arrival { origin, at, load }));
            }
        }
    }
    Err(SessionError::Closed)
}
