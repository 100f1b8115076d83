//! Starts the program with a temporary folder of its own, and finds out what
//! it has left there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

/// For whatever has to happen sooner or later.
const DEADLINE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// For an answer of a server that has a session stopped.
const FREEZE_DEADLINE: Duration = Duration::from_secs(1);

/// The session of a ping-pong that answers.
pub const PLAYER: &str = "SELECT pid::text FROM pg_stat_activity WHERE query LIKE 'NOTIFY ping,%'";

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        sleep(POLL_INTERVAL);
    }
}

/// A folder for temporary files, and another one for results.
pub struct Bench {
    temp_dir: TempDir,
    results: TempDir,
}

/// Whatever cannot be done ends with exit code 2 and says why.
#[track_caller]
fn assert_failure(status: ExitStatus, stderr: &str, message: &str) {
    assert!(
        stderr.contains(message),
        "expected {message:?}, got:\n{stderr}"
    );
    assert_eq!(status.code(), Some(2), "{stderr}");
}

/// A figure of a run, or another number in an object.
#[track_caller]
pub fn number(object: &Value, name: &str) -> f64 {
    let number = object[name].as_f64();
    number.unwrap_or_else(|| panic!("no {name} in {object}"))
}

impl Bench {
    pub fn new() -> Self {
        // The servers of a program that root starts belong to another user.
        let open_to_all = || {
            tempfile::Builder::new()
                .permissions(Permissions::from_mode(0o755))
                .tempdir()
                .unwrap()
        };
        Self {
            temp_dir: open_to_all(),
            results: open_to_all(),
        }
    }

