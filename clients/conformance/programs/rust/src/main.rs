//! The conformance program over the Rust package: see ../../../README.md.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pg_pinpoint::{Client, Error, Event, Live, Mode, Options, Parameter, Update};
use postgres_native_tls::MakeTlsConnector;
use serde_json::{json, Value};
use tokio_postgres::types::{accepts, to_sql_checked, IsNull, ToSql, Type};
use tokio_postgres::Row;

fn show(event: &Value) {
    println!("{event}");
}

fn show_error(error: &Error) {
    show(&json!({"event": "error", "message": error.to_string(), "sqlstate": error.code()}));
}

fn show_disconnected(reason: &str, retry_in: Duration) {
    show(&json!({"event": "disconnected", "reason": reason, "retry_in": retry_in.as_secs_f64()}));
}

/// tokio-postgres takes neither the modes of libpq that verify certificates nor the name of a file.
fn connection(dsn: &str) -> Result<(tokio_postgres::Config, MakeTlsConnector), Box<dyn std::error::Error>> {
    let (base, query) = dsn.split_once('?').unwrap_or((dsn, ""));
    let parameters: Vec<(&str, &str)> = query.split('&').filter_map(|parameter| parameter.split_once('=')).collect();
    let mut tls = native_tls::TlsConnector::builder();
    let mut config: tokio_postgres::Config = base.parse()?;
    for (name, value) in parameters {
        match (name, value) {
            ("sslmode", "verify-full") => {
                config.ssl_mode(tokio_postgres::config::SslMode::Require);
            }
            ("sslrootcert", file) => {
                tls.add_root_certificate(native_tls::Certificate::from_pem(&std::fs::read(file)?)?);
            }
            _ => return Err(format!("unknown parameter {name}").into()),
        }
    }
    Ok((config, MakeTlsConnector::new(tls.build()?)))
}

fn options() -> Options {
    let given: Value = serde_json::from_str(&std::env::var("PINPOINT_OPTIONS").unwrap_or("{}".to_owned())).unwrap();
    let defaults = Options::default();
    let seconds = |name: &str, default| given[name].as_f64().map_or(default, Duration::from_secs_f64);
    Options {
        mode: if given["mode"] == "wait" { Mode::Wait } else { Mode::Auto },
        max_backoff: seconds("max_backoff", defaults.max_backoff),
        check_interval: seconds("check_interval", defaults.check_interval),
        probe_timeout: seconds("probe_timeout", defaults.probe_timeout),
        timeout: seconds("timeout", defaults.timeout),
        query_timeout: seconds("query_timeout", defaults.query_timeout),
        buffer: given["buffer"].as_u64().map_or(defaults.buffer, |bytes| bytes as usize),
        ..defaults
    }
}

fn value(row: &Row, column: usize) -> Value {
    match *row.columns()[column].type_() {
        Type::INT4 => json!(row.get::<_, Option<i32>>(column)),
        Type::INT8 => json!(row.get::<_, Option<i64>>(column)),
        _ => json!(row.get::<_, Option<String>>(column)),
    }
}

/// Read lines of standard input until its end.
fn commands(client: &Client, mut command: impl FnMut(&str) + Send + 'static, end: impl FnOnce() + Send + 'static) {
    let (client, runtime) = (client.clone(), tokio::runtime::Handle::current());
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line == "!" {
                runtime.block_on(client.close());
            } else {
                command(&line);
            }
        }
        end();
    });
}

