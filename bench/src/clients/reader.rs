//! The one reader of notifications.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, anyhow};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pinpoint_servers::connection::within;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Notification};

use super::processor_time;

/// Where many sessions connect: so many at the same time.
pub const CONNECTING_AT_ONCE: usize = 16;

/// Connects. A task of its own reads the connection all the time, and hands over
/// each notification as it arrives, and in the end why the connection has ended,
/// unless that is because the client is gone.
pub async fn connect(
    config: &Config,
    mut on_arrival: impl FnMut(Result<Notification, Error>) + Send + 'static,
) -> Result<Client, tokio_postgres::Error> {
    let (client, mut connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => on_arrival(Ok(notification)),
                Ok(_) => {}
                Err(error) => return on_arrival(Err(error.into())),
            }
        }
        on_arrival(Err(anyhow!("the server closed the connection")));
    });
    Ok(client)
}

/// A thread in which connections are read, so that nothing else that this program
/// does delays what is read, and the other way round. It ends when this is dropped.
#[derive(Debug)]
pub struct ReaderThread {
    runtime: Handle,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl ReaderThread {
    pub fn start() -> anyhow::Result<Self> {
        Self::try_start().context("could not start a thread for the listeners")
    }

    fn try_start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("listeners".to_owned())
            .spawn(move || {
                // An error only says that the other end is gone, as it should be.
                let _ = runtime.block_on(stopped);
            })?;
        Ok(Self {
            runtime: handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Starts a task in that thread, which ends with it at the latest.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(task)
    }
}

impl Drop for ReaderThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What the thread had to tell it has told.
            let _ = thread.join();
        }
    }
}

/// Sessions that listen, and the threads in which they are read. They end when this is
/// dropped.
#[derive(Debug)]
pub struct Readers {
    threads: Vec<ReaderThread>,
    _sessions: Vec<Client>,
}

impl Readers {
    /// Connects sessions, in each of the threads as many, which execute `statements` to
    /// listen, each for no longer than `timeout`. For each, by its number, `on_arrival` makes
    /// what takes its notifications, and in the end why its connection has ended.
    pub async fn connect<F>(
        threads: usize,
        sessions: usize,
        config: &Config,
        statements: &str,
        timeout: Duration,
        mut on_arrival: impl FnMut(usize) -> F,
    ) -> anyhow::Result<Self>
    where
        F: FnMut(Result<Notification, Error>) + Send + 'static,
    {
        let started = (0..threads).map(|_| ReaderThread::start());
        let threads: Vec<ReaderThread> = started.collect::<anyhow::Result<_>>()?;
        let statements: Arc<str> = statements.into();
        let connecting = stream::iter(0..sessions).map(|number| {
            let (config, statements) = (config.clone(), statements.clone());
            let on_arrival = on_arrival(number);
            let connected = threads[number % threads.len()].spawn(async move {
                let client = connect(&config, on_arrival).await?;
                client.batch_execute(&statements).await?;
                Ok::<_, tokio_postgres::Error>(client)
            });
            async move {
                let connected = within(timeout, "a listener's connection and LISTEN", connected);
                anyhow::Ok(connected.await???)
            }
        });
        let connected = connecting.buffer_unordered(CONNECTING_AT_ONCE);
        let sessions = connected.try_collect().await;
        Ok(Self {
            _sessions: sessions.context("a listener failed")?,
            threads,
        })
    }

    /// The processor time that the threads have used.
    pub async fn processor_time(&self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for thread in &self.threads {
            sum += thread
                .spawn(async { processor_time::of_this_thread() })
                .await??;
        }
        Ok(sum)
    }
}
