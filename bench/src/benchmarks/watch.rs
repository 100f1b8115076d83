//! `watch`: what watched tables cost. Each workload is a script of pgbench, and a
//! preparation of the tables that differs between servers with pinpoint.watch() and
//! servers without it.

use clap::{ArgAction, ValueEnum};
use pinpoint_servers::options::{Numbers, numbers};
use serde::Serialize;

use super::options::{TimeArgs, named, points};
use super::transaction::CHANNEL;
use crate::clients::pgbench::{self, MAX_CLIENTS};
use crate::report::results::{Figure, Kind, Scale};
use crate::workload::load::Load;
use crate::workload::{Activity, Benchmark, Workload};

const TPS: &str = "transactions_per_sec";

/// Tables that are watched in one of the workloads, and never changed.
const OTHER_TABLES: u32 = 1000;

#[derive(Debug, clap::Args, Serialize)]
pub struct WatchArgs {
    /// Workloads to measure
    #[arg(
        long,
        action = ArgAction::Set,
        value_name = "NAME,NAME,...",
        value_delimiter = ',',
        default_value = "unwatched,unwatched_1000,statement_trigger,row_trigger,copy,update,\
            update_notify_row",
        value_enum,
    )]
    workload: Vec<Case>,

    /// Numbers of sessions that write; COPY and UPDATE always have one
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1,4",
        value_parser = numbers(1..=MAX_CLIENTS),
    )]
    writers: Numbers,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,
}

/// What a transaction does, and what the servers without and with pinpoint.watch() have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// INSERT of a row; no table is watched
    #[value(name = "unwatched")]
    Unwatched,
    /// INSERT of a row; 1,000 other tables are watched
    #[value(name = "unwatched_1000")]
    Unwatched1000,
    /// INSERT of a row; without watch(): a statement trigger that notifies
    #[value(name = "statement_trigger")]
    StatementTrigger,
    /// INSERT of a row; without watch(): a row trigger that notifies
    #[value(name = "row_trigger")]
    RowTrigger,
    /// COPY of 1,000,000 rows; without watch(): no notification
    #[value(name = "copy")]
    Copy,
    /// UPDATE of 100,000 rows; no trigger
    #[value(name = "update")]
    Update,
    /// UPDATE of 100,000 rows, with notify_row(); without it: a row trigger in PL/pgSQL
    #[value(name = "update_notify_row")]
    UpdateNotifyRow,
}

impl Case {
    fn script(self) -> &'static str {
        match self {
            Self::Copy => "COPY written (id) FROM PROGRAM 'seq 1000000';\nTRUNCATE written;",
            Self::Update | Self::UpdateNotifyRow => "UPDATE written SET n = n + 1;",
            _ => "INSERT INTO written VALUES ({client});",
        }
    }

    fn prepare(self) -> Vec<String> {
        let trigger = |level: &str, call: &str| {
            format!(
                "EXECUTE $f$ CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS \
                 $b$ BEGIN PERFORM pg_notify({call}, ''); RETURN NULL; END $b$ $f$; \
                 CREATE TRIGGER tell AFTER INSERT OR UPDATE ON written \
                 FOR EACH {level} EXECUTE FUNCTION tell();"
            )
        };
        let watch = "PERFORM pinpoint.watch('written', '{channel}');".to_owned();
        let rows = "INSERT INTO written SELECT i, i % 1000 FROM generate_series(1, 100000) AS i;";
        let (with, without) = match self {
            Self::Unwatched | Self::Update => (String::new(), String::new()),
            Self::Unwatched1000 => (
                format!(
                    "PERFORM pinpoint.watch(('other_' || i)::regclass) \
                     FROM generate_series(1, {OTHER_TABLES}) AS i;"
                ),
                String::new(),
            ),
            Self::StatementTrigger => (watch, trigger("STATEMENT", "'{channel}'")),
            Self::RowTrigger => (watch, trigger("ROW", "'{channel}'")),
            Self::Copy => (watch, String::new()),
            Self::UpdateNotifyRow => (
                "CREATE TRIGGER tell AFTER INSERT OR UPDATE ON written FOR EACH ROW \
                 EXECUTE FUNCTION pinpoint.notify_row('written:{customer}');"
                    .to_owned(),
                trigger("ROW", "'written:' || NEW.customer"),
            ),
        };
        let rows = match self {
            Self::Update | Self::UpdateNotifyRow => rows,
            _ => "",
        };
        vec![
            "DROP TABLE IF EXISTS written".to_owned(),
            "DROP FUNCTION IF EXISTS tell()".to_owned(),
            "CREATE TABLE written (id int, customer int, n int DEFAULT 0)".to_owned(),
            format!(
                "DO $$ BEGIN {rows} \
                 IF to_regproc('pinpoint.watch') IS NULL THEN {without} RETURN; END IF; \
                 PERFORM pinpoint.unwatch(relation) FROM pinpoint.watched; {with} END $$"
            ),
        ]
    }

    fn clients(self, writers: u32) -> u32 {
        match self {
            Self::Copy | Self::Update | Self::UpdateNotifyRow => 1,
            _ => writers,
        }
    }
}

impl WatchArgs {
    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let options = [("writers", &self.writers)];
        let workload = |case, [writers]: [u32; 1]| self.workload(case, writers);
        let mut figure = Figure::new(TPS, "transactions per second", Kind::Rate).drawn();
        figure.scale = Scale::Linear;
        let mut benchmark = Benchmark {
            method: vec![
                format!(
                    "pgbench inserts rows, one per transaction. unwatched, unwatched_1000: the \
                     table is not watched; none, or {OTHER_TABLES} other tables are. \
                     statement_trigger, row_trigger: the table is watched; where \
                     pinpoint.watch() does not exist, it has a trigger in PL/pgSQL that notifies. \
                     No session listens."
                ),
                "copy: COPY of 1,000,000 rows, and TRUNCATE. The table is watched; where \
                 pinpoint.watch() does not exist, nothing is notified. update: UPDATE of 100,000 \
                 rows, no table is watched. update_notify_row: the same with a row trigger that \
                 notifies one of 1,000 channels: pinpoint.notify_row(), or a function in \
                 PL/pgSQL. These have one writer."
                    .to_owned(),
                format!(
                    "A run takes {} s after {} s that are not measured, in the same sessions.",
                    self.time.duration.as_secs_f64(),
                    self.time.warmup.as_secs_f64()
                ),
            ],
            figures: vec![figure],
            points: points(&about.axis, options, &named(&self.workload), workload)?,
            programs: vec![pgbench::PROGRAM],
            ..about
        };
        benchmark.setup = vec![format!(
            "DO $$ BEGIN FOR i IN 1..{OTHER_TABLES} LOOP \
             EXECUTE format('CREATE TABLE other_%s (id int)', i); END LOOP; END $$"
        )];
        Ok(benchmark)
    }

    fn workload(&self, case: Case, writers: u32) -> Workload {
        let pgbench = self.time.pgbench(case.clients(writers));
        let script = case.script().to_owned();
        let load = Load::of_script(CHANNEL, pgbench, TPS, case.prepare(), script);
        Workload::from(Activity::Load(load))
    }
}