    /// `pinpoint-bench` with this command line, and its temporary files in our folder. `@NAME`
    /// stands for the path of a result.
    pub fn command(&self, command_line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"));
        for word in command_line.split_whitespace() {
            match word.strip_prefix('@') {
                Some(name) => command.arg(self.result(name)),
                None => command.arg(word),
            };
        }
        command
            .arg("--temp-dir")
            .arg(self.temp_dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, command_line: &str) -> Output {
        self.command(command_line).output().unwrap()
    }

    /// Starts the program.
    pub fn start(&self, command_line: &str) -> Running {
        let stderr = self.result("stderr");
        let child = self
            .command(command_line)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Running { child, stderr }
    }

    /// Measures with this command line, and returns the report.
    #[track_caller]
    pub fn report(&self, command_line: &str) -> Value {
        let output = self.run(&format!("{command_line} --json @json"));
        self.assert_succeeded(&output);
        self.json()
    }

    /// A path for a file of results.
    pub fn result(&self, name: &str) -> PathBuf {
        self.results.path().join(name)
    }

    /// Makes a program out of a few lines of shell.
    pub fn script(&self, name: &str, lines: &str) -> PathBuf {
        let path = self.result(name);
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// What is in the folder for temporary files.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temp_dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// The processes of all servers that run in our folder. PostgreSQL's
    /// processes have their data directory as the current one.
    pub fn server_processes(&self) -> Vec<Pid> {
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // Fails for processes of others, and for those that have just ended.
            if let Ok(folder) = fs::read_link(entry.path().join("cwd"))
                && folder.starts_with(self.temp_dir.path())
            {
                processes.push(Pid::from_raw(pid));
            }
        }
        processes
    }

    pub fn assert_nothing_left(&self) {
        assert_eq!(self.leftovers(), [""; 0].map(PathBuf::from));
        wait_until("the last server process ends", || {
            self.server_processes().is_empty()
        });
    }

    /// What the program has written into the result "json".
    pub fn json(&self) -> Value {
        let content = fs::read_to_string(self.result("json")).unwrap();
        serde_json::from_str(&content).unwrap()
    }

    /// The program has done what it should, and left nothing behind.
    #[track_caller]
    pub fn assert_succeeded(&self, output: &Output) {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        self.assert_nothing_left();
    }

    /// The program has failed with this message, and left nothing behind.
    #[track_caller]
    pub fn assert_failed(&self, output: &Output, message: &str) {
        let stderr = std::str::from_utf8(&output.stderr).unwrap();
        assert_failure(output.status, stderr, message);
        self.assert_nothing_left();
    }

    /// The same of a program that is still running.
    #[track_caller]
    pub fn assert_fails(&self, running: Running, message: &str) {
        let (status, stderr) = running.wait();
        assert_failure(status, &stderr, message);
        self.assert_nothing_left();
    }

    /// A running program is stopped by a signal, and leaves nothing behind. Returns what it
    /// says.
    #[track_caller]
    pub fn assert_stops(&self, running: Running, signal: Signal) -> String {
        running.signal(signal);
        let (status, stderr) = running.wait();
        assert_eq!(status.code(), Some(128 + signal as i32), "{stderr}");
        self.assert_nothing_left();
        stderr
    }

    /// The folder of a target's cluster, once there is one.
    pub fn cluster(&self, target: &str) -> Option<PathBuf> {
        self.leftovers()
            .into_iter()
            .map(|workspace| workspace.join(target))
            .find(|cluster| cluster.is_dir())
    }

    /// The process number of a target's postmaster.
    pub fn postmaster(&self, target: &str) -> Pid {
        let cluster = self.cluster(target).expect("the cluster is there");
        let content = fs::read_to_string(cluster.join("data/postmaster.pid")).unwrap();
        Pid::from_raw(content.lines().next().unwrap().parse().unwrap())
    }

    /// What a query of one column gives on a target's server, or `None` if
    /// that is not up yet.
    pub fn query(&self, target: &str, sql: &str) -> Option<Vec<String>> {
        let cluster = self.cluster(target)?;
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(cluster)
            .port(5432)
            .user("postgres")
            .dbname("postgres");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await.ok()?;
            tokio::spawn(connection);
            match client.query(sql, &[]).await {
                Ok(rows) => Some(rows.iter().map(|row| row.get(0)).collect()),
                // The server has gone meanwhile.
                Err(error) if error.as_db_error().is_none() => None,
                Err(error) if error.code() == Some(&SqlState::ADMIN_SHUTDOWN) => None,
                Err(error) if error.code() == Some(&SqlState::CRASH_SHUTDOWN) => None,
                Err(error) => panic!("{sql}: {error}"),
            }
        })
    }

    /// Stops a session, the process number of which a query gives, where it waits
    /// for its client. Stopped elsewhere it could hold a lock that others need.
    pub fn freeze(&self, target: &str, sql: &str) {
        wait_until("a session can be stopped where it waits", || {
            let Some(pid) = self.query(target, sql).and_then(|mut pids| pids.pop()) else {
                return false;
            };
            let session = Pid::from_raw(pid.parse().unwrap());
            kill(session, Signal::SIGSTOP).unwrap();
            let wait_event = format!(
                "SELECT coalesce(wait_event, '')::text FROM pg_stat_activity WHERE pid = {pid}"
            );
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                scope.spawn(move || {
                    let _ = sender.send(self.query(target, &wait_event));
                });
                // Nobody answers if the session holds what everybody needs.
                let answer = receiver.recv_timeout(FREEZE_DEADLINE).ok().flatten();
                let is_waiting = answer.is_some_and(|events| events == ["ClientRead"]);
                if !is_waiting {
                    kill(session, Signal::SIGCONT).unwrap();
                }
                is_waiting
            })
        });
    }

    /// Waits until notifications go back and forth on a target's server, and
    /// returns the process number of a session that takes part.
    pub fn wait_for_pingpong(&self, target: &str) -> Pid {
        let mut player = None;
        wait_until("notifications are sent", || {
            player = self.query(target, PLAYER).and_then(|mut pids| pids.pop());
            player.is_some()
        });
        Pid::from_raw(player.unwrap().parse().unwrap())
    }
}

impl Drop for Bench {
    /// A test that failed must not leave servers behind, whatever the program did.
    fn drop(&mut self) {
        for process in self.server_processes() {
            let _ = kill(process, Signal::SIGKILL);
        }
    }
}

/// The program while it runs.
pub struct Running {
    child: Child,
    stderr: PathBuf,
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end, and returns the status and what standard error has.
    pub fn wait(self) -> (ExitStatus, String) {
        self.wait_while(|| ())
    }

    /// The same, and does something again and again meanwhile.
    pub fn wait_while(mut self, mut meanwhile: impl FnMut()) -> (ExitStatus, String) {
        let mut status = None;
        wait_until("the program ends", || {
            meanwhile();
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), fs::read_to_string(&self.stderr).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Does nothing if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
