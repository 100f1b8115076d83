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
//! Every run decodes both and leaves the slots as they are. The difference is the DDL.

mod database;
mod interface;
mod library;
mod receiver;
mod workload;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use pinpoint_servers::options::{Numbers, as_seconds, numbers, positive_duration};
use pinpoint_servers::server::Server;
use pinpoint_servers::target::{Setting, Target};
use serde::Serialize;

use self::database::{Database, Decoding};
use self::interface::Interface;
use self::library::Library;
use self::workload::Workload;
use crate::report::results::{Axis, Figure, Kind, Scale, Values};
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::CommonArgs;

/// Each of them has a file, twice with that of the other server.
const MAX_TABLES: u32 = 1_000_000;

/// One in the database of the point, one for its making, and one that reads the
/// library's statistics.
const SESSIONS: u32 = 3;

/// With that many sessions there is room for this many locks for each of the
/// server's max_locks_per_transaction: those are for all sessions together.
const SESSIONS_THAT_LEND_LOCKS: u32 = 20;

/// PostgreSQL's default.
const LOCKS_FOR_OTHERS: u32 = 64;

/// PostgreSQL's default for shared_buffers, and what the catalogs with their indexes take
/// of it for each table: all of them are to fit.
const BUFFERS_FOR_OTHERS_KB: u32 = 128 * 1024;
const CATALOGS_OF_TABLE_KB: u32 = 4;

/// How long logical decoding takes for DDL, against the number of tables
///
/// A row is inserted into each of N tables, and ALTER TABLE ADD COLUMN done on
/// each. test_decoding makes text of that, for pg_recvlogical or for SQL. The time
/// for the INSERTs alone is measured, too, and subtracted. Stock PostgreSQL is
/// compared with one that has the library pg_pinpoint_decoding.
///
/// Example: pinpoint-bench decode --tables 1000,10000 --temp-dir /dev/shm
#[derive(Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub struct DecodeArgs {
    /// Numbers of tables to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1000,5000,10000,50000",
        value_parser = numbers(1..=MAX_TABLES),
    )]
    tables: Numbers,

    /// How the statements are divided into transactions
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "single_transaction,transaction_per_table"
    )]
    workload: Vec<Workload>,

    /// Who decodes
    #[arg(long, value_enum, default_value_t = Interface::WalSender)]
    interface: Interface,

    /// Give up when one decoding takes longer
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = positive_duration)]
    #[serde(serialize_with = "as_seconds")]
    decoding_timeout: Duration,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

