//! Whatever cannot be done: exit code 2, a sentence with the remedy, and
//! nothing left behind.

use std::fs::{self, File};
use std::process::Command;

use crate::harness::Bench;

#[track_caller]
fn refuses(command_line: &str, message: &str) {
    let bench = Bench::new();
    let output = bench.run(command_line);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    bench.assert_failed(&output, message);
}

#[test]
fn no_subcommand() {
    let output = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
        .output()
        .unwrap();
    Bench::new().assert_failed(&output, "Usage: pinpoint-bench <COMMAND>");
}

#[test]
fn an_unknown_subcommand() {
    let output = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
        .arg("pingpang")
        .output()
        .unwrap();
    Bench::new().assert_failed(&output, "similar subcommand exists: 'pingpong'");
}

#[test]
fn nonsense_on_the_command_line() {
    for (command_line, message) in [
        (
            "pingpong --idle-listeners many",
            "invalid value 'many' for '--idle-listeners <N,N,...>'",
        ),
        (
            "pingpong --target pg_config",
            "expected NAME=PG_CONFIG, followed by",
        ),
        (
            "pingpong --target a=pg_config,port=1",
            "port is set by pinpoint-bench itself",
        ),
        ("channels --channels 0", "0 is not in 1..=1000000"),
        ("channels --transactions 0", "for '--transactions <N>'"),
        ("listeners --listeners 0", "0 is not in 1..="),
        (
            "listeners --idle-sessions 1,2",
            "--idle-sessions has several numbers, but it is --listeners that varies",
        ),
        ("idle --idle-sessions many", "'many' is not a whole number"),
        ("hub --transactions 0", "for '--transactions <N>'"),
        ("multicast --group 1,,2", "for '--group <N,N,...>'"),
        (
            "multicast --idle-listeners 1,2",
            "--idle-listeners has several numbers, but it is --group that varies",
        ),
        ("multicast --duration 0", "must be more than 0"),
        ("listen --workload listen_twice", "listen_unique"),
        ("decode --workload both", "single_transaction"),
        // Nobody waits for so long.
        ("hub --warmup-transactions 4294967295", "invalid value"),
        ("channels --transactions 4294967295", "invalid value"),
        ("pingpong --warmup 1.8e19", "invalid value"),
        ("pingpong --duration 2d", "invalid value"),
    ] {
        refuses(command_line, message);
    }
}

#[test]
fn two_targets_of_one_name() {
    refuses(
        "pingpong --target a=pg_config --target a=pg_config,fsync=off",
        "two targets are named \"a\": give each --target or --url a name of its own",
    );
}

#[test]
fn a_missing_pg_config() {
    refuses(
        "pingpong --pg-config /nowhere/pg_config",
        "could not run \"/nowhere/pg_config\": install PostgreSQL's server development package",
    );
}

#[test]
fn a_pg_config_without_a_server() {
    let bench = Bench::new();
    let pg_config = bench.script("pg_config", "printf '/nowhere/%s\\n' bin lib share");
    let output = bench.run(&format!(
        "pingpong --pg-config {}",
        pg_config.to_str().unwrap()
    ));
    bench.assert_failed(
        &output,
        "the program \"/nowhere/bin/initdb\" does not exist: install initdb (it comes with the \
         PostgreSQL server,",
    );
}

#[test]
fn an_initdb_that_fails() {
    let bench = Bench::new();
    bench.script("initdb", "echo 'no way' >&2; exit 7");
    let postgres = bench.script("postgres", "exit 8");
    let folder = postgres.parent().unwrap().display();
    let pg_config = bench.script("pg_config", &format!("printf '{folder}%s\\n' '' '' ''"));
    let output = bench.run(&format!("pingpong --target a={}", pg_config.display()));
    bench.assert_failed(
        &output,
        "initdb failed for target \"a\" (exit status: 7); fix the error that it reports:\n  no way",
    );
}

#[test]
fn a_library_that_is_not_installed() {
    refuses(
        "pingpong --target a=pg_config,preload=no_such_library",
        "the library \"no_such_library\" of target \"a\" is not installed in",
    );
}

#[test]
fn an_extension_that_is_not_installed() {
    refuses(
        "pingpong --target a=pg_config,extension=no_such_extension",
        "(make install PG_CONFIG=pg_config, in its source tree)",
    );
}

