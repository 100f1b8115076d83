//! Counts what a server does for an operation: two runs with different numbers of
//! operations, each in new sessions, and the difference.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use pinpoint_servers::connection::within;
use pinpoint_servers::server::Server;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use super::callgrind::Totals;
use super::decoding::statements::Grouping;
use crate::clients::session::Session;
use crate::report::operations::{FIGURES, INSTRUCTIONS, LIBRARY, SYSTEM_CALLS, WAL_BYTES};
use crate::report::results::Values;

/// Two, and one that prepares and watches them.
pub const SESSIONS: u32 = 3;

/// Of the operations, so many and no more than this are not counted.
const WARM_UP_SHARE: u32 = 10;
const MAX_WARM_UP: u32 = 20;

/// PostgreSQL plans the first five executions of a prepared statement anew.
const PLANNED_ANEW: u32 = 5;

const CHANGED_SINCE: &str = "SELECT changed, position FROM pinpoint.changed_since($1, VARIADIC $2)";
const WAIT: &str = "CALL pinpoint.wait($2, $1, '1 minute')";

/// Whether a session waits for something else than its client.
const IS_WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE pid = $1 AND state = 'active' AND wait_event_type IN ('Extension', 'IPC')";

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const SLEEP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The channel that `Ask` and `Wait` ask for.
pub const CHANNEL: &str = "c1";

/// One of the two sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Caller,
    Other,
}

/// A part of an operation.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Executes SQL.
    Execute(Who, &'static str),
    /// Waits for a notification.
    Receive(Who),
    /// Asks for changes since the last answer, whichever session had it.
    Ask(Who),
    /// The caller waits for a change, and the other session then notifies.
    Wait,
}

/// What is there before the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    Nothing,
    /// Tables that are watched.
    Watch,
    /// As many tables as there are operations, altered in one transaction. The steps are
    /// executed once, for all of them.
    Alter,
}

/// An operation and how often it is executed.
#[derive(Debug, Clone, Copy)]
pub struct Counting {
    pub preparation: Preparation,
    /// `{x}` in the SQL of a step, and the number of watched tables.
    pub x: u32,
    /// Whether servers without pg_pinpoint have no such operation.
    pub needs_library: bool,
    /// What each session executes first.
    pub first: [&'static str; 2],
    pub steps: &'static [Step],
    /// The sessions whose instructions and system calls count.
    pub counted: &'static [Who],
    /// How many operations are counted.
    pub times: u32,
}

/// The two sessions, and the one that watches them.
struct Run<'a> {
    control: &'a Client,
    sessions: [Session; 2],
    pids: [i32; 2],
    position: String,
    /// What `Ask` or `Wait` executes in each session. Parsing and planning would cost more
    /// than the execution, and a client that asks often prepares its statement.
    questions: Vec<Statement>,
}

impl Counting {
    /// Without a value if the server cannot do it.
    pub async fn run(&self, server: &Server, timeout: Duration) -> anyhow::Result<Values> {
        let control = server.connect().await?;
        let has_library = has_library(&control).await?;
        if self.needs_library && !has_library {
            return Ok(Values::new());
        }
        let warm_up = self.warm_up();
        let few = self.totals(server, &control, has_library, warm_up, timeout);
        let few = few.await?;
        let many = warm_up + self.times;
        let many = self.totals(server, &control, has_library, many, timeout);
        let many = many.await?;
        let per_operation = |name: &str| (many[name] - few[name]) / f64::from(self.times);
        let values = FIGURES.map(|name| (name.to_owned(), per_operation(name)));
        Ok(values.into())
    }

    fn warm_up(&self) -> u32 {
        let least = match self.question() {
            Some(_) => PLANNED_ANEW + 1,
            None => 1,
        };
        (self.times / WARM_UP_SHARE).clamp(least, MAX_WARM_UP)
    }

