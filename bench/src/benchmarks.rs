//! The benchmarks: the options of each subcommand, and the description that they make.
//!
//! Subcommands that ask another question of the same kind of workload have the same
//! options with other defaults.

mod channels;
mod commit;
mod decode;
mod listen;
mod options;
mod pingpong;
mod standby;
mod transaction;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use self::channels::ChannelsArgs;
use self::commit::{CommitArgs, NotifyArgs};
use self::decode::DecodeArgs;
use self::listen::{LISTEN, ListenArgs, OVERHEAD, script_parser};
use self::pingpong::PingpongArgs;
use self::standby::StandbyArgs;
use crate::report::results::Axis;
use crate::report::results::Scale::{Linear, Logarithmic};
use crate::runner::options::CommonArgs;
use crate::workload::Benchmark;

/// The subcommands that measure.
#[derive(Debug, Subcommand)]
pub enum BenchmarkCommand {
    /// Round trips per second between two sessions, against the number of idle listeners
    ///
    /// A session notifies another one, which answers at once with a NOTIFY of its own. When
    /// the answer is there, the next round trip begins. Meanwhile further sessions are
    /// connected and LISTEN on channels on which nothing is ever sent.
    ///
    /// Example: pinpoint-bench pingpong --idle-listeners 0,1000 --duration 2s
    Pingpong(Measure<PingpongArgs>),

