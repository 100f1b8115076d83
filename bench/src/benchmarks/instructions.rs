//! `instructions`: what a server does for an operation, counted.

use std::path::Path;

use clap::builder::PossibleValuesParser;
use pinpoint_servers::options::number;
use pinpoint_servers::target::Target;
use serde::Serialize;

use super::options::MOST;
use crate::report::operations::{INSTRUCTIONS, LIBRARY, SYSTEM_CALLS, WAL_BYTES};
use crate::report::results::{Figure, Kind};
use crate::workload::callgrind;
use crate::workload::counting::Preparation::{Alter, Nothing, Watch};
use crate::workload::counting::Step::{Ask, Execute, Receive, Wait};
use crate::workload::counting::Who::{Caller, Other};
use crate::workload::counting::{Counting, Step};
use crate::workload::{Activity, Benchmark, PointId, Workload};

/// So many channels or altered tables take as long as anything else in an operation.
const CHANNELS_OF_OPERATION: u32 = 50;
const TABLES_OF_OPERATION: u32 = 4;

/// Of an operation that takes long, no fewer than these are counted.
const LEAST: u32 = 4;

/// In SQL, for the caller, while nobody listens.
const ALONE: Counting = Counting {
    preparation: Nothing,
    x: 0,
    needs_library: false,
    first: ["", ""],
    steps: &[],
    counted: &[Caller],
    times: 0,
};

/// The other session listens.
const HEARD: Counting = Counting {
    first: ["", "LISTEN c1"],
    ..ALONE
};

const OF_LIBRARY: Counting = Counting {
    needs_library: true,
    ..ALONE
};

const fn commit(channels: u32) -> (&'static str, Counting) {
    let steps = &[
        Execute(
            Caller,
            "BEGIN; SELECT count(pg_notify('c' || i, '')) FROM generate_series(1, {x}) AS i; \
             COMMIT",
        ),
        Receive(Other),
    ];
    let x = channels;
    ("commit", Counting { x, steps, ..HEARD })
}

const INSERT: &[Step] = &[Execute(Caller, "INSERT INTO plain VALUES (1)")];

const fn insert_unwatched(watched: u32) -> (&'static str, Counting) {
    let counting = Counting {
        preparation: Watch,
        x: watched,
        steps: INSERT,
        ..ALONE
    };
    ("insert_unwatched", counting)
}

const fn insert_watched(watched: u32) -> (&'static str, Counting) {
    let counting = Counting {
        preparation: Watch,
        x: watched,
        steps: &[Execute(Caller, "INSERT INTO w1 VALUES (1)")],
        ..OF_LIBRARY
    };
    ("insert_watched", counting)
}

/// An operation of SQL statements.
const fn sql(
    name: &'static str,
    kind: Counting,
    steps: &'static [Step],
) -> (&'static str, Counting) {
    (name, Counting { steps, ..kind })
}

/// In the order in which they are measured. What is watched stays watched, and what was
/// notified stays in PostgreSQL's queue for a while: its LISTEN reads it.
const OPERATIONS: [(&str, Counting); 20] = [
    sql("select", ALONE, &[Execute(Caller, "SELECT 1")]),
    sql(
        "begin_commit",
        ALONE,
        &[Execute(Caller, "BEGIN"), Execute(Caller, "COMMIT")],
    ),
    sql("insert", ALONE, INSERT),
    sql("listen_again", ALONE, &[Execute(Caller, "LISTEN c1")]),
    sql(
        "listen_unlisten",
        ALONE,
        &[Execute(Caller, "LISTEN c1"), Execute(Caller, "UNLISTEN c1")],
    ),
    sql(
        "notify",
        HEARD,
        &[Execute(Caller, "NOTIFY c1"), Receive(Other)],
    ),
    sql(
        "pg_notify",
        HEARD,
        &[
            Execute(Caller, "SELECT pg_notify('c1', '')"),
            Receive(Other),
        ],
    ),
    (
        "delivery",
        Counting {
            first: ["LISTEN c1", ""],
            steps: &[Execute(Other, "NOTIFY c1"), Receive(Caller)],
            ..ALONE
        },
    ),
    (
        "pingpong",
        Counting {
            first: ["LISTEN c1", "LISTEN c2"],
            steps: &[
                Execute(Caller, "NOTIFY c2"),
                Receive(Other),
                Execute(Other, "NOTIFY c1"),
                Receive(Caller),
            ],
            counted: &[Caller, Other],
            ..ALONE
        },
    ),
    commit(1),
    commit(100),
    commit(1000),
    commit(10000),
    sql(
        "changed_since",
        OF_LIBRARY,
        &[Execute(Other, "NOTIFY c1"), Ask(Caller)],
    ),
    sql(
        "changed_since_other",
        OF_LIBRARY,
        &[Ask(Other), Execute(Other, "NOTIFY c1"), Ask(Caller)],
    ),
    sql("wait", OF_LIBRARY, &[Wait]),
    (
        "decode",
        Counting {
            preparation: Alter,
            steps: &[Execute(
                Caller,
                "SELECT count(*) FROM pg_logical_slot_peek_changes('altered', NULL, NULL)",
            )],
            ..ALONE
        },
    ),
    insert_watched(1),
    insert_watched(1000),
    insert_unwatched(1000),
];

fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[derive(Debug, clap::Args, Serialize)]
pub struct InstructionsArgs {
    /// Operations to measure; all by default
    #[arg(
        long,
        value_name = "NAME,NAME,...",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(names()),
    )]
    operation: Vec<String>,

    /// How many operations are counted; fewer of those that take long
    #[arg(long, value_name = "N", default_value = "100", value_parser = number(LEAST..=MOST))]
    count: u32,
}

impl InstructionsArgs {
    pub fn describe(&self, about: Benchmark) -> anyhow::Result<Benchmark> {
        let count = |name, label| Figure::new(name, label, Kind::Count);
        let settings = [
            // For the operation decode.
            "wal_level=logical",
            // One transaction watches all tables.
            "max_locks_per_transaction=256",
            // The rest is to happen at no time, or always.
            "full_page_writes=off",
            "autovacuum=off",
            "checkpoint_timeout=1d",
            "jit=off",
        ];
        Ok(Benchmark {
            method: [
                "The servers run under valgrind --tool=callgrind, which counts the instructions \
                 of each process and records its system calls. Calls that read the clock are \
                 left out, because they are none without valgrind, and records of WAL about \
                 standbys, which the server writes now and then. Two runs are made in new \
                 sessions, with different numbers of operations. The difference is divided by \
                 the difference of the numbers, so that the begin and the end of a session do \
                 not count. What other processes do does not count, except for bytes of WAL. Each \
                 step of an operation begins when both sessions wait.",
                "Two sessions take part. notify, pg_notify, commit: a session notifies one \
                 channel, or each of so many channels once, and the other session listens on one \
                 of them. delivery: the listener counts. pingpong: both sessions count. \
                 changed_since, changed_since_other: the channel was notified since the \
                 position, which the session itself or the other session was told. wait: the \
                 other session notifies when the session waits. Both statements are prepared, \
                 with the channels as a parameter. insert_watched, \
                 insert_unwatched: so many tables are watched. decode: an INSERT and an ALTER \
                 TABLE of one table, in a transaction that changes many tables.",
                "The servers run with wal_level = logical, full_page_writes = off, and without \
                 autovacuum, JIT and timed checkpoints.",
            ]
            .map(str::to_owned)
            .into(),
            figures: vec![
                count(INSTRUCTIONS, "instructions"),
                count(LIBRARY, "instructions in libraries of pg_pinpoint"),
                count(SYSTEM_CALLS, "system calls"),
                count(WAL_BYTES, "bytes of WAL"),
            ],
            points: self.points(),
            setup: vec![
                "CREATE TABLE plain (a int)".to_owned(),
                "CREATE EXTENSION pg_walinspect".to_owned(),
            ],
            settings: settings
                .into_iter()
                .map(str::parse)
                .collect::<anyhow::Result<_>>()?,
            default_targets,
            needs_own_cluster: Some("it runs servers under valgrind"),
            wrapper: callgrind::WRAPPER,
            objection: |_| {
                (!callgrind::is_installed()).then_some("there is no valgrind here: install it")
            },
            ..about
        })
    }

    fn points(&self) -> Vec<(PointId, Workload)> {
        let chosen = |name: &str| {
            self.operation.is_empty() || self.operation.iter().any(|chosen| chosen == name)
        };
        let operations = OPERATIONS.into_iter().filter(|(name, _)| chosen(name));
        let point = |(name, counting): (&str, Counting)| {
            let id = PointId {
                workload: name.to_owned(),
                x: counting.x,
            };
            let times = self.times(&counting);
            let counting = Counting { times, ..counting };
            (id, Workload::from(Activity::Counting(counting)))
        };
        operations.map(point).collect()
    }

    fn times(&self, counting: &Counting) -> u32 {
        let takes = match counting.preparation {
            Nothing => 1 + counting.x / CHANNELS_OF_OPERATION,
            Watch => 1,
            Alter => TABLES_OF_OPERATION,
        };
        (self.count / takes).max(LEAST)
    }
}

fn default_targets(pg_config: &Path) -> Vec<Target> {
    let mut pinpoint = Target::pinpoint(pg_config);
    pinpoint.preload.push("pg_pinpoint_decoding".to_owned());
    vec![Target::stock(pg_config), pinpoint]
}
