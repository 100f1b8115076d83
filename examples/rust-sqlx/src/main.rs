//! A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//!
//!     example cache | worker
//!
//! DATABASE_URL names the database, which has ../schema.sql.

use std::collections::HashMap;
use std::env;
use std::time::Duration;

use anyhow::{Result, bail};
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::time::{error::Elapsed, sleep, timeout};

/// A worker also looks for jobs after this time without a notification, because another
/// worker may have given up a job.
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = env::var("DATABASE_URL")?;
    match env::args().nth(1).as_deref() {
        Some("cache") => keep_cache(&url).await,
        Some("worker") => work(&PgPool::connect(&url).await?).await,
        _ => bail!("cache or worker?"),
    }
}

/// A copy of the settings, and the position up to which it is right.
#[derive(Default)]
struct Cache {
    rows: HashMap<String, String>,
    position: Option<String>,
}

/// Keeps a copy of the settings until there is one with the name "stop".
async fn keep_cache(url: &str) -> Result<()> {
    let mut cache = Cache::default();
    while !cache.rows.contains_key("stop") {
        match cache.follow(url).await {
            // A session has notified on the channel of heartbeats.
            Err(error) if has_code(&error, &["22P02"]) => cache.position = None,
            Err(error) if !is_connection_error(&error) => return Err(error),
            Err(_) => sleep(RECONNECT_AFTER).await,
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Is it an error of the server, with an SQLSTATE that begins like one of these?
fn has_code(error: &anyhow::Error, codes: &[&str]) -> bool {
    match error.downcast_ref() {
        Some(sqlx::Error::Database(error)) => error
            .code()
            .is_some_and(|code| codes.iter().any(|class| code.starts_with(class))),
        _ => false,
    }
}

/// SQLSTATEs of class 08 are of connections, 53 of a server that has too many, 57 of a server
/// that ends sessions. 40001 is of a query that conflicts with the replay of a standby.
fn is_connection_error(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(sqlx::Error::Database(_)) => has_code(error, &["08", "40001", "53", "57"]),
        Some(sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut) => true,
        _ => error.is::<Elapsed>(),
    }
}

impl Cache {
    /// Keeps the cache right until there is a "stop", or no heartbeat any more.
    async fn follow(&mut self, url: &str) -> Result<()> {
        let mut listener = timeout(TIMEOUT, PgListener::connect(url)).await??;
        listener.eager_reconnect(false);
        let interval = self.catch_up(&mut listener).await?;
        let silence = if interval > 0 { 3 * interval } else { u64::MAX };
        while !self.rows.contains_key("stop") {
            let told = timeout(Duration::from_millis(silence), listener.try_recv()).await?;
            match told? {
                // The connection was lost.
                None => break,
                Some(told) if told.channel() == "pinpoint_heartbeat" => {
                    self.position = told.payload().split(' ').next().map(str::to_owned);
                }
                Some(told) => self.refresh(&mut listener, told.payload()).await?,
            }
        }
        Ok(())
    }

    /// LISTENs, and reads again what was missed. Returns the time between heartbeats.
    async fn catch_up(&mut self, listener: &mut PgListener) -> Result<u64> {
        // First LISTEN, then look: what changes in between is told.
        let channels = ["pinpoint_heartbeat", "setting_changed"];
        timeout(TIMEOUT, listener.listen_all(channels)).await??;
        let interval = sqlx::query_scalar(HEARTBEAT_INTERVAL).fetch_optional(&mut *listener);
        let interval: Option<i32> = timeout(TIMEOUT, interval).await??;
        // Stock PostgreSQL does not know what has changed.
        let (mut changed, mut position) = (vec!["setting_changed".to_owned()], None);
        if interval.is_some() {
            let answer = sqlx::query_as(CHANGED_SINCE)
                .bind(&self.position)
                .fetch_one(&mut *listener);
            (changed, position) = timeout(TIMEOUT, answer).await??;
        }
        if changed.is_empty() {
            println!("nothing missed");
        } else {
            self.load(listener).await?;
        }
        self.position = position;
        Ok(interval.unwrap_or(0).try_into()?)
    }

    async fn load(&mut self, listener: &mut PgListener) -> Result<()> {
        let rows =
            sqlx::query_as("SELECT key, value FROM settings ORDER BY key").fetch_all(listener);
        let rows: Vec<(String, String)> = timeout(TIMEOUT, rows).await??;
        println!("loaded {}", rows.len());
        for (key, value) in &rows {
            println!("{key} = {value}");
        }
        self.rows = rows.into_iter().collect();
        Ok(())
    }

    async fn refresh(&mut self, listener: &mut PgListener, key: &str) -> Result<()> {
        let row = sqlx::query_as("SELECT value FROM settings WHERE key = $1")
            .bind(key)
            .fetch_optional(listener);
        let row: Option<(String,)> = timeout(TIMEOUT, row).await??;
        if let Some((value,)) = row {
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
async fn work(pool: &PgPool) -> Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen("job_added").await?;
    println!("ready");
    let mut done = 0;
    loop {
        while let Some(payload) = take_job(pool).await? {
            if payload == "stop" {
                println!("done {done}");
                return Ok(());
            }
            done += 1;
        }
        // After this time it is no error that nothing came.
        if let Ok(notification) = timeout(LOOK_AGAIN, listener.recv()).await {
            notification?;
        }
    }
}

/// Does one job, which nobody else does meanwhile, and returns its payload.
async fn take_job(pool: &PgPool) -> Result<Option<String>> {
    let mut transaction = pool.begin().await?;
    let job: Option<(i64, String)> = sqlx::query_as(
        "SELECT id, payload FROM jobs WHERE result IS NULL
          ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1",
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some((id, payload)) = job else {
        return Ok(None);
    };
    sqlx::query("UPDATE jobs SET result = $1, worker = pg_backend_pid() WHERE id = $2")
        .bind(payload.to_uppercase())
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Some(payload))
}
