//! With a server that has pg_pinpoint, on which the role of `PINPOINT_DSN` may make databases and roles.

use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pg_pinpoint::{Client, Error, Event, Live, Mode, Options, Subscription, Update};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, NoTls, Row};

#[allow(dead_code)]
#[path = "../examples/cache.rs"]
mod cache;
#[allow(dead_code)]
#[path = "../examples/job_queue.rs"]
mod job_queue;
#[allow(dead_code)]
#[path = "../examples/server_sent_events.rs"]
mod server_sent_events;

const DEADLINE: Duration = Duration::from_secs(60);

/// One at a time, because a server may have 100 connections.
static JOB_QUEUE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn connect(config: &Config) -> tokio_postgres::Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A database, which is dropped at the end.
struct Database {
    name: String,
    server: Config,
    config: Config,
    session: tokio_postgres::Client,
}

impl Database {
    /// None without a server. version: of the extension.
    async fn new(name: &str, version: Option<&str>) -> Option<Self> {
        let Ok(dsn) = std::env::var("PINPOINT_DSN") else {
            eprintln!("PINPOINT_DSN is not set");
            return None;
        };
        let name = format!("pinpoint_{name}_{}", std::process::id());
        let server: Config = dsn.parse().unwrap();
        connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let mut config = server.clone();
        config.dbname(&name);
        let session = connect(&config).await;
        let database = Database { name, server, config, session };
        if let Some(version) = version {
            database.execute(&format!("CREATE EXTENSION pg_pinpoint VERSION '{version}'")).await;
        }
        Some(database)
    }

