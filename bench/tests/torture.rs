//! The torture as a person starts it: it passes servers that are right, and
//! catches one that is not.
//!
//! Needs PostgreSQL's server and server development package with its
//! `pg_config` on the PATH, contrib's test_decoding, and pg_pinpoint installed.
//! The tests planted_fault need a server with assertions.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// For whatever has to happen sooner or later.
const DEADLINE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One torture at a time is enough for a machine.
static MACHINE: Mutex<()> = Mutex::new(());

struct Torture {
    _machine: MutexGuard<'static, ()>,
    temp_dir: TempDir,
}

/// How it ended.
struct Verdict {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Torture {
    fn new() -> Self {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        // The servers of a program that root starts belong to another user.
        let temp_dir = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        Self {
            _machine: machine,
            temp_dir,
        }
    }

    /// What `torture check` finds in a recorded run.
    fn check(&self, arguments: &[&str]) -> Verdict {
        let output = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
            .args(["torture", "check"])
            .args(arguments)
            .output()
            .unwrap();
        Verdict::of(output)
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.start_with_timeout("120", arguments)
    }

    fn start_with_timeout(&self, timeout: &str, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
            .args(["torture", "--timeout", timeout])
            .args(arguments)
            .arg("--temp-dir")
            .arg(self.temp_dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits for the end, after which nothing may be left.
    fn finish(&self, child: Child) -> Verdict {
        let verdict = Verdict::of(child.wait_with_output().unwrap());
        assert_eq!(self.leftovers(), [""; 0].map(PathBuf::from));
        verdict
    }

    fn run(&self, arguments: &[&str]) -> Verdict {
        self.finish(self.start(arguments))
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temp_dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// The content of a file of the cluster, once it is there.
    fn read(&self, path: &str) -> Option<String> {
        self.leftovers()
            .iter()
            .find_map(|workspace| fs::read_to_string(workspace.join(path)).ok())
    }
}

impl Verdict {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    fn assert_passed(&self) {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert!(self.stdout.contains(": passed"), "{}", self.stdout);
        for what in ["committed", "notifications", "complete_intervals"] {
            assert!(self.number(what) > 0, "{}", self.stdout);
        }
    }

    /// Clients were told that something is unchanged, and that was checked.
    fn assert_positions_checked(&self) {
        assert!(self.number("unchanged") > 0, "{}", self.stdout);
    }

    /// The line that tells which difference was found.
    fn difference(&self) -> &str {
        assert_eq!(self.code, Some(1), "{}{}", self.stdout, self.stderr);
        let mut lines = self.stdout.lines();
        lines
            .find(|line| line.starts_with("Difference"))
            .unwrap_or_else(|| panic!("{}", self.stdout))
    }

    /// A number of the summary.
    fn number(&self, name: &str) -> u64 {
        let mut lines = self.stdout.lines().map(str::trim_start);
        lines
            .find_map(|line| line.strip_prefix(&format!("\"{name}\": ")))
            .and_then(|number| number.trim_end_matches(',').parse().ok())
            .unwrap_or_else(|| panic!("no number of {name} in {}", self.stdout))
    }
}

#[test]
fn stock_passes() {
    let verdict = Torture::new().run(&[
        "--seed",
        "11",
        "--duration",
        "5",
        "--target",
        "stock=pg_config",
    ]);
    verdict.assert_passed();
    assert!(verdict.stdout.starts_with("stock: seed 11\n"));
    assert_eq!(verdict.number("questions"), 0, "{}", verdict.stdout);
}

#[test]
fn pinpoint_passes_and_its_record_too() {
    let torture = Torture::new();
    let files = tempfile::tempdir().unwrap();
    let record = files.path().join("record");
    let record = record.to_str().unwrap();
    let verdict = torture.run(&["--seed=12", "--duration=4s", "--record", record]);
    verdict.assert_passed();
    verdict.assert_positions_checked();

    let checked = torture.check(&[record]);
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    let notifications = verdict.number("notifications");
    let count = format!("{notifications} notifications received");
    assert!(checked.stdout.contains(&count), "{}", checked.stdout);
}

/// A publication leaves its signals to the waker if it has more than a few, so it takes
/// many listeners and few channels. Who is not woken stays asleep.
#[test]
fn planted_fault_drop_signals_is_caught() {
    let torture = Torture::new();
    let child = torture.start_with_timeout(
        "20",
        &[
            "--seed=13",
            "--duration=600",
            "--listeners=40",
            "--channels=2",
            "--fault=drop_signals",
        ],
    );
    let verdict = torture.finish(child);
    let Verdict {
        code,
        stdout,
        stderr,
    } = &verdict;
    assert_eq!(*code, Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("waited 20s in vain for fence"), "{stdout}");
    assert!(stdout.contains("with seed 13"), "{stdout}");
}

#[test]
fn planted_fault_arrival_order_is_caught() {
    let torture = Torture::new();
    let files = tempfile::tempdir().unwrap();
    let record = files.path().join("record");
    let record = record.to_str().unwrap();
    let fault = "--fault=arrival_order";
    let verdict = torture.run(&["--seed=14", "--duration=600", fault, "--record", record]);
    for text in [
        "\nExpected, in commit order:\n",
        "\nReceived:\n",
        "\n> ",
        "with seed 14",
    ] {
        assert!(verdict.stdout.contains(text), "{}", verdict.stdout);
    }
    let line = verdict.difference();
    assert!(line.starts_with("Difference at listener "), "{line}");
    assert_eq!(torture.check(&[record]).difference(), line);
}

/// What is given to somebody, who may leave before he has read it.
#[test]
fn listeners_that_share_pass() {
    let verdict = Torture::new().run(&["--seed=17", "--duration=4", "--sharing"]);
    verdict.assert_passed();
    assert!(verdict.number("to_give") > 0, "{}", verdict.stdout);
}

/// It is replayed after a pause, after a restart, and during the promotion.
#[test]
fn listeners_on_a_standby_pass() {
    let verdict = Torture::new().run(&["--seed=15", "--duration=10", "--standby"]);
    verdict.assert_passed();
    verdict.assert_positions_checked();
    assert!(verdict.number("pauses") > 0, "{}", verdict.stdout);
    assert_eq!(verdict.number("restarts"), 2, "{}", verdict.stdout);
}

/// Also what is not replicated is counted, and forged heartbeats are not believed.
#[test]
fn positions_are_right_when_replication_is_switched() {
    let verdict = Torture::new().run(&[
        "--seed=20",
        "--duration=10",
        "--standby",
        "--switch-replication",
        "--position-clients=8",
    ]);
    verdict.assert_passed();
    verdict.assert_positions_checked();
    assert!(verdict.number("switches") > 0, "{}", verdict.stdout);
    assert_eq!(verdict.number("restarts"), 5, "{}", verdict.stdout);
}

/// Each server gives to its own.
#[test]
fn listeners_on_a_standby_that_share_pass() {
    let arguments = ["--seed=18", "--duration=10", "--standby", "--sharing"];
    let verdict = Torture::new().run(&arguments);
    verdict.assert_passed();
    for what in ["to_give", "pauses"] {
        assert!(verdict.number(what) > 0, "{}", verdict.stdout);
    }
}

/// With listeners on both servers, what is wrong on the primary is still found.
#[test]
fn planted_fault_is_caught_with_a_standby() {
    let torture = Torture::new();
    let verdict = torture.run(&[
        "--seed=16",
        "--duration=600",
        "--standby",
        "--fault=arrival_order",
    ]);
    let line = verdict.difference();
    assert!(line.starts_with("Difference at listener "), "{line}");
}

/// Each of them leaves a change unreported.
#[test]
fn planted_faults_of_positions_are_caught() {
    let torture = Torture::new();
    let files = tempfile::tempdir().unwrap();
    let record = files.path().join("record");
    let record = record.to_str().unwrap();
    for fault in ["missing_place", "counter_first", "count_late"] {
        let verdict = torture.run(&[
            "--seed=19",
            "--duration=600",
            "--fault",
            fault,
            "--record",
            record,
        ]);
        let line = verdict.difference();
        assert!(line.starts_with("Difference: position client "), "{line}");
        assert_eq!(torture.check(&[record]).difference(), line);
    }
}

#[test]
fn what_is_no_record() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let verdict = Torture::new().check(&[file.path().to_str().unwrap()]);
    assert_eq!(verdict.code, Some(2));
    assert!(verdict.stderr.contains("--record has written"));
}

#[test]
fn a_crash_of_the_server_is_a_finding() {
    let torture = Torture::new();
    let child = torture.start(&["--duration", "600"]);
    let deadline = Instant::now() + DEADLINE;
    let postmaster = loop {
        assert!(Instant::now() < deadline, "the server does not start");
        // The last line tells that it accepts connections.
        if let Some(content) = torture.read("pinpoint/data/postmaster.pid")
            && content.trim_end().ends_with("ready")
        {
            break content.lines().next().unwrap().parse().unwrap();
        }
        sleep(POLL_INTERVAL);
    };
    while !torture
        .read("pinpoint/data/postgresql.auto.conf")
        .is_some_and(|settings| settings.contains("synchronous_standby_names"))
    {
        assert!(Instant::now() < deadline, "the torture does not begin");
        sleep(POLL_INTERVAL);
    }
    kill(Pid::from_raw(postmaster), Signal::SIGKILL).unwrap();

    let verdict = torture.finish(child);
    assert_eq!(
        verdict.code,
        Some(1),
        "{}{}",
        verdict.stdout,
        verdict.stderr
    );
    for text in ["the server of target \"pinpoint\"", "signal: 9", "FAILED"] {
        assert!(verdict.stdout.contains(text), "{}", verdict.stdout);
    }
}

#[test]
fn modes_that_stock_does_not_have() {
    for mode in ["--standby", "--sharing"] {
        let verdict = Torture::new().run(&["--target", "stock=pg_config", mode]);
        assert_eq!(verdict.code, Some(2));
        let remedy = format!("leave out {mode}, or add preload=pg_pinpoint");
        assert!(verdict.stderr.contains(&remedy), "{}", verdict.stderr);
    }
}

#[test]
fn a_fault_cannot_be_planted_in_stock() {
    for target in ["stock=pg_config", "stock=pg_config,preload=pg_pinpoint"] {
        let arguments = ["--target", target, "--fault", "drop_signals"];
        let verdict = Torture::new().run(&arguments);
        assert_eq!(verdict.code, Some(2));
        assert_eq!(
            verdict.stderr,
            "error: --fault is for pg_pinpoint only, and target \"stock\" does not \
             have that: leave out --fault, or add preload=pg_pinpoint,extension=pg_pinpoint\n"
        );
    }
}
