//! What the client makes of a server that gives odd answers: clients/conformance/fake_server.py.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pg_pinpoint::{Client, Error, Event, Options};
use tokio_postgres::NoTls;

struct FakeServer {
    process: Child,
    port: u16,
}

impl FakeServer {
    /// None without Python or the repository.
    fn start(script: &str) -> Option<Self> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/fake_server.py");
        let mut command = Command::new("python3");
        command.args([program, script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().ok()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take()?).read_line(&mut line).ok()?;
        Some(FakeServer { process, port: line.trim().parse().ok()? })
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Each attempt is told, with a reason, until there are too many.
async fn attempts_are_told(script: &str) {
    const ATTEMPTS: u32 = 20;
    let Some(server) = FakeServer::start(script) else { return eprintln!("there is no fake server") };
    let config = format!("host=127.0.0.1 port={} user=nobody sslmode=disable", server.port);
    let moment = Duration::from_millis(1);
    let options = Options::default().min_backoff(moment).max_backoff(moment).max_attempts(Some(ATTEMPTS));
    let client = Client::new(config.parse().unwrap(), NoTls, options.timeout(Duration::from_millis(500))).unwrap();
    let mut subscription = client.subscribe(["a"]).unwrap();
    let mut told = 0;
    let error = loop {
        match tokio::time::timeout(Duration::from_secs(30), subscription.next()).await.expect("silence").unwrap() {
            Ok(Event::Disconnected { reason, .. }) => {
                assert!(!reason.is_empty());
                told += 1;
            }
            Ok(event) => panic!("{event:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&*error, Error::Postgres(_) | Error::Lost(_)), "{error:?}");
    assert_eq!(told, ATTEMPTS);
}

macro_rules! scripts {
    ($($script:ident)*) => {
        $(#[tokio::test]
        async fn $script() {
            attempts_are_told(stringify!($script)).await;
        })*
    };
}

scripts! { no_code short_code cut unknown_messages authentication_methods }
