//! A job queue: the workers of a process share one client. Any number of processes can run.
//!
//! Needs a table that is watched: `CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs')`.
//! Behind a pooler in transaction mode, each client holds a connection of the pool nearly all the time, in
//! `pinpoint.wait()`. So make the pool larger than the number of clients, by the number of jobs that run at the same time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use pg_pinpoint::{Client, Error, Options};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Config, NoTls};

const WORKERS: usize = 50;
const TAKE: &str =
    "DELETE FROM jobs WHERE id = (SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING payload";

async fn work<J: Future>(
    config: &Config,
    looks: &Notify,
    job: &impl Fn(String) -> J,
) -> Result<(), tokio_postgres::Error> {
    let (mut sql, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    loop {
        looks.notified().await;
        let transaction = sql.transaction().await?;
        // Statements are not prepared, because a pooler may change the session.
        if let Some(row) = transaction.query_typed(TAKE, &[]).await?.first() {
            looks.notify_one(); // there may be more: they are for the other workers
            job(row.get(0)).await;
            transaction.commit().await?;
            looks.notify_one();
        }
    }
}

/// Do jobs until the client ends. If a job needs a processor for long, let it spawn a task.
pub async fn run<J: Future>(config: Config, job: impl Fn(String) -> J) -> Result<(), Arc<Error>> {
    let client = Client::new(config.clone(), NoTls, Options::default())?;
    let mut events = client.subscribe(["jobs"])?;
    let looks = Notify::new(); // one look is enough for any number of events
    let worker = async || loop {
        if let Err(error) = work(&config, &looks, &job).await {
            eprintln!("the job is free again: {error:?}");
            sleep(Duration::from_secs(1)).await;
            looks.notify_one();
        }
    };
    let follow = async {
        loop {
            // Without an event, look once a minute: another process may have ended in the middle of a job.
            if let Ok(Some(event)) = timeout(Duration::from_secs(60), events.next()).await {
                event?;
            }
            looks.notify_one();
        }
    };
    tokio::select! {
        end = follow => end,
        _ = join_all((0..WORKERS).map(|_| worker())) => Ok(()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = std::env::var("PINPOINT_DSN")?.parse()?;
    Ok(run(config, |payload| async move { println!("done: {payload}") }).await?)
}
