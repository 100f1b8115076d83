//! The benchmark `decode`: how long logical decoding takes for DDL, against the
//! number of tables.
//!
//! The method is that of the patch in the discussion "Optimize
//! RelfilenumberMapInvalidateCallback for logical decoding performance"
//! (pgsql-hackers, June 2026). For each point a database of its own is filled,
//! once, and two replication slots keep what was written:
//!
//! ```text
//!  CREATE TABLE, N times │ INSERT, N times │ INSERT, N times   ALTER TABLE, N times │
//!                        ▲                 ▲                                        ▲
//!                        └── slot "dml" ───┴───────────── slot "total" ─────────────┘
//! ```
//!
//! Every run decodes both with copies of the slots. The difference is the DDL.

mod args;
mod database;
mod library;
mod receiver;
mod workload;

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

pub use self::args::{Args, QUICK};
use self::database::{Database, Slot};
use self::library::Library;
use self::receiver::Receiver;
use self::workload::Workload;
use crate::benchmark::{Benchmark, PointId, as_seconds};
use crate::results::{Axis, Better, Figure, Scale, Values};
use crate::server::Server;
use crate::target::{Setting, Target};

/// One in the database of the point, one for its making, and one that reads the
/// library's statistics.
const SESSIONS: u32 = 3;

/// With that many sessions there is room for this many locks for each of the
/// server's max_locks_per_transaction: those are for all sessions together.
const SESSIONS_THAT_LEND_LOCKS: u32 = 20;

/// PostgreSQL's default.
const LOCKS_FOR_OTHERS: u32 = 64;

/// What to measure. Durations are recorded in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub workloads: Vec<Workload>,
    /// Numbers of tables, ascending.
    pub tables: Vec<u32>,
    /// Runs at each point and of each target.
    pub runs: NonZeroU32,
    /// For one decoding.
    #[serde(serialize_with = "as_seconds")]
    pub timeout: Duration,
}

impl Plan {
    fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        let tables = self.tables.last().copied().unwrap_or(0);
        let locks = LOCKS_FOR_OTHERS + tables / SESSIONS_THAT_LEND_LOCKS;
        [
            // The source's.
            "wal_level=logical",
            "fsync=off",
            "logical_decoding_work_mem=4GB",
            // One transaction alters all tables.
            &format!("max_locks_per_transaction={locks}"),
            // Nothing is to go on beside the measurement.
            "autovacuum=off",
            "max_wal_size=64GB",
            "checkpoint_timeout=1d",
            // For a while the server says nothing, as it has nothing to say.
            "wal_sender_timeout=0",
        ]
        .into_iter()
        .map(str::parse)
        .collect()
    }
}

/// What is kept of a server between its runs.
#[derive(Debug)]
pub struct State {
    library: Option<Library>,
    /// The database of the point.
    database: Option<Database>,
}

impl Benchmark for Plan {
    type State = State;

    fn name(&self) -> &'static str {
        "decode"
    }

    fn question(&self) -> &'static str {
        "How long does logical decoding take for DDL on many tables?"
    }

    fn method(&self) -> Vec<String> {
        [
            "N tables are made, and a row is inserted into each. Then a row is inserted into each \
             again, and ALTER TABLE ADD COLUMN done on each: in one transaction \
             (single_transaction), or with a transaction for each statement \
             (transaction_per_table).",
            "pg_recvlogical receives what test_decoding makes of it and writes it to a file. The \
             time is that from its start to its end. dml_seconds is for the first INSERTs, \
             total_seconds for the second INSERTs and the ALTER TABLEs, and ddl_seconds is the \
             difference.",
            "All runs decode the same WAL, with copies of two replication slots, the two kinds in \
             the other order in every second run. Every run must have decoded one row for each \
             INSERT, and of a server with pg_pinpoint_decoding it is made sure that the library \
             has looked up the tables.",
            "The servers run with fsync = off, logical_decoding_work_mem = '4GB' and without \
             autovacuum, so that the time is that of the CPU.",
        ]
        .map(str::to_owned)
        .into()
    }

    fn axis(&self) -> Axis {
        Axis {
            name: "tables".to_owned(),
            label: "tables".to_owned(),
            scale: Scale::Logarithmic,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        [
            ("ddl_seconds", "seconds to decode the DDL", true),
            ("total_seconds", "seconds to decode DML and DDL", false),
            ("dml_seconds", "seconds to decode the DML alone", true),
        ]
        .map(|(name, label, chart)| Figure {
            name: name.to_owned(),
            label: label.to_owned(),
            better: Better::Lower,
            scale: Scale::Logarithmic,
            chart,
            is_ratio: false,
        })
        .into()
    }

    fn points(&self) -> Vec<PointId> {
        let of = |workload| {
            let point = move |&tables| PointId::of_workload(workload, tables);
            self.tables.iter().map(point)
        };
        self.workloads.iter().flat_map(of).collect()
    }

    fn runs(&self) -> NonZeroU32 {
        self.runs
    }

    /// Stock PostgreSQL needs N times N. This is about right for two cores of 2025.
    fn run_time(&self) -> Duration {
        let seconds = |&tables: &u32| {
            let tables = f64::from(tables) / 1000.0;
            0.2 + 0.2 * tables + 0.01 * tables * tables
        };
        let sum: f64 = self.tables.iter().map(seconds).sum();
        Duration::from_secs_f64(sum / self.tables.len().max(1) as f64)
    }

    fn sessions(&self) -> u32 {
        SESSIONS
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a plan is valid JSON")
    }

    fn default_targets(&self, pg_config: &Path) -> Vec<Target> {
        vec![Target::stock(pg_config), library::target(pg_config)]
    }

    fn configure(&self, mut target: Target) -> anyhow::Result<Target> {
        target.settings.splice(0..0, self.settings()?);
        Ok(target)
    }

    fn programs(&self) -> &'static [&'static str] {
        &[receiver::PROGRAM]
    }

    fn needs_own_cluster(&self) -> Option<&'static str> {
        Some("it makes databases and replication slots")
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<State> {
        Ok(State {
            library: Library::of(server).await?,
            database: None,
        })
    }

    async fn prepare(
        &self,
        server: &Server,
        state: &mut State,
        point: &PointId,
    ) -> anyhow::Result<()> {
        if let Some(former) = state.database.take() {
            former.drop(server).await?;
        }
        let workload: Workload = point.workload.parse()?;
        let database = state
            .database
            .insert(Database::create(server, workload, point.x).await?);
        server.checkpoint().await?;

        // So that the first run finds the catalogs in memory, like the others.
        let receiver = Receiver::of(server, &database.name, self.timeout)?;
        decode(&receiver, database, &database.dml).await?;
        Ok(())
    }

    async fn measure(
        &self,
        server: &Server,
        state: &mut State,
        _point: &PointId,
        run: u32,
    ) -> anyhow::Result<Values> {
        let database = state.database.as_ref().context("no database is prepared")?;
        let receiver = Receiver::of(server, &database.name, self.timeout)?;
        let lookups_before = lookups(state.library.as_ref()).await?;

        let decode = async |slot: &Slot| decode(&receiver, database, slot).await;
        let (dml, total) = if run % 2 == 1 {
            let dml = decode(&database.dml).await?;
            (dml, decode(&database.total).await?)
        } else {
            let total = decode(&database.total).await?;
            (decode(&database.dml).await?, total)
        };

        if let Some(library) = &state.library {
            let lookups = lookups(Some(library)).await? - lookups_before;
            library::ensure_used(lookups, database.dml.changes + database.total.changes)?;
        }
        Ok(values(dml, total))
    }
}

