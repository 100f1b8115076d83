//! What a server under valgrind writes about each of its processes: the instructions
//! that it has executed, by program and library (callgrind), and its system calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use pinpoint_servers::connection::within;
use pinpoint_servers::running::on_path;

const PROGRAM: &str = "valgrind";

/// What runs a server. Its processes write their files to the server's folder.
pub const WRAPPER: &[&str] = &[
    PROGRAM,
    "--tool=callgrind",
    "--callgrind-out-file=callgrind.%p",
    "--trace-syscalls=yes",
    "--log-file=valgrind.%p",
];

/// How the names of pg_pinpoint's libraries begin.
const LIBRARIES: &str = "pg_pinpoint";

/// Valgrind makes system calls of these; otherwise they are none.
const CLOCKS: [&str; 2] = ["sys_clock_gettime", "sys_gettimeofday"];

/// The last line of a file of callgrind.
const END: &str = "totals:";

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub fn is_installed() -> bool {
    on_path(PROGRAM).is_some()
}

/// What a process has done in its life.
#[derive(Debug, PartialEq, Eq)]
pub struct Totals {
    pub instructions: u64,
    /// Those of them that are pg_pinpoint's.
    pub in_library: u64,
    pub system_calls: u64,
}

impl Totals {
    /// Of a process that is about to end, for no longer than `timeout`.
    pub async fn of_process(folder: &Path, pid: i32, timeout: Duration) -> anyhow::Result<Self> {
        let file = folder.join(format!("callgrind.{pid}"));
        let written = async {
            loop {
                match fs::read_to_string(&file) {
                    Ok(profile) if profile.contains(END) => return profile,
                    _ => tokio::time::sleep(POLL_INTERVAL).await,
                }
            }
        };
        let profile = within(timeout, "the end of a session under valgrind", written).await?;
        let (instructions, in_library) = instructions(&profile)
            .with_context(|| format!("could not understand {}", file.display()))?;
        let file = folder.join(format!("valgrind.{pid}"));
        let log = fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
        Ok(Self {
            instructions,
            in_library,
            system_calls: system_calls(&String::from_utf8_lossy(&log), pid),
        })
    }
}

/// All instructions in a file of callgrind, and those of pg_pinpoint's libraries. Lines with
/// costs follow the object ("ob=") that they belong to. The line after "calls=" has the
/// costs of a called function, which are in lines of that function, too.
fn instructions(profile: &str) -> anyhow::Result<(u64, u64)> {
    let mut libraries = BTreeMap::new();
    let (mut all, mut in_library) = (0, 0);
    let mut is_library = false;
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_library = object_is_library(&mut libraries, object);
        } else if let Some(object) = line.strip_prefix("cob=") {
            object_is_library(&mut libraries, object);
        } else if line.starts_with("calls=") {
            lines.next();
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line.split(' ').nth(1).context("a line has no costs")?;
            let cost: u64 = cost.parse().context("costs are not a number")?;
            all += cost;
            in_library += if is_library { cost } else { 0 };
        }
    }
    let (_, total) = profile.split_once(END).context("it has no end")?;
    let total: u64 = total
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .parse()?;
    ensure!(all == total, "its lines have {all} of {total} instructions");
    Ok((all, in_library))
}

/// An object is `(ID) PATH` where it is first named, and `(ID)` later.
fn object_is_library<'a>(libraries: &mut BTreeMap<&'a str, bool>, object: &'a str) -> bool {
    let Some((id, path)) = object.split_once(' ') else {
        return libraries.get(object).is_some_and(|is_library| *is_library);
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_library = name.starts_with(LIBRARIES);
    libraries.insert(id, is_library);
    is_library
}

/// The system calls of a process in a log of valgrind. One that waited has a second line.
fn system_calls(log: &str, pid: i32) -> u64 {
    let start = format!("SYSCALL[{pid},");
    let calls = log.lines().filter(|line| {
        line.contains(&start)
            && !line.contains(") ... [async]")
            && !CLOCKS.iter().any(|clock| line.contains(clock))
    });
    calls.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
# callgrind format
version: 1
pid: 7
positions: line
events: Ir
summary: 1060

ob=(1) /usr/lib/postgresql/bin/postgres
fl=(1) ???
fn=(1) exec_simple_query
0 1000
cob=(2) /usr/lib/postgresql/lib/pg_pinpoint.so
cfi=(1)
cfn=(2) utility
calls=1 0
0 50

ob=(2)
fn=(2)
+3 30
* 20

ob=(3) /lib/pg_pinpoint_elsewhere/libc.so.6
fn=(3) memcpy
-1 10

totals: 1060
";

    #[test]
    fn instructions_belong_to_their_library() {
        assert_eq!(instructions(PROFILE).unwrap(), (1060, 50));
    }

    #[test]
    fn lines_that_are_not_understood_are_found_out() {
        let error = instructions(&PROFILE.replace("+3 30\n", "")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "its lines have 1030 of 1060 instructions"
        );
    }

    #[test]
    fn system_calls_are_counted_once() {
        let log = "\
SYSCALL[7,1](  0) sys_read ( 3, 0x1, 5 ) --> [async] ... 
SYSCALL[7,1](  0) ... [async] --> Success(0x5) 
SYSCALL[7,1](228) sys_clock_gettime( 0, 0x1 )[sync] --> Success(0x0) 
SYSCALL[7,1]( 96) sys_gettimeofday ( 0x1, 0x0 )[sync] --> Success(0x0) 
SYSCALL[7,1](  1) sys_write ( 3, 0x1, 5 ) --> [async] ... 
SYSCALL[77,1](  1) sys_write ( 3, 0x1, 5 ) --> [async] ... 
==7== Events    : Ir
";
        assert_eq!(system_calls(log, 7), 2);
    }
}