    /// Round trips per second, against the number of sessions that answer
    ///
    /// A session notifies a group of sessions, each of which answers at once with a NOTIFY
    /// of its own. When all answers are there, the next round trip begins.
    ///
    /// Example: pinpoint-bench multicast --group 1,5 --idle-listeners 500
    #[command(
        mut_arg("group", |arg| arg.default_value("1,2,4,8,16")),
        mut_arg("idle_listeners", |arg| arg.default_value("60")),
    )]
    Multicast(Measure<PingpongArgs>),

    /// What a notification adds to a transaction that writes
    ///
    /// pgbench inserts rows, once with a NOTIFY in each transaction and once with an
    /// equally long statement that does nothing in its place. This is measured for each
    /// number of sessions that write, while listeners read all notifications. Also measures
    /// how long a notification is on its way meanwhile.
    ///
    /// Example: pinpoint-bench commit --writers 1,16 --duration 10s
    #[command(mut_arg("writers", |arg| arg.default_value("1,4,16,64")))]
    Commit(Measure<CommitArgs>),

    /// Notifications per second, against the number of sessions that send
    ///
    /// pgbench sends notifications and nothing else, all on one channel, while listeners
    /// read them.
    ///
    /// Example: pinpoint-bench notify --senders 16,64 --listeners 10
    Notify(Measure<NotifyArgs>),

    /// Transactions per second that notify a channel on which many sessions listen
    ///
    /// The same as `commit`, against the number of listeners: the workers of a job queue.
    /// They get every notification, get it folded, or share the channel.
    ///
    /// Example: pinpoint-bench queue --listeners 200 --workload shared
    #[command(
        mut_arg("listeners", |arg| arg.default_value("1,50,200,1000")),
        mut_arg("workload", |arg| arg.default_value("broadcast,folded,shared")),
    )]
    Queue(Measure<CommitArgs>),

    /// How long a sender waits for COMMIT, against the number of channels
    ///
    /// A transaction sends one notification to each of N channels, on which sessions
    /// listen. Measured is the time of its COMMIT, and how long it takes until all have
    /// everything.
    ///
    /// Example: pinpoint-bench channels --channels 1,1000 --listeners 10
    #[command(mut_arg("channels", |arg| arg.default_value("1,10,100,1000..10000/1000")))]
    Channels(Measure<ChannelsArgs>),

    /// How long a sender waits for COMMIT, against the number of sessions that listen
    ///
    /// The same as `channels`, with 1,000 channels.
    ///
    /// Example: pinpoint-bench listeners --listeners 1,50 --channels 100
    #[command(mut_arg("listeners", |arg| arg.default_value("1,10,50,100,200")))]
    Listeners(Measure<ChannelsArgs>),

    /// How long a sender waits for COMMIT, against the number of idle sessions
    ///
    /// The same as `channels`, with 1,000 channels and sessions that have never executed
    /// LISTEN.
    ///
    /// Example: pinpoint-bench idle --idle-sessions 0,500
    #[command(mut_arg("idle_sessions", |arg| arg.default_value("0,50,100,200,300,400,500")))]
    Idle(Measure<ChannelsArgs>),

    /// How long one notification to many listeners takes, against their number
    ///
    /// The same as `listeners`, with one channel, on which the sender does not listen.
    ///
    /// Example: pinpoint-bench hub --listeners 1,1000
    #[command(
        mut_arg("channels", |arg| arg.default_value("1")),
        mut_arg("listeners", |arg| arg.default_value("1,10,100,1000")),
        mut_arg("workload", |arg| arg.default_value("others_listen")),
        mut_arg("transactions", |arg| arg.default_value("50")),
    )]
    Hub(Measure<ChannelsArgs>),

    /// Transactions per second that LISTEN, UNLISTEN and NOTIFY
    ///
    /// pgbench executes LISTEN, LISTEN and UNLISTEN, or LISTEN and NOTIFY, again and again. Each
    /// session does so either on a channel of its own (unique), or all on the same one (common).
    ///
    /// Example: pinpoint-bench listen --workload listen_notify_unique --connections 8,64
    #[command(
        mut_arg("workload", |arg| arg.value_parser(script_parser(&LISTEN))),
        mut_arg("protocol", |arg| arg.hide(true)),
        mut_arg("scale", |arg| arg.hide(true)),
    )]
    Listen(Measure<ListenArgs>),

    /// Transactions per second that only look up a row
    ///
    /// The workloads look up one row by its key, as pgbench -S does, in sessions that have
    /// executed LISTEN once or never.
    ///
    /// Example: pinpoint-bench overhead --protocol prepared --scale 100 --duration 30s
    #[command(
        mut_arg("workload", |arg| {
            arg.value_parser(script_parser(&OVERHEAD))
                .default_value("select_only,select_only_listening")
        }),
        mut_arg("connections", |arg| arg.default_value("1,4,16")),
    )]
    Overhead(Measure<ListenArgs>),

    /// How long logical decoding takes for DDL, against the number of tables
    ///
    /// A row is inserted into each of N tables, and ALTER TABLE ADD COLUMN done on
    /// each. test_decoding makes text of that, for pg_recvlogical or for SQL. The time
    /// for the INSERTs alone is measured, too, and subtracted. Stock PostgreSQL is
    /// compared with one that has the library pg_pinpoint_decoding.
    ///
    /// Example: pinpoint-bench decode --tables 1000,10000 --temp-dir /dev/shm
    Decode(Measure<DecodeArgs>),

    /// How long a notification takes to a listener on a standby, and what that costs
    ///
    /// Two servers that both have a streaming standby are compared: the same server with
    /// pinpoint.replicate off and on. pgbench inserts rows and notifies, in so many
    /// sessions. Meanwhile one more session does the same at fixed times: measured is when
    /// its notification arrives at a listener on the primary and at one on the standby, and
    /// when its row becomes visible on the standby, which is PostgreSQL's own time.
    ///
    /// Example: pinpoint-bench standby --writers 0,16 --duration 10s
    Standby(Measure<StandbyArgs>),
}

