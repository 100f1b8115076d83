//! A database that was written to, and the slots that keep its WAL.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pinpoint_servers::connection::{connect, within};
use pinpoint_servers::server::Server;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::statements::Grouping;

/// Decodes all that a slot keeps up to an LSN, and counts the changed rows in what
/// test_decoding prints.
const PEEK: &str = "SELECT count(*) FILTER (WHERE starts_with(data, 'table ')) \
                    FROM pg_logical_slot_peek_changes($1::text::name, $2::text::pg_lsn, NULL)";

/// Name of the copy of a slot that one decoding uses up.
const COPY: &str = "copy";

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What it took to decode all that a slot keeps.
#[derive(Debug, Clone, Copy)]
pub struct Decoded {
    pub time: Duration,
    /// Rows that were inserted.
    pub changes: u64,
}

/// A replication slot that keeps WAL to decode.
#[derive(Debug)]
pub struct Slot {
    name: &'static str,
    /// An LSN: where to stop.
    pub end: String,
    /// Rows that are inserted until then.
    pub changes: u64,
}

/// The database of a point.
#[derive(Debug)]
pub struct Database {
    session: Client,
    pub name: String,
    /// The INSERTs alone.
    pub dml: Slot,
    /// INSERTs and DDL.
    pub total: Slot,
}

impl Database {
    /// Makes a database with so many tables, and writes to them.
    pub async fn create(server: &Server, grouping: Grouping, tables: u64) -> anyhow::Result<Self> {
        let name = format!("{}_{tables}", grouping.name());
        server
            .connect()
            .await?
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await?;
        let mut config = server.config();
        config.dbname(&name);

        let writer = connect(&config).await?;
        writer
            .batch_execute(&Grouping::create_tables(tables))
            .await?;
        let dml = Slot::keep(&writer, "dml", &grouping.dml(tables), tables).await?;
        let total = Slot::keep(&writer, "total", &grouping.dml_and_ddl(tables), tables).await?;
        // The writer knows all the tables, and would be told of changes.
        Ok(Self {
            session: connect(&config).await?,
            name,
            dml,
            total,
        })
    }

    /// Copies a slot, as decoding uses it up. Returns the name of the copy.
    pub async fn copy(&self, slot: &Slot) -> anyhow::Result<&'static str> {
        self.session
            .execute(
                "SELECT pg_copy_logical_replication_slot($1::text::name, $2::text::name)",
                &[&slot.name, &COPY],
            )
            .await?;
        Ok(COPY)
    }

    /// Decodes a slot in the session of this database.
    pub async fn peek(&self, slot: &Slot, timeout: Duration) -> anyhow::Result<Decoded> {
        let start = Instant::now();
        let decode = async || self.session.query_one(PEEK, &[&slot.name, &slot.end]).await;
        let row = within(timeout, "pg_logical_slot_peek_changes()", decode()).await??;
        let time = start.elapsed();
        let changes: i64 = row.try_get(0)?;
        Ok(Decoded {
            time,
            changes: u64::try_from(changes)?,
        })
    }

    /// Drops the copy. Its WAL sender may be about to end, but not for longer than `timeout`.
    pub async fn drop_copy(&self, timeout: Duration) -> anyhow::Result<()> {
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                   WHERE slot_name = $1::text AND NOT active";
        let dropped = async {
            while self.session.query(sql, &[&COPY]).await?.is_empty() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        within(timeout, "the end of a WAL sender", dropped).await?
    }

    /// Drops the database, and gives up its WAL.
    pub async fn drop(self, server: &Server) -> anyhow::Result<()> {
        for slot in [&self.dml, &self.total] {
            let sql = "SELECT pg_drop_replication_slot($1::text::name)";
            self.session.execute(sql, &[&slot.name]).await?;
        }
        server
            .connect()
            .await?
            // Our own session may be about to end.
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))
            .await?;
        Ok(())
    }
}

impl Slot {
    /// Makes a slot that keeps what the SQL writes.
    async fn keep(
        session: &Client,
        name: &'static str,
        sql: &str,
        changes: u64,
    ) -> anyhow::Result<Self> {
        session
            .execute(
                "SELECT pg_create_logical_replication_slot($1::text::name, 'test_decoding')",
                &[&name],
            )
            .await
            .map_err(|error| match error.code() {
                Some(&SqlState::UNDEFINED_FILE) => anyhow::Error::from(error).context(
                    "the server has no test_decoding, which the decoding is done with: install \
                     the contrib modules of this PostgreSQL",
                ),
                _ => error.into(),
            })?;
        session.batch_execute(sql).await?;
        let end = session
            .query_one("SELECT pg_current_wal_insert_lsn()::text", &[])
            .await?
            .try_get(0)?;
        // Whoever decodes stops when something comes from behind the end.
        session
            .batch_execute("SELECT pg_logical_emit_message(false, 'pinpoint-bench', 'the end')")
            .await?;
        Ok(Self { name, end, changes })
    }

    /// Has everything been decoded?
    pub fn ensure_complete(&self, found: u64) -> anyhow::Result<()> {
        let expected = self.changes;
        ensure!(
            found == expected,
            "{found} inserted rows were decoded instead of {expected}: the time is not that of \
             the workload"
        );
        Ok(())
    }
}