#[test]
fn an_extension_that_cannot_be_created() {
    refuses(
        "pingpong --target a=pg_config,extension=plpgsql",
        "extension \"plpgsql\" already exists",
    );
}

#[test]
fn a_setting_that_the_server_refuses() {
    refuses(
        "pingpong --target a=pg_config --setting no_such_setting=1",
        "unrecognized configuration parameter \"no_such_setting\"",
    );
}

/// The server starts with these, and only writes a warning to its log.
#[test]
fn a_setting_that_the_server_ignores() {
    let pinpoint = "pingpong --target a=pg_config,preload=pg_pinpoint,extension=pg_pinpoint";
    for (setting, remedy, warning) in [
        (
            "pinpoint.latency_target=nonsense",
            "ignores pinpoint.latency_target = 'nonsense': setting could not be applied; \
             give a name and a value that it accepts",
            "invalid value for parameter \"pinpoint.latency_target\": \"nonsense\"",
        ),
        (
            "pinpoint.queue_size=1",
            "ignores pinpoint.queue_size = '1'",
            "is outside the valid range for parameter \"pinpoint.queue_size\"",
        ),
        (
            "pinpoint.no_such_setting=1",
            "ignores pinpoint.no_such_setting = '1'",
            "invalid configuration parameter name \"pinpoint.no_such_setting\"",
        ),
    ] {
        let bench = Bench::new();
        let output = bench.run(&format!("{pinpoint} --setting {setting}"));
        bench.assert_failed(&output, remedy);
        bench.assert_failed(&output, warning);
    }
}

#[test]
fn a_library_setting_for_a_server_without_the_library() {
    Bench::new().report(
        "pingpong --target a=pg_config --setting pinpoint.fold=on --idle-listeners=0 \
            --duration=50ms --warmup=0 --runs=1",
    );
}

#[test]
fn more_sessions_than_descriptors() {
    for (command_line, message) in [
        (
            "pingpong --idle-listeners 500",
            "1006 connections need 1070 file descriptors, but the hard limit is 256: \
             raise it (ulimit -Hn 1070, as root) or ask for fewer sessions",
        ),
        (
            "hub --listeners 500",
            "1004 connections need 1068 file descriptors, but the hard limit is 256",
        ),
    ] {
        let bench = Bench::new();
        let program = bench.command(command_line);
        let mut limited = Command::new("sh");
        limited
            .args(["-c", "ulimit -n 256 && exec \"$@\"", "sh"])
            .arg(program.get_program())
            .args(program.get_args());
        bench.assert_failed(&limited.output().unwrap(), message);
    }
}

#[test]
fn a_folder_that_does_not_exist() {
    let bench = Bench::new();
    let output = Command::new(env!("CARGO_BIN_EXE_pinpoint-bench"))
        .args(["pingpong", "--target=a=pg_config", "--temp-dir=/nowhere"])
        .output()
        .unwrap();
    bench.assert_failed(
        &output,
        "could not make a temporary folder in /nowhere: name another with --temp-dir",
    );
}

#[test]
fn results_that_cannot_be_written() {
    let bench = Bench::new();
    let output = bench.run("pingpong --target a=pg_config --json /nowhere/json");
    bench.assert_failed(
        &output,
        "could not write to \"/nowhere/json\": name a file that can be written",
    );
}

#[test]
fn a_full_disk_under_standard_output() {
    let bench = Bench::new();
    let output = bench
        .command(
            "pingpong --target a=pg_config --idle-listeners 0 --duration 50ms --warmup 0 \
                --runs 1 --json @json",
        )
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    bench.assert_failed(
        &output,
        "could not write to standard output: No space left on device",
    );
    assert!(fs::metadata(bench.result("json")).unwrap().len() > 0);
}

#[test]
fn a_full_disk_under_the_file_leaves_the_tables() {
    let bench = Bench::new();
    let output = bench.run(
        "pingpong --target=a=pg_config --idle-listeners=0 --duration=50ms --warmup=0 \
            --runs=1 --json=/dev/full",
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("round trips per second"), "{stdout}");
    bench.assert_failed(
        &output,
        "could not write to \"/dev/full\": name a file that can be written: No space left on device",
    );
}