    /// What the operation asks.
    fn question(&self) -> Option<&'static str> {
        self.steps.iter().find_map(|step| match step {
            Step::Ask(_) => Some(CHANGED_SINCE),
            Step::Wait => Some(WAIT),
            Step::Execute(..) | Step::Receive(_) => None,
        })
    }

    /// Executes the operation a number of times, in new sessions. Returns what all this took
    /// from their begin to their end.
    async fn totals(
        &self,
        server: &Server,
        control: &Client,
        has_library: bool,
        times: u32,
        timeout: Duration,
    ) -> anyhow::Result<Values> {
        if has_library || self.preparation == Preparation::Alter {
            for sql in self.prepare(times) {
                control.batch_execute(&sql).await?;
            }
        }
        let mut run = Run::begin(server, control, self.first, self.question()).await?;
        let begin = wal_position(control).await?;
        let repeated = match self.preparation {
            Preparation::Alter => 1,
            _ => times,
        };
        for _ in 0..repeated {
            for step in self.steps {
                within(timeout, "an operation", run.execute(*step, self.x)).await??;
                within(timeout, "the end of an operation", run.until_all_sleep()).await??;
            }
        }
        let wal = wal_bytes_since(control, &begin).await?;
        let pids = run.pids;
        drop(run);
        let mut totals = Values::from(FIGURES.map(|name| (name.to_owned(), 0.0)));
        let mut add = |name: &str, count: u64| {
            *totals.entry(name.to_owned()).or_default() += count as f64;
        };
        add(WAL_BYTES, wal);
        for who in self.counted {
            let of_process = Totals::of_process(&server.folder, pids[*who as usize], timeout);
            let of_process = of_process.await?;
            add(INSTRUCTIONS, of_process.instructions);
            add(LIBRARY, of_process.in_library);
            add(SYSTEM_CALLS, of_process.system_calls);
        }
        Ok(totals)
    }

    /// Statements, each a transaction.
    fn prepare(&self, times: u32) -> Vec<String> {
        match self.preparation {
            Preparation::Nothing => Vec::new(),
            Preparation::Watch => vec![watch(self.x)],
            Preparation::Alter => alter(times),
        }
    }
}

/// SQL that makes and watches tables, unless there are as many.
fn watch(tables: u32) -> String {
    format!(
        "DO $$ BEGIN IF to_regclass('w{tables}') IS NULL THEN FOR i IN 1..{tables} LOOP \
         EXECUTE format('CREATE TABLE IF NOT EXISTS w%s (a int)', i); \
         PERFORM pinpoint.watch(format('w%s', i)::regclass); \
         END LOOP; END IF; END $$"
    )
}

/// The slot has what comes after it.
fn alter(tables: u32) -> Vec<String> {
    vec![
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots".to_owned(),
        "DROP SCHEMA IF EXISTS altered CASCADE".to_owned(),
        "CREATE SCHEMA altered".to_owned(),
        "SET search_path = altered".to_owned(),
        Grouping::create_tables(tables.into()),
        "SELECT pg_create_logical_replication_slot('altered', 'test_decoding')".to_owned(),
        Grouping::SingleTransaction.dml_and_ddl(tables.into()),
        "RESET search_path".to_owned(),
    ]
}

impl<'a> Run<'a> {
    async fn begin(
        server: &Server,
        control: &'a Client,
        first: [&str; 2],
        question: Option<&str>,
    ) -> anyhow::Result<Self> {
        let config = server.config();
        let sessions = [
            Session::connect(&config).await?,
            Session::connect(&config).await?,
        ];
        let mut pids = [0; 2];
        for (session, pid) in sessions.iter().zip(&mut pids) {
            let sql = "SELECT pg_backend_pid()";
            *pid = session.client().query_one(sql, &[]).await?.try_get(0)?;
        }
        for (session, sql) in sessions.iter().zip(first) {
            session.execute(sql).await?;
        }
        let mut position = String::new();
        let mut questions = Vec::new();
        if let Some(question) = question {
            let sql = "SELECT pinpoint.position()";
            position = control.query_one(sql, &[]).await?.try_get(0)?;
            for session in &sessions {
                let types = [Type::TEXT, Type::TEXT_ARRAY];
                questions.push(session.client().prepare_typed(question, &types).await?);
            }
        }
        Ok(Self {
            control,
            sessions,
            pids,
            position,
            questions,
        })
    }