async fn subscribe(client: &Client, channels: &[String]) -> Result<(), Arc<Error>> {
    let mut subscription = client.subscribe(channels)?;
    let handle = subscription.handle();
    let closing = handle.clone();
    commands(
        client,
        move |line| match line.split_at(1) {
            ("+", channel) => handle.add([channel]).unwrap(),
            (_, channel) => handle.remove([channel]),
        },
        move || closing.close(),
    );
    while let Some(event) = subscription.next().await {
        match event {
            Ok(Event::Connected { server_version, standby, mode }) => {
                let mode = if mode == Mode::Wait { "wait" } else { "push" };
                show(
                    &json!({"event": "connected", "mode": mode, "standby": standby, "server_version": server_version}),
                );
            }
            Ok(Event::Changed(channels)) => show(&json!({"event": "changed", "channels": channels})),
            Ok(Event::Notification { channel, payload, pid }) => {
                show(&json!({"event": "notification", "channel": channel, "payload": payload, "pid": pid}));
            }
            Ok(Event::Disconnected { reason, retry_in }) => show_disconnected(&reason, retry_in),
            Err(error) => {
                assert!(Arc::ptr_eq(&client.subscribe(["a"]).err().unwrap(), &error)); // as later calls
                show_error(&error);
                std::process::exit(1);
            }
        }
    }
    Ok(())
}

/// A parameter that prints as any other.
struct Hidden(&'static str);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

impl ToSql for Hidden {
    accepts!(TEXT);
    to_sql_checked!();

    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql(kind, out)
    }
}

/// Wait for rows of a live query.
async fn rows_of(live: &mut Live) -> Arc<Vec<Row>> {
    loop {
        if let Update::Rows(rows) = live.next().await.unwrap() {
            return rows;
        }
    }
}

/// Consumers of live queries come and go; then another one gets rows, and two with other parameters.
async fn come_and_go(client: Client, query: String) {
    let one = |number: usize, wait: bool| {
        let (client, query) = (client.clone(), format!("{query} -- {}", number % 10));
        async move {
            let mut live = client.live(&query, Vec::new()).unwrap();
            if wait {
                rows_of(&mut live).await;
            }
        }
    };
    let tasks: Vec<_> = (0..200).map(|number| tokio::spawn(one(number, number % 3 == 0))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    one(0, true).await;
    show(&json!({"event": "came_and_went"}));
    let hidden = |value| -> Vec<Parameter> { vec![(Box::new(Hidden(value)), Type::TEXT)] };
    let mut lives = ["1", "2"].map(|value| client.live("SELECT $1::text", hidden(value)).unwrap());
    let mut rows = Vec::new();
    for live in &mut lives {
        rows.push(vec![vec![value(&rows_of(live).await[0], 0)]]);
    }
    show(&json!({"event": "parameters", "rows": rows}));
}

async fn live(client: &Client, query: &str) -> Result<(), Arc<Error>> {
    let mut live = client.live(query, Vec::new())?;
    let (sender, mut end) = tokio::sync::oneshot::channel::<()>();
    let (others, text, runtime) = (client.clone(), query.to_owned(), tokio::runtime::Handle::current());
    let mut opened = Vec::new();
    let command = move |line: &str| match line.split_at(1) {
        (">", query) => {
            let _runtime = runtime.enter();
            opened.push(others.live(query, Vec::new()).unwrap());
        }
        ("<", _) => opened.clear(),
        _ => runtime.block_on(come_and_go(others.clone(), text.clone())),
    };
    commands(client, command, move || drop(sender));
    loop {
        let update = tokio::select! {
            update = live.next() => update,
            _ = &mut end => return Ok(()),
        };
        match update {
            Ok(Update::Rows(rows)) => {
                let rows: Vec<Vec<Value>> =
                    rows.iter().map(|row| (0..row.len()).map(|column| value(row, column)).collect()).collect();
                show(&json!({"event": "rows", "rows": rows}));
            }
            Ok(Update::Error(error)) => show_error(&error),
            Ok(Update::Disconnected { reason, retry_in }) => show_disconnected(&reason, retry_in),
            Err(error) => {
                live.next().await.unwrap_err(); // and does not wait
                show_error(&error);
                std::process::exit(1);
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (config, tls) = connection(&std::env::var("PINPOINT_DSN")?)?;
    let client = Client::new(config, tls, options());
    let result = match arguments[0].as_str() {
        "live" => live(&client, &arguments[1]).await,
        _ => subscribe(&client, &arguments[1..]).await,
    };
    client.close().await;
    if let Err(error) = result {
        show_error(&error);
        std::process::exit(1);
    }
    Ok(())
}
