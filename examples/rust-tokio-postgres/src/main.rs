//! A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//!
//!     example cache | worker
//!
//! DATABASE_URL names the database, which has ../schema.sql.

use std::collections::HashMap;
use std::env;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_channel::mpsc;
use futures_util::{StreamExt, stream};
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// A worker looks again after this time, whatever it was told: a job may have been
/// given up by another worker.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The payloads that a session is told; it ends when the connection does.
type Told = mpsc::UnboundedReceiver<String>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("cache") => keep_cache().await,
        Some("worker") => work().await,
        _ => bail!("cache or worker?"),
    }
}

async fn listen(channel: &str) -> Result<(Client, Told)> {
    let (client, mut connection) =
        tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    let (sender, told) = mpsc::unbounded();
    tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message
                && sender
                    .unbounded_send(notification.payload().to_owned())
                    .is_err()
            {
                break;
            }
        }
    });
    client.batch_execute(&format!("LISTEN {channel}")).await?;
    Ok((client, told))
}

/// Keeps a copy of the settings until there is one with the name "stop".
async fn keep_cache() -> Result<()> {
    loop {
        // First LISTEN, then read: what changes in between is told.
        if let Ok((client, told)) = listen("setting_changed").await {
            match follow(&client, told).await {
                Ok(true) => return Ok(()),
                Err(error) if !client.is_closed() => return Err(error),
                // What changed meanwhile nobody will tell: connect, and read all.
                Ok(false) | Err(_) => {}
            }
        }
    }
}

/// Returns false if the connection has ended.
async fn follow(client: &Client, mut told: Told) -> Result<bool> {
    let mut cache: HashMap<String, String> = HashMap::new();
    for row in client.query("SELECT key, value FROM settings", &[]).await? {
        cache.insert(row.get(0), row.get(1));
    }
    println!("loaded {}", cache.len());
    while let Some(key) = told.next().await {
        refresh(client, &mut cache, key).await?;
        if cache.contains_key("stop") {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn refresh(client: &Client, cache: &mut HashMap<String, String>, key: String) -> Result<()> {
    let row = client
        .query_opt("SELECT value FROM settings WHERE key = $1", &[&key])
        .await?;
    if let Some(row) = row {
        let value: String = row.get(0);
        println!("{key} = {value}");
        cache.insert(key, value);
    } else {
        println!("{key} gone");
        cache.remove(&key);
    }
    Ok(())
}

/// Does jobs until one says "stop".
async fn work() -> Result<()> {
    let (mut client, mut told) = listen("job_added").await?;
    println!("ready");
    let mut done = 0;
    loop {
        while let Some(payload) = take_job(&mut client).await? {
            if payload == "stop" {
                println!("done {done}");
                return Ok(());
            }
            done += 1;
        }
        if let Ok(payload) = timeout(LOOK_AGAIN, told.next()).await {
            payload.context("the connection was lost")?;
        }
    }
}

/// Does one job, which nobody else does meanwhile, and returns its payload.
async fn take_job(client: &mut Client) -> Result<Option<String>> {
    let transaction = client.transaction().await?;
    let job = transaction
        .query_opt(
            "SELECT id, payload FROM jobs WHERE result IS NULL
              ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1",
            &[],
        )
        .await?;
    let Some(job) = job else { return Ok(None) };
    let (id, payload): (i64, String) = (job.get(0), job.get(1));
    transaction
        .execute(
            "UPDATE jobs SET result = $1, worker = pg_backend_pid() WHERE id = $2",
            &[&payload.to_uppercase(), &id],
        )
        .await?;
    transaction.commit().await?;
    Ok(Some(payload))
}
