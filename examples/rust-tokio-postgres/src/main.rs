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
use tokio::time::{error::Elapsed, sleep, timeout};
use tokio_postgres::{AsyncMessage, Client, NoTls, Notification};

/// A worker looks again after this time, whatever it was told: a job may have been
/// given up by another worker.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// When an attempt to connect or a query is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The time before another attempt to connect.
const RECONNECT_AFTER: Duration = Duration::from_millis(200);

/// In milliseconds; 0 is never. Without pg_pinpoint there is no row.
const HEARTBEAT_INTERVAL: &str = "SELECT setting::int FROM pg_settings
      WHERE name = 'pinpoint.heartbeat_interval'
        AND to_regproc('pinpoint.changed_since') IS NOT NULL";
const CHANGED_SINCE: &str =
    "SELECT changed, position FROM pinpoint.changed_since($1, 'setting_changed')";

/// What a session is told; it ends when the connection does.
type Told = mpsc::UnboundedReceiver<Notification>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("cache") => keep_cache().await,
        Some("worker") => work().await,
        _ => bail!("cache or worker?"),
    }
}

async fn listen(channels: &[&str]) -> Result<(Client, Told)> {
    let (client, mut connection) =
        tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    let (sender, told) = mpsc::unbounded();
    tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message
                && sender.unbounded_send(notification).is_err()
            {
                break;
            }
        }
    });
    for channel in channels {
        client.batch_execute(&format!("LISTEN {channel}")).await?;
    }
    Ok((client, told))
}

/// A copy of the settings, and the position up to which it is right.
#[derive(Default)]
struct Cache {
    rows: HashMap<String, String>,
    position: Option<String>,
}

/// Keeps a copy of the settings until there is one with the name "stop".
async fn keep_cache() -> Result<()> {
    let mut cache = Cache::default();
    while !cache.rows.contains_key("stop") {
        // First LISTEN, then look: what changes in between is told.
        let session = timeout(TIMEOUT, listen(&["setting_changed", "pinpoint_heartbeat"])).await;
        let Ok(Ok((client, told))) = session else {
            sleep(RECONNECT_AFTER).await;
            continue;
        };
        match cache.follow(&client, told).await {
            Err(error) if !client.is_closed() && !is_connection_error(&error) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Has the connection gone, or does the server end it (class 57P)?
fn is_connection_error(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<tokio_postgres::Error>() {
        Some(error) => error
            .code()
            .is_none_or(|code| code.code().starts_with("57P")),
        None => error.is::<Elapsed>(),
    }
}

impl Cache {
    /// Keeps the cache right until there is a "stop", or no heartbeat any more.
    async fn follow(&mut self, client: &Client, mut told: Told) -> Result<()> {
        let interval = timeout(TIMEOUT, self.catch_up(client)).await??;
        let silence = if interval > 0 { 3 * interval } else { u64::MAX };
        while !self.rows.contains_key("stop") {
            match timeout(Duration::from_millis(silence), told.next()).await? {
                None => break,
                Some(told) if told.channel() == "pinpoint_heartbeat" => {
                    self.position = told.payload().split(' ').next().map(str::to_owned);
                }
                Some(told) => timeout(TIMEOUT, self.refresh(client, told.payload())).await??,
            }
        }
        Ok(())
    }

    /// Reads again what was missed. Returns the time between heartbeats.
    async fn catch_up(&mut self, client: &Client) -> Result<u64> {
        let mut interval = 0;
        // Stock PostgreSQL does not know what has changed.
        let (mut changed, mut position) = (vec!["setting_changed".to_owned()], None);
        if let Some(heartbeat) = client.query_opt(HEARTBEAT_INTERVAL, &[]).await? {
            interval = heartbeat.get::<_, i32>(0).try_into()?;
            let answer = client.query_one(CHANGED_SINCE, &[&self.position]).await?;
            (changed, position) = (answer.get(0), answer.get(1));
        }
        if changed.is_empty() {
            println!("nothing missed");
        } else {
            self.load(client).await?;
        }
        self.position = position;
        Ok(interval)
    }

    async fn load(&mut self, client: &Client) -> Result<()> {
        let rows = client
            .query("SELECT key, value FROM settings ORDER BY key", &[])
            .await?;
        self.rows.clear();
        println!("loaded {}", rows.len());
        for row in rows {
            let (key, value): (String, String) = (row.get(0), row.get(1));
            println!("{key} = {value}");
            self.rows.insert(key, value);
        }
        Ok(())
    }

    async fn refresh(&mut self, client: &Client, key: &str) -> Result<()> {
        let row = client
            .query_opt("SELECT value FROM settings WHERE key = $1", &[&key])
            .await?;
        if let Some(row) = row {
            let value: String = row.get(0);
            println!("{key} = {value}");
            self.rows.insert(key.to_owned(), value);
        } else {
            println!("{key} gone");
            self.rows.remove(key);
        }
        Ok(())
    }
}

/// Does jobs until one says "stop".
async fn work() -> Result<()> {
    let (mut client, mut told) = listen(&["job_added"]).await?;
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
