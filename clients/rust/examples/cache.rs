//! A cache of rows without a query for each hit. The table is watched: `SELECT pinpoint.watch('products')`.
//!
//! A row is stored only if no event came since before it was read. Without a connection, nothing is stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use pg_pinpoint::{Client, Error, Event, Options};
use tokio_postgres::NoTls;

#[derive(Default)]
pub struct Cache(Mutex<Content>);

#[derive(Default)]
struct Content {
    /// The client listens on the channel.
    valid: bool,
    /// Of events.
    generation: u64,
    names: HashMap<i32, String>,
}

impl Cache {
    /// Follow the changes, until the client ends.
    pub async fn follow(&self, client: &Client) -> Result<(), Arc<Error>> {
        let mut products = client.subscribe(["products"])?;
        let mut began = false; // with the first "changed"
        while let Some(event) = products.next().await {
            let mut content = self.content();
            content.names.clear();
            content.generation += 1;
            began |= matches!(event, Ok(Event::Changed(_)));
            content.valid = began && !matches!(event, Ok(Event::Disconnected { .. }) | Err(_));
            event?;
        }
        Ok(())
    }

    /// The name of a product, which exists.
    pub async fn name(&self, sql: &tokio_postgres::Client, id: i32) -> Result<String, tokio_postgres::Error> {
        let generation = {
            let content = self.content();
            if let Some(name) = content.names.get(&id) {
                return Ok(name.clone());
            }
            content.generation
        };
        let name: String = sql.query_one("SELECT name FROM products WHERE id = $1", &[&id]).await?.get(0);
        let mut content = self.content();
        if content.valid && content.generation == generation {
            content.names.insert(id, name.clone());
        }
        Ok(name)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config: tokio_postgres::Config = std::env::var("PINPOINT_DSN")?.parse()?;
    let (sql, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let cache = Cache::default();
    let client = Client::new(config, NoTls, Options::default())?;
    tokio::select! {
        end = cache.follow(&client) => end?,
        name = cache.name(&sql, 1) => println!("{}", name?),
    }
    Ok(())
}