    async fn execute(&mut self, step: Step, x: u32) -> anyhow::Result<()> {
        match step {
            Step::Execute(who, sql) => {
                let sql = sql.replace("{x}", &x.to_string());
                self.sessions[who as usize].execute(&sql).await
            }
            Step::Receive(who) => self.sessions[who as usize].notified().await.map(drop),
            Step::Ask(who) => {
                self.position = self.ask(who).await?;
                Ok(())
            }
            Step::Wait => {
                let wait = self.ask(Who::Caller);
                (self.position, ()) = tokio::try_join!(wait, self.notify_who_waits())?;
                Ok(())
            }
        }
    }

    /// Returns the position of the answer.
    async fn ask(&self, who: Who) -> anyhow::Result<String> {
        let channels = vec![CHANNEL];
        let client = self.sessions[who as usize].client();
        let question = &self.questions[who as usize];
        let rows = client.query(question, &[&self.position, &channels]).await?;
        let answer = rows.first().context("there is no answer")?;
        Ok(answer.try_get("position")?)
    }

    /// A session that gets its next message too early does not wait for it, and so makes
    /// fewer system calls. Whatever wakes a session has happened before.
    async fn until_all_sleep(&self) -> anyhow::Result<()> {
        for pid in self.pids {
            while !sleeps(pid)? {
                tokio::time::sleep(SLEEP_POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    async fn notify_who_waits(&self) -> anyhow::Result<()> {
        let caller = &self.pids[Who::Caller as usize];
        let is_waiting = async || {
            let row = self.control.query_one(IS_WAITING, &[caller]).await?;
            anyhow::Ok(row.try_get::<_, i64>(0)? > 0)
        };
        while !is_waiting().await? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let notify = format!("NOTIFY {CHANNEL}");
        self.sessions[Who::Other as usize].execute(&notify).await
    }
}

fn sleeps(pid: i32) -> anyhow::Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    state(&stat).map(|state| state == 'S')
}

/// The state of a process in a file "stat" of Linux. It follows the name of the program,
/// which is in parentheses and can have some itself.
fn state(stat: &str) -> anyhow::Result<char> {
    let (_, rest) = stat.rsplit_once(") ").context("a process has no state")?;
    rest.chars().next().context("a process has no state")
}

async fn has_library(client: &Client) -> anyhow::Result<bool> {
    let sql = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_pinpoint')";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

async fn wal_position(client: &Client) -> anyhow::Result<String> {
    let sql = "SELECT pg_current_wal_insert_lsn()::text";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

/// The bytes of records of WAL since a position, and a fixed number of bytes: only WAL that
/// was flushed can be read, so something is committed first. The server itself writes
/// records about standbys, now and then.
async fn wal_bytes_since(client: &Client, begin: &str) -> anyhow::Result<u64> {
    let flush = "SELECT pg_logical_emit_message(true, '', '')";
    client.query_one(flush, &[]).await?;
    let sql = "SELECT sum(record_length)::bigint \
         FROM pg_get_wal_records_info($1::text::pg_lsn, pg_current_wal_flush_lsn()) \
         WHERE resource_manager <> 'Standby'";
    let bytes: i64 = client.query_one(sql, &[&begin]).await?.try_get(0)?;
    Ok(u64::try_from(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_found_after_any_name() {
        assert_eq!(state("7 (postgres) S 1 7").unwrap(), 'S');
        assert_eq!(state("7 (a (S) b) R 1 7").unwrap(), 'R');
        assert!(state("7").is_err());
    }

    #[test]
    fn statements_are_planned_before_they_are_counted() {
        let counting = |steps, times| Counting {
            preparation: Preparation::Nothing,
            x: 0,
            needs_library: true,
            first: ["", ""],
            steps,
            counted: &[Who::Caller],
            times,
        };
        assert!(counting(&[Step::Ask(Who::Caller)], 5).warm_up() > PLANNED_ANEW);
        assert!(counting(&[Step::Wait], 5).warm_up() > PLANNED_ANEW);
        assert_eq!(counting(&[Step::Receive(Who::Caller)], 5).warm_up(), 1);
        assert_eq!(counting(&[Step::Wait], 1000).warm_up(), MAX_WARM_UP);
    }
}
