//! Server-sent events: each browser gets the rows of a live query. A request that ends also ends its query.
//!
//! The tables of the query must be watched: `SELECT pinpoint.watch('orders')`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use axum::Router;
use futures_util::{Stream, StreamExt};
use pg_pinpoint::{Client, Error, Options, Update};
use tokio_postgres::NoTls;

const QUERY: &str = "SELECT coalesce(json_agg(o ORDER BY id), '[]')::text FROM (SELECT id, total FROM orders) AS o";

type Events<S> = Result<Sse<S>, (StatusCode, String)>;

/// All browsers share one execution. One that is slow gets only the newest rows.
async fn send_rows(State(client): State<Client>) -> Events<impl Stream<Item = Result<Event, Arc<Error>>>> {
    let live = client.live(QUERY, &[]).map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    // A final error of the client ends the response. Dropping the response ends the query.
    Ok(Sse::new(live.map(|update| {
        Ok(match update? {
            Update::Rows(rows) => Event::default().data(rows[0].get::<_, &str>(0)),
            // After an error or "disconnected", the rows may be old until the next ones.
            _ => Event::default().event("stale").data(""),
        })
    })))
}

pub fn app(client: Client) -> Router {
    Router::new().route("/", get(send_rows)).with_state(client)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(std::env::var("PINPOINT_DSN")?.parse()?, NoTls, Options::default())?;
    axum::serve(tokio::net::TcpListener::bind("127.0.0.1:8000").await?, app(client)).await?;
    Ok(())
}
