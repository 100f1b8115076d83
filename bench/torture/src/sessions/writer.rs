//! A writer: does its units of work, and is disturbed in them.

use std::sync::Arc;

use rand::RngExt;
use tokio_postgres::SimpleQueryMessage;

use crate::checker::finding::{Finding, shorten};
use crate::checker::record::{Fate, Moment, Record, WriterSession};
use crate::sessions::connection::{Connected, is_accepted, is_lost, within};
use crate::sessions::disturbance::disturb;
use crate::sessions::run_state::Shared;
use crate::sessions::writer_sql;
use crate::workload::identity::Introduction;
use crate::workload::random_for;
use crate::workload::unit_of_work::{End, Form, Unit};

/// Of the random sequences, beside those of the listeners and position clients. The work
/// itself has its own.
const OF_WRITERS: u32 = 1 << 29;

/// One unit of work in so many is not replicated, if replication is switched.
const UNREPLICATED: u32 = 400;

/// Works until told to stop.
pub async fn run(shared: Arc<Shared>, writer: u32) -> Result<(), Finding> {
    let who = format!("writer {writer}");
    let mut session: Option<Connected> = None;
    let mut rng = random_for(shared.workload.seed, OF_WRITERS, writer);
    for number in 0.. {
        if shared.is_stopping() {
            break;
        }
        let unit = shared.workload.unit(writer, number);
        let connected = match session.take() {
            Some(connected) => connected,
            None => {
                let connected = shared.connect(&who).await?;
                shared.record(Record::Session(WriterSession {
                    writer,
                    first_transaction: unit.transactions[0].id.number,
                    pid: connected.pid,
                }));
                connected
            }
        };
        let is_replicated = !shared.switches_replication || !rng.random_ratio(1, UNREPLICATED);
        if !is_replicated {
            shared.tally().unreplicated += 1;
            execute(&shared, &who, &connected, "SET pinpoint.replicate = off").await?;
        }
        if play(&shared, &who, &connected, &unit).await? {
            if !is_replicated {
                execute(&shared, &who, &connected, "RESET pinpoint.replicate").await?;
            }
            session = Some(connected);
        }
    }
    Ok(())
}

/// Does one unit of work, and notes what became of it. Returns whether the
/// connection is still there.
async fn play(
    shared: &Arc<Shared>,
    who: &str,
    connected: &Connected,
    unit: &Unit,
) -> Result<bool, Finding> {
    let started = shared.now();
    let messages = writer_sql::messages(unit);
    let last = messages.len() - 1;
    let mut fates: Vec<Option<Fate>> = vec![None; unit.transactions.len()];
    let mut failure = None;
    let mut seen = Vec::new();

    for (number, message) in messages.iter().enumerate() {
        if number == last
            && let Some(disturbance) = unit.disturbance
        {
            disturb(shared, connected, disturbance);
        }
        let answer = connected.client.simple_query(&message.sql);
        let answer = within(shared, who, &shorten(&message.sql), answer).await?;
        match (answer, message.failure) {
            (Ok(answers), None) => {
                if unit.greeting.is_some() {
                    seen.extend(answers.iter().filter_map(introduction));
                }
                for transaction in message.ends.clone() {
                    fates[transaction] = Some(match unit.transactions[transaction].end {
                        End::Commit => Fate::Committed,
                        _ => Fate::RolledBack,
                    });
                }
            }
            (Ok(_), Some(sqlstate)) => {
                return Err(Finding::missing_error(who, &message.sql, sqlstate));
            }
            (Err(error), Some(sqlstate))
                if error.code().is_some_and(|code| code.code() == sqlstate) =>
            {
                for transaction in message.ends.clone() {
                    fates[transaction] = Some(Fate::RolledBack);
                }
            }
            (Err(error), _) => {
                failure = Some((error, message));
                break;
            }
        }
    }

    let Some((error, message)) = failure else {
        note(shared, unit, &fates, Fate::Unknown, started, &seen);
        return Ok(true);
    };
    if is_lost(&error) {
        note(shared, unit, &fates, Fate::Unknown, started, &seen);
        return if shared.is_ended(connected.pid) {
            Ok(false)
        } else {
            Err(Finding::lost_connection(who, connected.pid, &error))
        };
    }
    if !is_accepted(&error) {
        return Err(Finding::unexpected_error(who, &message.sql, &error));
    }
    let code = error.code().map_or("none", |code| code.code());
    *shared.tally().errors.entry(code.to_owned()).or_default() += 1;
    // An error before the end of a transaction, or instead of it: it is rolled
    // back. Only a procedure may have committed others before.
    let fate = match unit.form {
        Form::Procedure => Fate::Unknown,
        _ => Fate::RolledBack,
    };
    note(shared, unit, &fates, fate, started, &seen);
    execute(shared, who, connected, "ROLLBACK").await
}

/// Notes the fates; `otherwise` is that of transactions that have none yet.
fn note(
    shared: &Shared,
    unit: &Unit,
    fates: &[Option<Fate>],
    otherwise: Fate,
    started: Moment,
    seen: &[Introduction],
) {
    for (transaction, fate) in unit.transactions.iter().zip(fates) {
        let fate = fate.unwrap_or(otherwise);
        shared.add_outcome(transaction, fate, started, seen.to_vec());
    }
}

/// A row of `SEE_NEWCOMERS`.
fn introduction(answer: &SimpleQueryMessage) -> Option<Introduction> {
    let SimpleQueryMessage::Row(row) = answer else {
        return None;
    };
    let number = |name| row.try_get(name).ok()??.parse().ok();
    Some(Introduction {
        listener: number("listener")?,
        // Nobody has introduced himself yet with -1.
        number: number("number")?,
    })
}

/// Executes a command between two units of work. A cancellation or termination that comes late
/// may hit it. Returns whether the connection is still there.
async fn execute(
    shared: &Shared,
    who: &str,
    connected: &Connected,
    sql: &str,
) -> Result<bool, Finding> {
    loop {
        let answer = within(shared, who, sql, connected.client.simple_query(sql)).await?;
        match answer {
            Ok(_) => return Ok(true),
            Err(error) if is_lost(&error) && shared.is_ended(connected.pid) => return Ok(false),
            Err(error) if is_accepted(&error) => {}
            Err(error) => return Err(Finding::unexpected_error(who, sql, &error)),
        }
    }
}
