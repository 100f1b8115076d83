//! The conformance program over the Rust package: see ../../../README.md.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pg_pinpoint::{Client, Error, Event, Live, Mode, Options, Update};
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
            ("sslmode", "disable") => {
                config.ssl_mode(tokio_postgres::config::SslMode::Disable);
            }
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

type Setter = fn(Options, Duration) -> Options;

fn options() -> Options {
    let given: Value = serde_json::from_str(&std::env::var("PINPOINT_OPTIONS").unwrap_or("{}".to_owned())).unwrap();
    let mut options = Options::default().mode(if given["mode"] == "wait" { Mode::Wait } else { Mode::Auto });
    let setters: [(&str, Setter); 5] = [
        ("max_backoff", Options::max_backoff),
        ("check_interval", Options::check_interval),
        ("probe_timeout", Options::probe_timeout),
        ("timeout", Options::timeout),
        ("query_timeout", |options, time| options.query_timeout(Some(time))),
    ];
    for (name, set) in setters {
        if let Some(seconds) = given[name].as_f64() {
            options = set(options, Duration::from_secs_f64(seconds));
        }
    }
    match given["buffer"].as_u64() {
        Some(bytes) => options.buffer(bytes as usize),
        None => options,
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
            Ok(Event::Connected { server_version, standby, mode, .. }) => {
                let mode = if mode == Mode::Wait { "wait" } else { "push" };
                show(
                    &json!({"event": "connected", "mode": mode, "standby": standby, "server_version": server_version}),
                );
            }
            Ok(Event::Changed(channels)) => show(&json!({"event": "changed", "channels": channels})),
            Ok(Event::Notification { channel, payload, pid, .. }) => {
                show(&json!({"event": "notification", "channel": channel, "payload": payload, "pid": pid}));
            }
            Ok(Event::Disconnected { reason, retry_in, .. }) => show_disconnected(&reason, retry_in),
            Ok(event) => panic!("an unknown event: {event:?}"),
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
        if let Update::Rows(rows) = live.next().await.unwrap().unwrap() {
            return rows;
        }
    }
}

/// Consumers of live queries come and go; then another one gets rows, and two with other parameters.
async fn come_and_go(client: Client, query: String) {
    let one = |number: usize, wait: bool| {
        let (client, query) = (client.clone(), format!("{query} -- {}", number % 10));
        async move {
            let mut live = client.live(&query, &[]).unwrap();
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
    let mut lives = ["1", "2"].map(|value| client.live("SELECT $1::text", &[(&Hidden(value), Type::TEXT)]).unwrap());
    let mut rows = Vec::new();
    for live in &mut lives {
        rows.push(vec![vec![value(&rows_of(live).await[0], 0)]]);
    }
    show(&json!({"event": "parameters", "rows": rows}));
}

async fn live(client: &Client, query: &str) -> Result<(), Arc<Error>> {
    let mut live = client.live(query, &[])?;
    let (sender, mut end) = tokio::sync::oneshot::channel::<()>();
    let (others, text, runtime) = (client.clone(), query.to_owned(), tokio::runtime::Handle::current());
    let mut opened = Vec::new();
    let command = move |line: &str| match line.split_at(1) {
        (">", query) => {
            let _runtime = runtime.enter();
            opened.push(others.live(query, &[]).unwrap());
        }
        ("<", _) => opened.clear(),
        _ => runtime.block_on(come_and_go(others.clone(), text.clone())),
    };
    commands(client, command, move || drop(sender));
    loop {
        let update = tokio::select! {
            update = live.next() => update.expect("the end is an error"),
            _ = &mut end => return Ok(()),
        };
        match update {
            Ok(Update::Rows(rows)) => {
                let rows: Vec<Vec<Value>> =
                    rows.iter().map(|row| (0..row.len()).map(|column| value(row, column)).collect()).collect();
                show(&json!({"event": "rows", "rows": rows}));
            }
            Ok(Update::Error(error)) => show_error(&error),
            Ok(Update::Disconnected { reason, retry_in, .. }) => show_disconnected(&reason, retry_in),
            Ok(update) => panic!("an unknown event: {update:?}"),
            Err(error) => {
                assert!(live.next().await.is_none()); // and does not wait
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
    let client = Client::new(config, tls, options())?;
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
