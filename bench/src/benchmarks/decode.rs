//! `decode`: how long logical decoding takes for DDL, against the number of tables.

use clap::ArgAction;
use pinpoint_servers::options::{Numbers, numbers};
use pinpoint_servers::target::{Setting, Target};
use serde::Serialize;

use super::options::{named, points};
use crate::report::results::{Figure, Kind};
use crate::workload::decoding::statements::Grouping;
use crate::workload::decoding::{Decoding, Interface, library, recvlogical};
use crate::workload::{Activity, Benchmark, Workload};

/// Each of them has a file, twice with that of the other server.
const MAX_TABLES: u32 = 1_000_000;

/// With that many sessions there is room for this many locks for each of the
/// server's max_locks_per_transaction: those are for all sessions together.
const SESSIONS_THAT_LEND_LOCKS: u32 = 20;

/// PostgreSQL's default.
const LOCKS_FOR_OTHERS: u32 = 64;

/// PostgreSQL's default for shared_buffers, and what the catalogs with their indexes take
/// of it for each table: all of them are to fit.
const BUFFERS_FOR_OTHERS_KB: u32 = 128 * 1024;
const CATALOGS_OF_TABLE_KB: u32 = 4;

#[derive(Debug, clap::Args, Serialize)]
pub struct DecodeArgs {
    /// Numbers of tables
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1000,5000,10000,50000",
        value_parser = numbers(1..=MAX_TABLES),
    )]
    tables: Numbers,

    /// Workloads to measure
    #[arg(
        long,
        action = ArgAction::Set,
        value_enum,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        default_value = "single_transaction,transaction_per_table"
    )]
    workload: Vec<Grouping>,

    /// Process that decodes
    #[arg(long, value_enum, default_value_t = Interface::WalSender)]
    interface: Interface,
}

impl DecodeArgs {
    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let time = |name, label| Figure::new(name, label, Kind::Time);
        let figures = vec![
            time("ddl_seconds", "seconds to decode the DDL").drawn(),
            time("dml_seconds", "seconds to decode the DML alone").drawn(),
            time("total_seconds", "seconds to decode DML and DDL"),
        ];
        let mut programs = Vec::new();
        let interface = match self.interface {
            Interface::WalSender => {
                programs.push(recvlogical::PROGRAM);
                "pg_recvlogical receives the output of test_decoding and writes it to a file. \
                 The time is measured from its start to its end. All runs decode the same WAL, \
                 with copies of two replication slots."
            }
            Interface::Sql => {
                "A session that stays connected counts the rows of \
                 pg_logical_slot_peek_changes() with test_decoding. The time is the duration of \
                 this query. All runs decode the same WAL, which two replication slots keep."
            }
        };
        let options = [("tables", &self.tables)];
        let workload = |grouping, [tables]: [u32; 1]| {
            Workload::from(Activity::Decoding(Decoding {
                interface: self.interface,
                grouping,
                tables,
            }))
        };
        Ok(Benchmark {
            method: [
                "N tables are created, and one row is inserted into each. Then a second row is \
                 inserted into each table, and ALTER TABLE ADD COLUMN is executed on each: in \
                 one transaction (single_transaction), or in one transaction per statement \
                 (transaction_per_table).",
                interface,
                "dml_seconds is the time for the first INSERTs. total_seconds is the time for \
                 the second INSERTs and the ALTER TABLEs. ddl_seconds is the difference; noise \
                 can make it negative. Every second run decodes the two in reverse order. Both \
                 are decoded once before the first run. Every run must decode one row for each \
                 INSERT. On a server with pg_pinpoint_decoding, the library must have looked up \
                 the tables.",
                "The servers run with fsync = off, logical_decoding_work_mem = '4GB', \
                 shared_buffers large enough for the catalogs, and without autovacuum, so that \
                 the time is processor time.",
            ]
            .map(str::to_owned)
            .into(),
            figures,
            points: points(&about.axis, options, &named(&self.workload), workload)?,
            programs,
            settings: self.settings()?,
            default_targets: |pg_config| vec![Target::stock(pg_config), library::target(pg_config)],
            needs_own_cluster: Some("it makes databases and replication slots"),
            ..about
        })
    }

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