async fn lookups(library: Option<&Library>) -> anyhow::Result<u64> {
    match library {
        Some(library) => library.lookups().await,
        None => Ok(0),
    }
}

/// Decodes what a slot keeps, which stays there, and returns how long it took.
async fn decode(
    receiver: &Receiver<'_>,
    database: &Database,
    slot: &Slot,
) -> anyhow::Result<Duration> {
    let copy = database.copy(slot).await?;
    let received = receiver.receive(copy, &slot.end).await?;
    database.drop_copy(receiver.timeout()).await?;
    slot.ensure_complete(received.changes)?;
    Ok(received.time)
}

/// Where the DDL takes no longer than the noise there is no figure for it.
fn values(dml: Duration, total: Duration) -> Values {
    let mut values = Values::from([
        ("total_seconds".to_owned(), total.as_secs_f64()),
        ("dml_seconds".to_owned(), dml.as_secs_f64()),
    ]);
    if let Some(ddl) = total.checked_sub(dml)
        && !ddl.is_zero()
    {
        values.insert("ddl_seconds".to_owned(), ddl.as_secs_f64());
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(tables: &[u32]) -> Plan {
        Plan {
            workloads: vec![Workload::SingleTransaction, Workload::TransactionPerTable],
            tables: tables.to_vec(),
            runs: NonZeroU32::MIN,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn the_ddl_is_what_is_more_than_the_dml() {
        let values = values(Duration::from_millis(250), Duration::from_millis(1000));
        assert_eq!(values["dml_seconds"], 0.25);
        assert_eq!(values["total_seconds"], 1.0);
        assert_eq!(values["ddl_seconds"], 0.75);
    }

    #[test]
    fn there_is_no_figure_for_ddl_that_takes_no_time() {
        for total in [100, 90] {
            let values = values(Duration::from_millis(100), Duration::from_millis(total));
            assert!(!values.contains_key("ddl_seconds"), "{values:?}");
            assert!(values.contains_key("total_seconds"));
        }
    }

    #[test]
    fn every_workload_is_measured_with_every_number_of_tables() {
        let points: Vec<_> = plan(&[5, 9])
            .points()
            .into_iter()
            .map(|point| (point.workload, point.x))
            .collect();
        let expected = [
            ("single_transaction", 5),
            ("single_transaction", 9),
            ("transaction_per_table", 5),
            ("transaction_per_table", 9),
        ];
        assert_eq!(points, expected.map(|(name, x)| (name.to_owned(), x)));
    }

    #[test]
    fn a_transaction_can_lock_all_tables() {
        let target = "a=pg_config,fsync=on".parse().unwrap();
        let target = plan(&[1000, 50_000]).configure(target).unwrap();
        let settings: Vec<_> = target.settings.iter().map(ToString::to_string).collect();
        let locks = "max_locks_per_transaction = '2564'".to_owned();
        assert!(settings.contains(&locks), "{settings:?}");
        // The target's own settings come last, and so count.
        assert_eq!(settings.last().unwrap(), "fsync = 'on'");
    }

    #[test]
    fn the_default_targets_differ_by_the_library_alone() {
        let targets = plan(&[1]).default_targets(Path::new("pg_config"));
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["stock", "pinpoint"]);
        assert!(targets[0].preload.is_empty() && targets[0].extensions.is_empty());
        assert_eq!(targets[1].preload, ["pg_pinpoint_decoding"]);
        assert_eq!(targets[1].extensions, ["pg_pinpoint_decoding"]);
    }
}