/// The options of a benchmark, and those that all have.
#[derive(Debug, Args, Serialize)]
pub struct Measure<T: Args> {
    #[command(flatten)]
    #[serde(flatten)]
    own: T,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

impl BenchmarkCommand {
    /// The description of what is to be measured. The axis has the name of the option that
    /// varies.
    pub fn benchmark(&self) -> anyhow::Result<Benchmark> {
        let about = |name, question, (option, label): (&str, &str)| {
            Benchmark::new(name, question, Axis::new(option, label, Logarithmic))
        };
        match self {
            Self::Pingpong(args) => args.own.describe(about(
                "pingpong",
                "How many round trips per second do two sessions make while others listen on \
                 channels of their own?",
                ("idle_listeners", "idle listeners"),
            )),
            Self::Multicast(args) => args.own.describe(about(
                "multicast",
                "How many round trips per second does a session make to a group of listeners \
                 that all answer?",
                ("group", "listeners in the group"),
            )),
            Self::Commit(args) => args.own.describe(about(
                "commit",
                "What does a notification add to a transaction that writes?",
                ("writers", "writers"),
            )),
            Self::Notify(args) => args.own.describe(about(
                "notify",
                "How many notifications per second can many sessions send?",
                ("senders", "senders"),
            )),
            Self::Queue(args) => args.own.describe_queue(about(
                "queue",
                "How many transactions per second can notify a channel that many listen on?",
                ("listeners", "listeners"),
            )),
            Self::Channels(args) => args.own.describe(about(
                "channels",
                "How long does a sender wait for the COMMIT of notifications on many channels?",
                ("channels", "channels"),
            )),
            Self::Listeners(args) => args.own.describe(about(
                "listeners",
                "How long does a sender wait for its COMMIT when more and more sessions listen?",
                ("listeners", "listeners"),
            )),
            Self::Idle(args) => args.own.describe(Benchmark::new(
                "idle",
                "How long does a sender wait for its COMMIT when more and more sessions are \
                 connected that do not listen?",
                Axis::new("idle_sessions", "idle sessions", Linear),
            )),
            Self::Hub(args) => args.own.describe(about(
                "hub",
                "How long does one notification to many listeners take, for the sender and until \
                 all have it?",
                ("listeners", "listeners"),
            )),
            Self::Listen(args) => args.own.describe_listen(about(
                "listen",
                "How many times per second can many sessions LISTEN, UNLISTEN and NOTIFY \
                 themselves?",
                ("connections", "connections"),
            )),
            Self::Overhead(args) => args.own.describe_overhead(about(
                "overhead",
                "What does the library cost a server that does something else?",
                ("connections", "connections"),
            )),
            Self::Decode(args) => args.own.describe(about(
                "decode",
                "How long does logical decoding take for DDL on many tables?",
                ("tables", "tables"),
            )),
            Self::Standby(args) => args.own.describe(about(
                "standby",
                "How long does a notification take to a listener on a standby, and what does it \
                 cost the sender?",
                ("writers", "writers"),
            )),
        }
    }

    pub fn common(&self) -> &CommonArgs {
        self.parts().0
    }

    /// The options, for the record.
    pub fn parameters(&self) -> Value {
        self.parts().1
    }

