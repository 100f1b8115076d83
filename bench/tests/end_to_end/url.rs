//! `--url`: a running server is measured, and nothing stays behind on it.

use nix::sys::signal::Signal;

use crate::harness::{Bench, Running, wait_until};

/// What the user of a server finds there: schemas and tables.
const OBJECTS: &str = "SELECT nspname::text FROM pg_namespace \
                       WHERE nspname LIKE 'pinpoint%' \
                       UNION ALL SELECT relname::text FROM pg_class \
                       WHERE relnamespace = 'public'::regnamespace";

/// A server that runs: one that another run of the program has made.
struct RunningServer {
    bench: Bench,
    owner: Running,
}

impl RunningServer {
    fn start() -> Self {
        let bench = Bench::new();
        let owner = bench.start("pingpong --target a=pg_config --idle-listeners=0 --duration=1000");
        bench.wait_for_pingpong("a");
        Self { bench, owner }
    }

    fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// A host that is a folder is written so. The password is not asked for.
    fn url_for(&self, user: &str) -> String {
        let folder = self.bench.cluster("a").unwrap();
        let host = folder.to_str().unwrap().replace('/', "%2F");
        format!("postgresql://{user}:secret@{host}/postgres")
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_eq!(self.bench.query("a", OBJECTS).unwrap(), [""; 0]);
    }

    fn stop(self) {
        self.bench.assert_stops(self.owner, Signal::SIGINT);
    }
}

/// Each has channels, and pgbench's or its own sessions; one has tables.
#[test]
fn every_kind_of_benchmark_measures_a_running_server() {
    let server = RunningServer::start();
    let url = server.url();
    for command_line in [
        "channels --channels=3 --transactions=2 --warmup-transactions=0",
        "hub --listeners=3 --transactions=2 --warmup-transactions=0",
        "multicast --group=1,2 --idle-listeners=3 --duration=0.1",
        "queue --listeners=2 --writers=2 --duration=1",
        "listen --connections=2 --duration=1 --warmup=0",
        "overhead --connections=2 --duration=1 --warmup=0",
    ] {
        let bench = Bench::new();
        let output = bench.run(&format!("{command_line} --runs=1 --url {url}"));
        bench.assert_succeeded(&output);
        server.assert_nothing_left();
    }
    server.stop();
}

#[test]
fn a_running_server_is_measured_and_left_as_it_was() {
    let server = RunningServer::start();
    for sql in [
        "CREATE ROLE ordinary LOGIN",
        "GRANT CREATE ON DATABASE postgres TO ordinary",
    ] {
        server.bench.query("a", sql).unwrap();
    }
    let bench = Bench::new();
    let output = bench.run(&format!(
        "commit --url {} --writers=2 --duration=1 --warmup=0 --runs=1 \
         --json @json",
        server.url_for("ordinary")
    ));
    bench.assert_succeeded(&output);
    server.assert_nothing_left();

    let report = bench.json();
    assert!(!report.to_string().contains("secret"), "{report}");
    let target = &report["targets"][0];
    assert_eq!(target["name"], "server");
    assert!(target["pg_config"].is_null());
    let url = target["url"].as_str().unwrap();
    let without_password = server.url_for("ordinary").replace(":secret", "");
    let (host, database) = without_password.rsplit_once('/').unwrap();
    assert_eq!(url, format!("{host}:5432/{database}"));
    let run = &report["points"][0]["series"][0]["runs"][0];
    assert!(run["notify_tps"].as_f64().unwrap() > 0.0, "{run}");
    server.stop();
}