impl DecodeArgs {
    fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        let buffers = BUFFERS_FOR_OTHERS_KB + CATALOGS_OF_TABLE_KB * self.tables.last();
        let locks = LOCKS_FOR_OTHERS + self.tables.last() / SESSIONS_THAT_LEND_LOCKS;
        [
            // The source's.
            "wal_level=logical",
            "fsync=off",
            "logical_decoding_work_mem=4GB",
            // One transaction alters all tables.
            &format!("max_locks_per_transaction={locks}"),
            &format!("shared_buffers={buffers}kB"),
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

impl Benchmark for DecodeArgs {
    type State = State;

    fn describe(&self) -> anyhow::Result<Description> {
        // Stock PostgreSQL needs N times N. This is about right for two cores of 2025.
        let seconds = |tables: u32| {
            let tables = f64::from(tables) / 1000.0;
            0.2 + 0.2 * tables + 0.01 * tables * tables
        };
        let sum: f64 = self.tables.iter().map(seconds).sum();
        let time = |name, label| Figure::new(name, label, Kind::Time);
        let mut figures = vec![
            time("ddl_seconds", "seconds to decode the DDL").drawn(),
            time("dml_seconds", "seconds to decode the DML alone").drawn(),
            time("total_seconds", "seconds to decode DML and DDL"),
        ];
        let (interface, programs): (_, &[_]) = match self.interface {
            Interface::WalSender => (
                "pg_recvlogical receives what test_decoding makes of it and writes it to a file. \
                 The time is that from its start to its end. All runs decode the same WAL, with \
                 copies of two replication slots.",
                &[receiver::PROGRAM],
            ),
            Interface::Sql => {
                let label = "seconds of CPU to decode the DDL";
                figures.push(time("ddl_cpu_seconds", label));
                (
                    "A session that stays counts what pg_logical_slot_peek_changes() makes of it \
                     with test_decoding. The time is that of this query; ddl_cpu_seconds is the \
                     processor time of the server process. All runs decode the same WAL, which two \
                     replication slots keep.",
                    &[],
                )
            }
        };
        let points = self.workload.iter().flat_map(|workload| {
            let at = move |tables| PointId::of_workload(workload, tables);
            self.tables.iter().map(at)
        });
        Ok(Description {
            name: "decode",
            question: "How long does logical decoding take for DDL on many tables?",
            method: [
                "N tables are made, and a row is inserted into each. Then a row is inserted into \
                 each again, and ALTER TABLE ADD COLUMN done on each: in one transaction \
                 (single_transaction), or with a transaction for each statement \
                 (transaction_per_table).",
                interface,
                "dml_seconds is for the first INSERTs, total_seconds for the second INSERTs and \
                 the ALTER TABLEs, and ddl_seconds is the difference, also where noise makes that \
                 less than nothing. The two are decoded in the other order in every second run, \
                 and both once before the first. Every run must have decoded one row for each \
                 INSERT, and of a server with pg_pinpoint_decoding it is made sure that the library \
                 has looked up the tables.",
                "The servers run with fsync = off, logical_decoding_work_mem = '4GB', shared_buffers \
                 that hold the catalogs and without autovacuum, so that the time is that of the CPU.",
            ]
            .map(str::to_owned)
            .into(),
            axis: Axis::new("tables", "tables", Scale::Logarithmic),
            figures,
            points: points.collect(),
            run_time: Duration::from_secs_f64(sum / self.tables.iter().count() as f64),
            sessions: SESSIONS,
            programs,
            settings: self.settings()?,
            needs_own_cluster: Some("it makes databases and replication slots"),
        })
    }

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn default_targets(&self, pg_config: &Path) -> Vec<Target> {
        vec![Target::stock(pg_config), library::target(pg_config)]
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
            .insert(Database::create(server, workload, point.x.into()).await?);
        server.checkpoint().await?;

        // So that the first run finds the catalogs in memory, like the others.
        for slot in [&database.dml, &database.total] {
            let timeout = self.decoding_timeout;
            self.interface
                .decode(server, database, slot, timeout)
                .await?;
        }
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
        let lookups_before = lookups(state.library.as_ref()).await?;

        let decode = |slot| {
            let timeout = self.decoding_timeout;
            self.interface.decode(server, database, slot, timeout)
        };
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

fn values(dml: Decoding, total: Decoding) -> Values {
    let difference = |dml: Duration, total: Duration| total.as_secs_f64() - dml.as_secs_f64();
    let mut values: Values = [
        ("ddl_seconds", difference(dml.time, total.time)),
        ("dml_seconds", dml.time.as_secs_f64()),
        ("total_seconds", total.time.as_secs_f64()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let (Some(dml), Some(total)) = (dml.cpu, total.cpu) {
        values.insert("ddl_cpu_seconds".to_owned(), difference(dml, total));
    }
    values
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Decode {
        #[command(flatten)]
        args: DecodeArgs,
    }

    fn parse(arguments: &[&str]) -> DecodeArgs {
        Decode::parse_from(["decode"].iter().chain(arguments)).args
    }

    #[test]
    fn the_ddl_is_what_is_more_than_the_dml_or_less() {
        let decoding = |time, cpu: Option<u64>| Decoding {
            time: Duration::from_millis(time),
            cpu: cpu.map(Duration::from_millis),
            changes: 1,
        };
        let values_of = values(decoding(250, Some(125)), decoding(1000, Some(625)));
        assert_eq!(values_of["total_seconds"], 1.0);
        assert_eq!(values_of["ddl_seconds"], 0.75);
        assert_eq!(values_of["ddl_cpu_seconds"], 0.5);
        let values_of = values(decoding(1000, None), decoding(750, None));
        assert_eq!(values_of["ddl_seconds"], -0.25);
        assert!(!values_of.contains_key("ddl_cpu_seconds"));
    }

    #[test]
    fn every_workload_is_measured_with_every_number_of_tables() {
        let points = parse(&["--tables=9,5"]).describe().unwrap().points;
        let points: Vec<_> = points.into_iter().map(|p| (p.workload, p.x)).collect();
        let expected = [
            ("single_transaction", 5),
            ("single_transaction", 9),
            ("transaction_per_table", 5),
            ("transaction_per_table", 9),
        ];
        assert_eq!(points, expected.map(|(name, x)| (name.to_owned(), x)));
    }

    #[test]
    fn there_is_room_for_all_tables() {
        let settings = parse(&["--tables=1000,50000"]).settings().unwrap();
        let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
        let locks = "max_locks_per_transaction = '2564'".to_owned();
        assert!(settings.contains(&locks), "{settings:?}");
        let buffers = "shared_buffers = '331072kB'".to_owned();
        assert!(settings.contains(&buffers), "{settings:?}");
    }

    #[test]
    fn the_default_targets_differ_by_the_library_alone() {
        let targets = parse(&[]).default_targets(Path::new("pg_config"));
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["stock", "pinpoint"]);
        assert!(targets[0].preload.is_empty() && targets[0].extensions.is_empty());
        assert_eq!(targets[1].preload, ["pg_pinpoint_decoding"]);
        assert_eq!(targets[1].extensions, ["pg_pinpoint_decoding"]);
    }
}
