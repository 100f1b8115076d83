//! Changes of the watched tables. A row of `event` on the channel of the table goes with each
//! change, in the same (sub)transaction, but no notification: pg_pinpoint sends that.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use tokio_postgres::error::SqlState;

use crate::checker::finding::Finding;
use crate::sessions::connection::{Connected, execute, first_value, is_accepted, is_lost, within};
use crate::sessions::disturbance::disturb;
use crate::sessions::run_state::Shared;
use crate::workload::identity::{Channel, Key, TransactionId, WATCHED_BASE};
use crate::workload::random_for;
use crate::workload::unit_of_work::{Disturbance, DisturbanceKind};

/// Of the random sequences, beside those of the listeners and position clients.
const OF_WATCHED: u32 = 1 << 28;

/// Changes a table until told to stop. Nobody else does.
pub async fn run(shared: Arc<Shared>, table: u32) -> Result<(), Finding> {
    let channel = Channel::of_watched(table);
    let who = format!("writer of {channel}");
    let mut rng = random_for(shared.workload.seed, OF_WATCHED, table);
    let mut connected = shared.connect(&who).await?;
    for number in 0.. {
        if shared.is_stopping() {
            break;
        }
        let key = Key {
            transaction: TransactionId {
                writer: WATCHED_BASE + table,
                number,
            },
            index: 0,
            has_row: true,
        };
        let started = shared.now();
        let messages = messages(&mut rng, key, channel);
        let is_done = match messages.split_last() {
            Some((last, others))
                if last.starts_with("COMMIT PREPARED") && rng.random_ratio(3, 4) =>
            {
                let disturbance = disturbance(&mut rng);
                let is_prepared = play(&shared, &who, &connected, channel, others).await?;
                if is_prepared {
                    connected =
                        commit_disturbed(&shared, &who, connected, last, disturbance).await?;
                }
                is_prepared
            }
            _ => play(&shared, &who, &connected, channel, &messages).await?,
        };
        if is_done && messages.iter().any(|sql| sql.starts_with("COMMIT")) {
            shared.add_sent(key, channel, started);
            shared.tally().watched_changes += 1;
        }
        let milliseconds = match rng.random_range(0..4) {
            0 => 0,
            1 => rng.random_range(0..=20),
            _ => rng.random_range(20..=200),
        };
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }
    Ok(())
}

/// One transaction, as messages that go to the server one by one. Whether it commits, its
/// last message tells.
fn messages(rng: &mut ChaCha8Rng, key: Key, channel: Channel) -> Vec<String> {
    let undone = "INSERT INTO event VALUES (-1, 0, 0, 0, 0)";
    let TransactionId { writer, number } = key.transaction;
    let row = format!(
        "INSERT INTO event VALUES ({writer}, {number}, {}, {}, 0)",
        key.index, channel.0
    );
    let mut messages = vec!["BEGIN".to_owned()];
    if rng.random_ratio(1, 3) {
        let change = change(rng, channel);
        messages.push(format!("SAVEPOINT undone; {undone}; {change}"));
        messages.push("ROLLBACK TO undone".to_owned());
    }
    let change = change(rng, channel);
    match rng.random_range(0..3) {
        0 => messages.push(format!("{change}; {row}")),
        1 => messages.push(format!("SAVEPOINT kept; {change}; {row}; RELEASE kept")),
        _ => messages.push(format!("SAVEPOINT a; {row}; SAVEPOINT b; {change}")),
    }
    if rng.random_ratio(1, 3) {
        let verb = if rng.random_ratio(1, 4) {
            "ROLLBACK"
        } else {
            "COMMIT"
        };
        // The session has to read catalogs after the commit record if labels have changed.
        if rng.random_ratio(1, 2) {
            messages.push(format!("SELECT pinpoint.unwatch('{channel}')"));
            messages.push(format!("SELECT pinpoint.watch('{channel}', '{channel}')"));
        }
        messages.push(format!("PREPARE TRANSACTION '{channel}'"));
        messages.push(format!("SELECT pg_sleep({})", rng.random_range(0.0..0.1)));
        messages.push(format!("{verb} PREPARED '{channel}'"));
    } else {
        let verb = if rng.random_ratio(1, 5) {
            "ROLLBACK"
        } else {
            "COMMIT"
        };
        messages.push(verb.to_owned());
    }
    messages
}

/// Statements that change rows, whatever the table has. Only the row with 0 is always there.
fn change(rng: &mut ChaCha8Rng, table: Channel) -> String {
    match rng.random_range(0..8) {
        0 => format!("INSERT INTO {table} VALUES (1)"),
        1 => format!("INSERT INTO part_of_{table} VALUES (1)"),
        2 => format!("INSERT INTO source_of_{table} VALUES (1)"),
        3 => format!("COPY {table} (value) FROM PROGRAM 'echo 1'"),
        4 => format!("TRUNCATE part_of_{table}"),
        5 => format!("UPDATE {table} SET version = version + 1 WHERE value = 0"),
        6 => format!("INSERT INTO {table} VALUES (1); DELETE FROM {table} WHERE value = 1"),
        _ => format!("INSERT INTO {table} SELECT generate_series(1, 100)"),
    }
}

