//! pg_recvlogical, which has a slot decoded and receives the result.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use pinpoint_servers::server::Server;

use super::database::Decoded;

pub const PROGRAM: &str = "pg_recvlogical";

const OUTPUT: &str = "decoded";

/// Receives what a slot has up to `end`, an LSN. The time is that from the start of
/// the program to its end, and must not be more than `timeout`.
pub async fn receive(
    server: &Server,
    database: &str,
    slot: &str,
    end: &str,
    timeout: Duration,
) -> anyhow::Result<Decoded> {
    let arguments = [
        "--start",
        "--no-loop",
        "--fsync-interval=0",
        &format!("--dbname={database}"),
        &format!("--slot={slot}"),
        &format!("--endpos={end}"),
        &format!("--file={OUTPUT}"),
    ];
    let start = Instant::now();
    server
        .run_program(PROGRAM, &arguments, timeout, |_| false)
        .await?;
    let time = start.elapsed();

    let output = server.folder.join(OUTPUT);
    // It would append to the file of the last time.
    let decoded =
        fs::read_to_string(&output).and_then(|text| fs::remove_file(&output).map(|()| text));
    let decoded = decoded.with_context(|| {
        format!(
            "could not use {}: make room there or name another place with --temp-dir",
            output.display()
        )
    })?;
    Ok(Decoded {
        time,
        changes: count_inserts(&decoded),
    })
}

/// In what test_decoding prints.
fn count_inserts(decoded: &str) -> u64 {
    let is_insert = |line: &&str| line.starts_with("table ") && line.contains(": INSERT: ");
    decoded.lines().filter(is_insert).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_rows_are_counted() {
        let decoded = "BEGIN 735\n\
                       table public.t1: INSERT: id[integer]:1\n\
                       table public.t2: INSERT: id[integer]:1 added[integer]:null\n\
                       table public.t2: UPDATE: id[integer]:1\n\
                       COMMIT 735\n\
                       message: transactional: 0 prefix: a, sz: 10 content:x: INSERT: \n";
        assert_eq!(count_inserts(decoded), 2);
        assert_eq!(count_inserts(""), 0);
    }
}
