//! The one reader of notifications.

use std::future::poll_fn;
use std::io;
use std::thread;

use anyhow::{Context, Error, anyhow};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Notification};

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

    /// Connects in that thread, executes `statements`, which make the session listen,
    /// and keeps the session until this is dropped.
    pub async fn listen(
        &self,
        config: Config,
        statements: impl AsRef<str> + Send + Sync + 'static,
        on_arrival: impl FnMut(Result<Notification, Error>) + Send + 'static,
    ) -> anyhow::Result<()> {
        let (keep, kept) = oneshot::channel();
        self.runtime.spawn(async move {
            let connect = async {
                let client = connect(&config, on_arrival).await?;
                client.batch_execute(statements.as_ref()).await?;
                Ok(client)
            };
            let connected: Result<Client, tokio_postgres::Error> = connect.await;
            let is_there = connected.is_ok();
            // Whoever waited for it may have been dropped.
            let _ = keep.send(connected.as_ref().map(|_| ()).map_err(|e| anyhow!("{e:#}")));
            if is_there {
                // The session ends with the thread.
                std::future::pending::<()>().await;
            }
            drop(connected);
        });
        kept.await
            .context("the thread of the listeners has ended")?
    }

    /// Runs something in that thread.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        self.spawn(async move { work() })
            .await
            .context("the thread of the listeners has ended")
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