    fn parts(&self) -> (&CommonArgs, Value) {
        match self {
            Self::Pingpong(args) | Self::Multicast(args) => (&args.common, json!(args)),
            Self::Commit(args) | Self::Queue(args) => (&args.common, json!(args)),
            Self::Notify(args) => (&args.common, json!(args)),
            Self::Channels(args) | Self::Listeners(args) | Self::Idle(args) | Self::Hub(args) => {
                (&args.common, json!(args))
            }
            Self::Listen(args) | Self::Overhead(args) => (&args.common, json!(args)),
            Self::Decode(args) => (&args.common, json!(args)),
            Self::Standby(args) => (&args.common, json!(args)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::workload::listeners::Delivery;
    use crate::workload::{Activity, Workload};

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: BenchmarkCommand,
    }

    fn benchmark(arguments: &[&str]) -> anyhow::Result<Benchmark> {
        let arguments = ["pinpoint-bench"].iter().chain(arguments);
        Program::parse_from(arguments).command.benchmark()
    }

    /// What `number` finds at each point, beside the name of the point.
    fn points<T>(arguments: &[&str], number: impl Fn(&Workload) -> T) -> Vec<(String, T)> {
        let points = benchmark(arguments).unwrap().points.into_iter();
        let points = points.map(|(id, workload)| (id.workload, number(&workload)));
        points.collect()
    }

    #[test]
    fn a_workload_has_the_numbers_of_its_point() {
        let commits = |workload: &Workload| match &workload.activity {
            Activity::Commits(commits) => (
                commits.channels,
                commits.sender_listens,
                commits.listeners,
                workload.idle.sessions,
            ),
            other => panic!("{other:?}"),
        };
        let (sender, others) = ("sender_listens".to_owned(), "others_listen".to_owned());
        assert_eq!(
            points(&["channels", "--channels=1,5"], commits),
            [
                (sender.clone(), (1, true, 0, 0)),
                (others.clone(), (1, false, 1, 0)),
                (sender.clone(), (5, true, 0, 0)),
                (others.clone(), (5, false, 1, 0)),
            ]
        );
        assert_eq!(
            points(&["listeners", "--listeners=5"], commits),
            [(sender, (1000, true, 4, 0)), (others, (1000, false, 5, 0))]
        );
        assert_eq!(
            points(&["hub", "--listeners=9", "--idle-sessions=2"], commits),
            [(String::new(), (1, false, 9, 2))]
        );
        assert_eq!(points(&["channels"], commits).len(), 2 * 13);
    }

    #[test]
    fn writers_or_listeners_are_varied() {
        let load = |workload: &Workload| match &workload.activity {
            Activity::Load(load) => {
                let listeners = load.listeners[0];
                (load.pgbench.clients, listeners.count, listeners.delivery)
            }
            other => panic!("{other:?}"),
        };
        let none = String::new;
        assert_eq!(
            points(&["commit", "--writers=1,4", "--listeners=3"], load),
            [
                (none(), (1, 3, Delivery::Broadcast)),
                (none(), (4, 3, Delivery::Broadcast)),
            ]
        );
        assert_eq!(
            points(
                &["queue", "--listeners=9", "--workload=shared,folded,shared"],
                load
            ),
            [
                ("shared".to_owned(), (16, 9, Delivery::Shared)),
                ("folded".to_owned(), (16, 9, Delivery::Folded)),
            ]
        );
        assert_eq!(
            points(&["notify", "--senders=8"], load),
            [(none(), (8, 1, Delivery::Broadcast))]
        );
    }

    #[test]
    fn only_the_number_of_the_axis_has_several_values() {
        for arguments in [
            ["multicast", "--idle-listeners=1,2"],
            ["pingpong", "--group=1,2"],
            ["commit", "--listeners=1,2"],
            ["queue", "--writers=1,2"],
            ["hub", "--channels=1,2"],
            ["idle", "--listeners=1,2"],
        ] {
            let error = benchmark(&arguments).unwrap_err().to_string();
            assert!(
                error.contains("has several numbers, but it is --"),
                "{error}"
            );
        }
    }

    #[test]
    fn there_is_room_for_all_tables() {
        let settings = benchmark(&["decode", "--tables=1000,50000"])
            .unwrap()
            .settings;
        let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
        for setting in [
            "max_locks_per_transaction = '2564'",
            "shared_buffers = '331072kB'",
        ] {
            assert!(settings.iter().any(|s| s == setting), "{settings:?}");
        }
    }

    #[test]
    fn the_default_targets_differ_by_one_thing() {
        let targets = |subcommand| {
            let benchmark = benchmark(&[subcommand]).unwrap();
            (benchmark.default_targets)(Path::new("pg_config"))
        };
        let [stock, pinpoint] = &targets("decode")[..] else {
            panic!("decode compares two servers");
        };
        assert_eq!((&stock.name[..], &pinpoint.name[..]), ("stock", "pinpoint"));
        assert!(stock.preload.is_empty() && stock.extensions.is_empty());
        assert_eq!(pinpoint.preload, ["pg_pinpoint_decoding"]);
        assert_eq!(pinpoint.extensions, ["pg_pinpoint_decoding"]);

        let [off, on] = &targets("standby")[..] else {
            panic!("standby compares two servers");
        };
        assert_eq!(off.settings[0].to_string(), "pinpoint.replicate = 'off'");
        assert_eq!(on.settings[0].to_string(), "pinpoint.replicate = 'on'");
        assert_eq!(
            (&off.preload, &off.extensions),
            (&on.preload, &on.extensions)
        );
    }

    #[test]
    fn a_standby_needs_the_library_and_the_extension() {
        let benchmark = benchmark(&["standby"]).unwrap();
        for (target, is_refused) in [
            ("a=pg_config", true),
            ("a=pg_config,preload=pg_pinpoint", true),
            (
                "a=pg_config,preload=pg_pinpoint,extension=pg_pinpoint",
                false,
            ),
        ] {
            let objection = (benchmark.objection)(&target.parse().unwrap());
            assert_eq!(objection.is_some(), is_refused, "{target}");
        }
    }
}