/// Returns whether it was done to the end.
async fn play(
    shared: &Shared,
    who: &str,
    connected: &Connected,
    channel: Channel,
    messages: &[String],
) -> Result<bool, Finding> {
    for sql in messages {
        let answer = within(shared, who, sql, connected.client.simple_query(sql)).await?;
        match answer {
            Ok(_) => {}
            Err(error) if is_accepted(&error) => {
                for sql in ["ROLLBACK", &format!("ROLLBACK PREPARED '{channel}'")] {
                    let answer = connected.client.simple_query(sql);
                    // There may be nothing to roll back.
                    let _ = within(shared, who, sql, answer).await?;
                }
                return Ok(false);
            }
            Err(error) => return Err(Finding::unexpected_error(who, sql, &error)),
        }
    }
    Ok(true)
}

/// What happens to a session while it executes COMMIT PREPARED.
fn disturbance(rng: &mut ChaCha8Rng) -> Disturbance {
    let longest = if rng.random_ratio(1, 2) { 4 } else { 100 };
    let kind = match rng.random_ratio(1, 4) {
        true => DisturbanceKind::Terminate,
        false => DisturbanceKind::Cancel,
    };
    let delay_ms = rng.random_range(0..=longest);
    Disturbance { kind, delay_ms }
}

/// Executes COMMIT PREPARED in a session that is cancelled or terminated, and repeats it until
/// the transaction does not exist any more, as a client has to: then it has committed. The
/// repetitions also take an interrupt that comes late. Returns the session, or a new one.
async fn commit_disturbed(
    shared: &Arc<Shared>,
    who: &str,
    mut connected: Connected,
    sql: &str,
    disturbance: Disturbance,
) -> Result<Connected, Finding> {
    let disturbing = disturb(shared, &connected, disturbance);
    let mut answer = within(shared, who, sql, connected.client.simple_query(sql)).await?;
    // It has been sent before the first repetition begins.
    let _ = within(shared, who, "the disturbance", disturbing).await?;
    loop {
        match answer {
            Ok(_) => {}
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => {
                return Ok(connected);
            }
            Err(error) if is_lost(&error) && shared.is_ended(connected.pid) => {
                let ended = connected.pid;
                connected = shared.connect(who).await?;
                let end = wait_for_end(shared, who, &connected, ended);
                within(shared, who, "the end of a terminated session", end).await??;
            }
            Err(error) if is_accepted(&error) => {}
            Err(error) => return Err(Finding::unexpected_error(who, sql, &error)),
        }
        answer = within(shared, who, sql, connected.client.simple_query(sql)).await?;
    }
}

/// Its connection can be lost before the terminated session has notified the changes that it
/// has committed.
async fn wait_for_end(
    shared: &Shared,
    who: &str,
    connected: &Connected,
    pid: i32,
) -> Result<(), Finding> {
    let sql =
        format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND pid <> pg_backend_pid()");
    loop {
        let answer = execute(shared, who, &connected.client, &sql).await?;
        if first_value(&answer).is_none() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_goes_with_what_commits() {
        let mut rng = random_for(1, OF_WATCHED, 0);
        let key = Key {
            transaction: TransactionId {
                writer: WATCHED_BASE,
                number: 7,
            },
            index: 0,
            has_row: true,
        };
        let row = "INSERT INTO event VALUES (2000, 7, 0, 2000, 0)";
        let mut ends = [0; 4];
        for _ in 0..500 {
            let messages = messages(&mut rng, key, Channel::of_watched(0));
            let with_row = messages.iter().filter(|sql| sql.contains(row));
            assert_eq!(with_row.count(), 1, "{messages:?}");
            let last = messages.last().unwrap();
            let kinds = ["COMMIT", "ROLLBACK", "COMMIT P", "ROLLBACK P"];
            let kind = kinds.iter().rposition(|kind| last.starts_with(kind));
            ends[kind.unwrap()] += 1;
        }
        assert!(ends.iter().all(|&count| count > 0), "{ends:?}");
    }

    #[test]
    fn more_sessions_are_cancelled_than_terminated() {
        let mut rng = random_for(1, OF_WATCHED, 0);
        let kinds = (0..500).map(|_| disturbance(&mut rng).kind);
        let terminated = kinds.filter(|&kind| kind == DisturbanceKind::Terminate);
        assert!((1..250).contains(&terminated.count()));
    }
}
