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
use tokio::time::timeout;

/// A worker looks again after this time, whatever it was told: a job may have been
/// given up by another worker.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    match env::args().nth(1).as_deref() {
        Some("cache") => keep_cache(&pool).await,
        Some("worker") => work(&pool).await,
        _ => bail!("cache or worker?"),
    }
}

async fn listen(pool: &PgPool, channel: &str) -> Result<PgListener> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

/// Keeps a copy of the settings until there is one with the name "stop".
async fn keep_cache(pool: &PgPool) -> Result<()> {
    // First LISTEN, then read: what changes in between is told.
    let mut listener = listen(pool, "setting_changed").await?;
    let mut cache = load(pool).await?;
    while !cache.contains_key("stop") {
        match listener.try_recv().await? {
            Some(notification) => refresh(pool, &mut cache, notification.payload()).await?,
            // The connection was lost, and the library LISTENs on a new one.  What
            // changed meanwhile nobody will tell, so read all.
            None => {
                listener.listen("setting_changed").await?;
                cache = load(pool).await?;
            }
        }
    }
    Ok(())
}

async fn load(pool: &PgPool) -> Result<HashMap<String, String>> {
    let rows: Vec<(String, String)> = sqlx::query_as("SELECT key, value FROM settings")
        .fetch_all(pool)
        .await?;
    println!("loaded {}", rows.len());
    Ok(rows.into_iter().collect())
}

async fn refresh(pool: &PgPool, cache: &mut HashMap<String, String>, key: &str) -> Result<()> {
    let row: Option<(String,)> = sqlx::query_as("SELECT value FROM settings WHERE key = $1")
        .bind(key)
        .fetch_optional(pool)
        .await?;
    if let Some((value,)) = row {
        println!("{key} = {value}");
        cache.insert(key.to_owned(), value);
    } else {
        println!("{key} gone");
        cache.remove(key);
    }
    Ok(())
}

/// Does jobs until one says "stop".
async fn work(pool: &PgPool) -> Result<()> {
    let mut listener = listen(pool, "job_added").await?;
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