#[test]
fn two_urls_are_compared() {
    let server = RunningServer::start();
    let bench = Bench::new();
    let output = bench.run(&format!(
        "pingpong --url one={} --url two={}?options=-c%20work_mem%3D7MB \
         --idle-listeners=0,3 --duration=50ms --warmup=0 --runs=1 --json @json",
        server.url(),
        server.url()
    ));
    bench.assert_succeeded(&output);
    let report = bench.json();
    // One server twice, told apart by the settings of its sessions.
    let [one, two] = [0, 1].map(|target| &report["targets"][target]);
    assert!(one["settings"]["work_mem"].is_null(), "{one}");
    assert_eq!(two["settings"]["work_mem"], "7MB");
    let url = two["url"].as_str().unwrap();
    assert!(url.ends_with("?options=-c%20work_mem%3D7MB"), "{url}");
    for point in report["points"].as_array().unwrap() {
        let ratio = &point["series"][1]["ratio"]["round_trips_per_sec"];
        assert!(ratio["median"].as_f64().unwrap() > 0.0, "{point}");
    }
    server.assert_nothing_left();
    server.stop();
}

#[test]
fn ctrl_c_removes_the_schema() {
    let server = RunningServer::start();
    let bench = Bench::new();
    let running = bench.start(&format!(
        "commit --url {} --writers=2 --duration=1000",
        server.url()
    ));
    let load = "SELECT pid::text FROM pg_stat_activity \
                WHERE application_name = 'pgbench' AND query <> ''";
    wait_until("pgbench writes", || {
        !server.bench.query("a", load).unwrap().is_empty()
    });
    let schemas = server.bench.query("a", OBJECTS).unwrap();
    assert_eq!(schemas.len(), 1, "{schemas:?}");

    bench.assert_stops(running, Signal::SIGINT);
    server.assert_nothing_left();
    server.stop();
}

#[test]
fn an_error_removes_the_schema() {
    let server = RunningServer::start();
    let bench = Bench::new();
    let running = bench.start(&format!(
        "pingpong --url {} --idle-listeners=3 --duration=1000",
        server.url()
    ));
    let terminate = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
                     WHERE query LIKE 'NOTIFY pinpoint_bench%ping,%'";
    wait_until("a session that takes part can be terminated", || {
        !server.bench.query("a", terminate).unwrap().is_empty()
    });
    bench.assert_fails(running, "with 3 idle listeners");
    server.assert_nothing_left();
    server.stop();
}

#[test]
fn a_server_without_room() {
    let server = RunningServer::start();
    let bench = Bench::new();
    let output = bench.run(&format!(
        "pingpong --url {} --idle-listeners=100",
        server.url()
    ));
    bench.assert_failed(
        &output,
        "more sessions, but the benchmark needs 105: raise max_connections",
    );
    server.assert_nothing_left();
    server.stop();
}

#[test]
fn a_user_who_may_not_make_a_schema() {
    let server = RunningServer::start();
    server.bench.query("a", "CREATE ROLE nobody LOGIN").unwrap();
    let bench = Bench::new();
    let output = bench.run(&format!(
        "pingpong --url {} --idle-listeners=0",
        server.url_for("nobody")
    ));
    bench.assert_failed(
        &output,
        "the user needs the privilege CREATE on the database",
    );
    server.stop();
}

#[test]
fn a_url_where_nothing_answers() {
    let bench = Bench::new();
    let output = bench.run("pingpong --url postgresql://me:secret@%2Fnowhere/db");
    bench.assert_failed(
        &output,
        "could not connect to server=postgresql://me@%2Fnowhere:5432/db: start that server, or \
         correct --url: error connecting to server: No such file or directory",
    );
}

#[test]
fn contradictions_and_nonsense() {
    let url = "postgresql://h/d";
    for (arguments, message) in [
        (
            format!("--url {url} --target=a=pg_config"),
            "cannot be used with",
        ),
        (
            format!("--url {url} --setting=fsync=off"),
            "cannot be used with",
        ),
        (
            format!("--url {url} --url=postgresql://i/d"),
            "two targets are named \"server\"",
        ),
        ("--url h".to_owned(), "expected postgresql://"),
    ] {
        let bench = Bench::new();
        let output = bench.run(&format!("pingpong {arguments}"));
        bench.assert_failed(&output, message);
    }
}