    async fn execute(&self, statements: &str) {
        for statement in statements.split("; ") {
            self.session.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    }

    fn client(&self, options: Options) -> Client {
        Client::new(self.config.clone(), NoTls, options).unwrap()
    }

    /// Terminate the sessions of clients, and wait until they have ended.
    async fn kill(&self) {
        self.execute(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    }

    async fn drop(self) {
        let server = connect(&self.server).await;
        server.batch_execute(&format!("DROP DATABASE {} (FORCE)", self.name)).await.unwrap();
    }
}

fn options() -> Options {
    Options::default().min_backoff(Duration::from_millis(1)).max_backoff(Duration::from_millis(10))
}

async fn next(subscription: &mut Subscription) -> Event {
    timeout(DEADLINE, subscription.next()).await.expect("no event").unwrap().unwrap()
}

async fn wait_changed(subscription: &mut Subscription, channel: &str) {
    while !matches!(next(subscription).await, Event::Changed(channels) if channels.contains(channel)) {}
}

async fn wait_payload(subscription: &mut Subscription, expected: &str) {
    while !matches!(next(subscription).await, Event::Notification { payload, .. } if payload == expected) {}
}

async fn update(live: &mut Live) -> Update {
    timeout(DEADLINE, live.next()).await.expect("no event").unwrap().unwrap()
}

async fn wait_rows(live: &mut Live, condition: impl Fn(&[Row]) -> bool) {
    while !matches!(update(live).await, Update::Rows(rows) if condition(&rows)) {}
}

async fn wait_error(live: &mut Live) -> String {
    loop {
        if let Update::Error(error) = update(live).await {
            return format!("{} {error}", error.code().unwrap());
        }
    }
}

#[tokio::test]
async fn subscriptions() {
    let Some(database) = Database::new("subscriptions", Some("1.1")).await else { return };
    let client = database.client(options());
    let mut one = client.subscribe(["a"]).unwrap();
    assert!(matches!(next(&mut one).await, Event::Connected { mode: Mode::Push, standby: false, .. }));
    wait_changed(&mut one, "a").await;
    let mut two = client.subscribe(["a", "b"]).unwrap();
    wait_changed(&mut two, "b").await;
    one.add(["c"]).unwrap();
    assert!(matches!(one.add([""]), Err(Error::Channel(_))));
    wait_changed(&mut one, "c").await;
    database.execute("NOTIFY b, 'x'; NOTIFY c, 'y'").await;
    wait_payload(&mut one, "y").await;
    wait_payload(&mut two, "x").await;
    one.remove(["a", "c"]);
    database.kill().await;
    assert!(
        matches!(next(&mut two).await, Event::Disconnected { reason, .. } if reason.contains("terminating connection"))
    );
    assert!(matches!(next(&mut two).await, Event::Connected { .. }));
    let stats = client.stats();
    assert!(stats.events >= 7 && stats.dropped == 0 && stats.reconnects == 1, "{stats:?}");
    assert!(stats.quiet.unwrap() < DEADLINE);
    two.handle().close();
    while let Some(event) = timeout(DEADLINE, two.next()).await.unwrap() {
        event.unwrap();
    }
    client.close().await;
    let mut last = None;
    while let Some(event) = timeout(DEADLINE, one.next()).await.unwrap() {
        last = Some(event);
    }
    assert!(matches!(&*last.unwrap().unwrap_err(), Error::Closed));
    database.drop().await;
}

#[tokio::test]
async fn live_queries() {
    let Some(database) = Database::new("live_queries", Some("1.1")).await else { return };
    database.execute("CREATE TABLE orders (id int)").await;
    let client = database.client(options().min_interval(Duration::ZERO));
    let query = "SELECT id FROM orders WHERE id > $1";
    let mut live = client.live(query, &[(&0, Type::INT4)]).unwrap();
    assert!(wait_error(&mut live).await.starts_with("55000 the table \"orders\" is not watched"));
    let again = timeout(Duration::from_millis(200), live.next()).await;
    assert!(again.is_err(), "the same error is given again");
    database.execute("SELECT pinpoint.watch('orders')").await;
    for id in 0..4 {
        database.execute(&format!("INSERT INTO orders VALUES ({id})")).await;
        wait_rows(&mut live, |rows| rows.len() == id).await;
    }
    let mut equal = client.live(query, &[(&0, Type::INT4)]).unwrap();
    let mut other = client.live(query, &[(&2, Type::INT4)]).unwrap();
    wait_rows(&mut equal, |rows| rows.len() == 3).await;
    wait_rows(&mut other, |rows| rows.len() == 1).await;
    // Both at the same time: after the next rows, the interruption is not reported any more.
    tokio::join!(database.kill(), async { while !matches!(update(&mut live).await, Update::Disconnected { .. }) {} });
    wait_rows(&mut live, |rows| rows.len() == 3).await;
    assert!(matches!(client.live("SELECT $1", &[(&0, Type::TEXT)]), Err(error) if error.code().is_none()));
    client.close().await;
    while let Some(event) = timeout(DEADLINE, live.next()).await.unwrap() {
        assert!(event.is_ok_and(|update| matches!(update, Update::Rows(_))) || live.next().await.is_none());
    }
    database.drop().await;
}

/// Wait until the cache gives this value, and needs no session for it.
async fn wait_hit(cache: &cache::Cache, database: &Database, expected: &str) {
    let (started, no_session) = (Instant::now(), database.config.connect(NoTls).await.unwrap().0);
    while cache.name(&database.session, 1).await.unwrap() != expected || cache.name(&no_session, 1).await.is_err() {
        assert!(started.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The example: at rest, it gives the value of the table, without a query.
#[tokio::test]
async fn a_cache() {
    let Some(database) = Database::new("a_cache", Some("1.1")).await else { return };
    database.execute("CREATE TABLE products (id int, name text); SELECT pinpoint.watch('products')").await;
    database.execute("INSERT INTO products VALUES (1, '0')").await;
    let client = database.client(options());
    let cache = std::sync::Arc::new(cache::Cache::default());
    let (follower, of) = (cache.clone(), client.clone());
    let following = tokio::spawn(async move { follower.follow(&of).await });
    for n in 1..20 {
        if n % 3 == 0 {
            database.kill().await;
        }
        database.execute(&format!("UPDATE products SET name = '{n}'")).await;
        wait_hit(&cache, &database, &n.to_string()).await;
        if n % 3 == 1 {
            let (connections, started) = (client.stats().reconnects, Instant::now());
            database.kill().await;
            while client.stats().reconnects == connections {
                assert!(started.elapsed() < DEADLINE);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            wait_hit(&cache, &database, &n.to_string()).await; // also if nothing has changed
        }
    }
    client.close().await;
    assert!(matches!(&*following.await.unwrap().unwrap_err(), Error::Closed));
    database.drop().await;
}

/// Wait until a line of a response begins with this.
async fn wait_line(lines: &mut tokio::io::Lines<impl tokio::io::AsyncBufRead + Unpin>, start: &str) {
    let found =
        async { while !lines.next_line().await.unwrap().expect("the response has ended").starts_with(start) {} };
    timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("not sent: {start}"));
}

/// The example: a browser gets rows, is told when they may be old, and its query ends with its request.
#[tokio::test]
async fn server_sent_events() {
    let Some(database) = Database::new("server_sent_events", Some("1.1")).await else { return };
    database.execute("CREATE TABLE orders (id int, total int); SELECT pinpoint.watch('orders')").await;
    let client = database.client(options());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = server_sent_events::app(client.clone());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut browser = tokio::net::TcpStream::connect(address).await.unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut lines = BufReader::new(browser).lines();
    wait_line(&mut lines, "content-type: text/event-stream").await;
    wait_line(&mut lines, "data: []").await;
    database.execute("INSERT INTO orders VALUES (1, 10)").await;
    wait_line(&mut lines, r#"data: [{"id":1,"total":10}]"#).await;
    database.kill().await;
    wait_line(&mut lines, "event: stale").await;
    wait_line(&mut lines, r#"data: [{"id":1,"total":10}]"#).await;
    let listens = "SELECT count(*) FROM pinpoint.stat_channels WHERE channel LIKE '%orders%'";
    assert_ne!(database.session.query_one(listens, &[]).await.unwrap().get::<_, i64>(0), 0);
    drop(lines);
    let started = Instant::now();
    while database.session.query_one(listens, &[]).await.unwrap().get::<_, i64>(0) != 0 {
        assert!(started.elapsed() < DEADLINE, "the query does not end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.abort();
    client.close().await;
    database.drop().await;
}

/// A PgBouncer in transaction mode before a database. Its pool has place for a client and 50 workers.
struct Pooler {
    process: Child,
    folder: std::path::PathBuf,
    config: Config,
}

impl Pooler {
    /// None without PgBouncer.
    async fn start(database: &Database) -> Option<Self> {
        let server = &database.config;
        let host = match &server.get_hosts()[0] {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        };
        let port = server.get_ports().first().unwrap_or(&5432);
        let user = server.get_user().unwrap();
        let password = server.get_password().map(String::from_utf8_lossy);
        let password = password.map(|password| format!("password='{password}'")).unwrap_or_default();
        let parent = std::env::temp_dir();
        let folder = parent.join(&database.name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        let (file, shown) = (folder.join("pgbouncer.ini"), folder.display());
        let settings = format!(
            "[databases]\n* = host={host} port={port} user={user} {password}\n[pgbouncer]\n\
             unix_socket_dir = {shown}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 55\n"
        );
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new("pgbouncer");
        command.env("PATH", format!("/usr/sbin:{}", std::env::var("PATH").unwrap())).arg("-q").arg(&file);
        let owner = std::fs::metadata(&folder).unwrap().uid();
        if owner == 0 {
            // PgBouncer refuses to be root. The owner of a private TMPDIR can reach the folder; 65534 is nobody.
            let user = std::fs::metadata(parent).unwrap().uid();
            command.uid(if user == 0 { 65534 } else { user });
        }
        let Ok(process) = command.spawn() else {
            std::fs::remove_dir_all(folder).unwrap();
            return None;
        };
        let mut config = Config::new();
        config.host_path(&folder).port(6432).user("u").dbname(&database.name);
        let mut pooler = Pooler { process, folder, config };
        while !pooler.folder.join(".s.PGSQL.6432").exists() {
            assert!(pooler.process.try_wait().unwrap().is_none(), "PgBouncer does not start");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Some(pooler)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// 600 jobs by 50 workers, whose sessions are terminated in the middle of their jobs.
async fn do_jobs(database: &Database, config: &Config) {
    database.execute("CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs')").await;
    let (gate, open) = watch::channel(false);
    let (runs, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let done = Arc::new(Mutex::new(HashSet::new()));
    let (of_runs, of_running, of_done) = (runs.clone(), running.clone(), done.clone());
    let job = move |payload: String| {
        let (runs, running, done, mut open) = (of_runs.clone(), of_running.clone(), of_done.clone(), open.clone());
        async move {
            runs.fetch_add(1, Ordering::SeqCst);
            running.fetch_add(1, Ordering::SeqCst);
            open.wait_for(|open| *open).await.unwrap();
            running.fetch_sub(1, Ordering::SeqCst);
            done.lock().unwrap().insert(payload);
        }
    };
    let queue = tokio::spawn(job_queue::run(config.clone(), job));
    let until = async |what: &str, condition: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !condition() {
            assert!(!queue.is_finished() && started.elapsed() < DEADLINE, "{what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    for first in [0, 200, 400] {
        gate.send_replace(false);
        let last = first + 199;
        database.execute(&format!("INSERT INTO jobs (payload) SELECT generate_series({first}, {last})::text")).await;
        until("50 jobs run", &|| running.load(Ordering::SeqCst) == 50).await;
        if first == 200 {
            database.kill().await;
        }
        gate.send_replace(true);
        until("the jobs are done", &|| done.lock().unwrap().len() > last).await;
        let started = Instant::now();
        while database.session.query_one("SELECT count(*) FROM jobs", &[]).await.unwrap().get::<_, i64>(0) != 0 {
            assert!(started.elapsed() < DEADLINE, "a job remains");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    queue.abort();
    assert_eq!(*done.lock().unwrap(), (0..600).map(|number| number.to_string()).collect());
    assert!(runs.load(Ordering::SeqCst) >= 650, "the jobs of terminated sessions do not run again");
}

/// The example, with a connection to the server.
#[tokio::test]
async fn a_job_queue() {
    let _one = JOB_QUEUE.lock().await;
    let Some(database) = Database::new("a_job_queue", Some("1.1")).await else { return };
    do_jobs(&database, &database.config).await;
    database.drop().await;
}

/// The same behind PgBouncer.
#[tokio::test]
async fn a_job_queue_behind_a_pooler() {
    let _one = JOB_QUEUE.lock().await;
    let Some(database) = Database::new("a_pooled_job_queue", Some("1.1")).await else { return };
    match Pooler::start(&database).await {
        Some(pooler) => do_jobs(&database, &pooler.config).await,
        // Not by eprintln!, whose output is shown only if a test fails.
        None => writeln!(std::io::stderr(), "a_job_queue_behind_a_pooler is skipped: there is no PgBouncer").unwrap(),
    }
    database.drop().await;
}

/// Of 1.0, or of a role that may not use the schema.
#[tokio::test]
async fn live_queries_that_are_not_possible() {
    for (name, version) in [("old", "1.0"), ("denied", "1.1")] {
        let Some(mut database) = Database::new(name, Some(version)).await else { return };
        let role = database.name.clone();
        if name == "denied" {
            database.execute(&format!("CREATE ROLE {role} LOGIN; GRANT {role} TO CURRENT_USER")).await;
            database.execute("REVOKE USAGE ON SCHEMA pinpoint FROM PUBLIC").await;
            database.config.options(format!("-c role={role}"));
        }
        let client = database.client(options());
        let mut subscription = client.subscribe(["a"]).unwrap();
        wait_changed(&mut subscription, "a").await;
        database.execute("NOTIFY a, 'x'").await;
        wait_payload(&mut subscription, "x").await;
        let mut live = client.live("SELECT 1", &[]).unwrap();
        let text = wait_error(&mut live).await;
        let expected =
            if name == "old" { "0A000 a live query needs pg_pinpoint 1.1" } else { "42501 a live query needs" };
        assert!(text.starts_with(expected), "{text}");
        client.close().await;
        // A consumer that comes while a live query fails need not wait for the next execution.
        let hour = Duration::from_secs(3600);
        let patient = database.client(Options::default().min_backoff(hour).max_backoff(hour));
        let mut consumers = Vec::new();
        for _ in 0..2 {
            consumers.push(patient.live("SELECT 1", &[]).unwrap());
            assert_eq!(wait_error(consumers.last_mut().unwrap()).await, text);
        }
        patient.close().await;
        let server = database.server.clone();
        database.drop().await;
        if name == "denied" {
            connect(&server).await.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn idle_sessions_stay() {
    let Some(mut database) = Database::new("idle_sessions_stay", Some("1.1")).await else { return };
    database.execute("CREATE TABLE orders (id int); SELECT pinpoint.watch('orders')").await;
    let limit = Duration::from_secs(2);
    database.config.options(format!("-c idle_session_timeout={}", limit.as_millis()));
    let client = database.client(options());
    let mut subscription = client.subscribe(["a"]).unwrap();
    let mut live = client.live("SELECT id FROM orders", &[]).unwrap();
    wait_rows(&mut live, <[Row]>::is_empty).await;
    let sessions = "SELECT count(*), coalesce(min(clock_timestamp() - state_change) > '3 s', false) \
        FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let started = Instant::now();
    loop {
        let row = database.session.query_one(sessions, &[]).await.unwrap();
        assert_eq!(client.stats().reconnects, 0);
        if row.get(1) {
            assert_eq!(row.get::<_, i64>(0), 2);
            break;
        }
        assert!(started.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wait_changed(&mut subscription, "a").await;
    client.close().await;
    database.drop().await;
}

/// Without heartbeats, a live query asks for changes that are not notified, also while its connection is busy.
#[tokio::test]
async fn changes_that_are_not_notified() {
    let Some(database) = Database::new("not_notified", None).await else { return };
    let managed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../managed/pinpoint.sql");
    database.session.batch_execute(&std::fs::read_to_string(managed).unwrap()).await.unwrap();
    database
        .execute("CREATE TABLE orders (c1 int); SELECT pinpoint.watch('orders'); INSERT INTO orders VALUES (1)")
        .await;
    let client = database.client(options().check_interval(Duration::from_millis(50)).min_interval(Duration::ZERO));
    let mut other = client.subscribe(["other"]).unwrap();
    wait_changed(&mut other, "other").await;
    let mut live = client.live("SELECT * FROM orders", &[]).unwrap();
    wait_rows(&mut live, |rows| rows[0].len() == 1).await;
    for columns in 2..6 {
        database.execute(&format!("ALTER TABLE orders ADD COLUMN c{columns} int")).await;
        wait_rows(&mut live, |rows| rows[0].len() == columns).await;
    }
    let notifier = connect(&database.config).await;
    let busy = tokio::spawn(async move {
        while notifier.batch_execute("NOTIFY other").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    database.execute("ALTER TABLE orders ADD COLUMN c6 int").await;
    wait_rows(&mut live, |rows| rows[0].len() == 6).await;
    assert_eq!(client.stats().reconnects, 0);
    busy.abort();
    client.close().await;
    while let Some(Ok(event)) = timeout(DEADLINE, other.next()).await.unwrap() {
        assert!(!matches!(event, Event::Changed(_)), "the subscription is told");
    }
    database.drop().await;
}
