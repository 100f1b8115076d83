//! The benchmarks: the options of each subcommand, and the description that they make.
//!
//! Subcommands that ask another question of the same kind of workload have the same
//! options with other defaults.

mod channels;
mod commit;
mod decode;
mod instructions;
mod listen;
mod options;
mod pingpong;
mod standby;
mod transaction;
mod watch;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use self::channels::ChannelsArgs;
use self::commit::{CommitArgs, NotifyArgs};
use self::decode::DecodeArgs;
use self::instructions::InstructionsArgs;
use self::listen::{LISTEN, ListenArgs, OVERHEAD, script_parser};
use self::pingpong::PingpongArgs;
use self::standby::StandbyArgs;
use self::watch::WatchArgs;
use crate::report::operations;
use crate::report::results::Axis;
use crate::report::results::Scale::{Linear, Logarithmic};
use crate::runner::measure::Job;
use crate::runner::options::CommonArgs;
use crate::workload::Benchmark;

/// The subcommands that measure.
#[derive(Debug, Subcommand)]
pub enum BenchmarkCommand {
    /// Round trips per second between two sessions, by number of idle listeners
    ///
    /// A session notifies a second session, which answers with a NOTIFY. When the answer
    /// has arrived, the next round trip begins. Idle listeners are connected meanwhile.
    /// They listen on channels that no session notifies.
    ///
    /// Example: pinpoint-bench pingpong --idle-listeners 0,1000 --duration 2s
    Pingpong(Measure<PingpongArgs>),

    /// Round trips per second, by number of sessions that answer
    ///
    /// A session notifies a group of sessions. Each of them answers with a NOTIFY. When all
    /// answers have arrived, the next round trip begins.
    ///
    /// Example: pinpoint-bench multicast --group 1,5 --idle-listeners 500
    #[command(
        mut_arg("group", |arg| arg.default_value("1,2,4,8,16")),
        mut_arg("idle_listeners", |arg| arg.default_value("60")),
    )]
    Multicast(Measure<PingpongArgs>),

    /// Cost of a notification in a transaction that writes, by number of writers
    ///
    /// pgbench inserts rows. The transactions of one load contain a NOTIFY, those of the
    /// other load a statement of the same length that does nothing. Listeners read all
    /// notifications. The latency of notifications is measured at the same time.
    ///
    /// Example: pinpoint-bench commit --writers 1,16 --duration 10s
    #[command(mut_arg("writers", |arg| arg.default_value("1,4,16,64")))]
    Commit(Measure<CommitArgs>),

    /// Notifications per second, by number of senders
    ///
    /// Each transaction of pgbench is one NOTIFY. All of them notify the same channel.
    /// Listeners read all notifications.
    ///
    /// Example: pinpoint-bench notify --senders 16,64 --listeners 10
    Notify(Measure<NotifyArgs>),

    /// Transactions per second that notify one channel, by number of listeners
    ///
    /// Like `commit`, with many listeners, as if they were the workers of a job queue. They
    /// receive every notification, fold identical ones, or share the channel.
    ///
    /// Example: pinpoint-bench queue --listeners 200 --workload shared
    #[command(
        mut_arg("listeners", |arg| arg.default_value("1,50,200,1000")),
        mut_arg("workload", |arg| arg.default_value("broadcast,folded,shared")),
    )]
    Queue(Measure<CommitArgs>),

    /// Duration of COMMIT for the sender, by number of channels
    ///
    /// A transaction notifies each of N channels once. The duration of its COMMIT is
    /// measured, and the time until all listeners have received everything.
    ///
    /// Example: pinpoint-bench channels --channels 1,1000 --listeners 10
    #[command(mut_arg("channels", |arg| arg.default_value("1,10,100,1000..10000/1000")))]
    Channels(Measure<ChannelsArgs>),

    /// Duration of COMMIT for the sender, by number of listeners
    ///
    /// Like `channels`, with 1,000 channels.
    ///
    /// Example: pinpoint-bench listeners --listeners 1,50 --channels 100
    #[command(mut_arg("listeners", |arg| arg.default_value("1,10,50,100,200")))]
    Listeners(Measure<ChannelsArgs>),

    /// Duration of COMMIT for the sender, by number of idle sessions
    ///
    /// Like `channels`, with 1,000 channels, and with sessions that never execute LISTEN.
    ///
    /// Example: pinpoint-bench idle --idle-sessions 0,500
    #[command(mut_arg("idle_sessions", |arg| arg.default_value("0,50,100,200,300,400,500")))]
    Idle(Measure<ChannelsArgs>),

    /// Time until one notification has reached all listeners, by number of listeners
    ///
    /// Like `listeners`, with one channel. The sender does not listen.
    ///
    /// Example: pinpoint-bench hub --listeners 1,1000
    #[command(
        mut_arg("channels", |arg| arg.default_value("1")),
        mut_arg("listeners", |arg| arg.default_value("1,10,100,1000")),
        mut_arg("workload", |arg| arg.default_value("others_listen")),
        mut_arg("transactions", |arg| arg.default_value("50")),
    )]
    Hub(Measure<ChannelsArgs>),

    /// Transactions per second with LISTEN, UNLISTEN and NOTIFY, by number of connections
    ///
    /// Each transaction of pgbench is LISTEN, LISTEN and UNLISTEN, or LISTEN and NOTIFY. Each
    /// session has a channel of its own (unique), or all sessions have the same channel (common).
    ///
    /// Example: pinpoint-bench listen --workload listen_notify_unique --connections 8,64
    #[command(
        mut_arg("workload", |arg| arg.value_parser(script_parser(&LISTEN))),
    )]
    Listen(Measure<ListenArgs>),

    /// Transactions per second with SELECT only, by number of connections
    ///
    /// Each transaction selects one row by its key, like pgbench -S. The sessions have
    /// executed LISTEN once or never.
    ///
    /// Example: pinpoint-bench overhead --connections 8 --duration 30s
    #[command(
        mut_arg("workload", |arg| {
            arg.value_parser(script_parser(&OVERHEAD))
                .default_value("select_only,select_only_listening")
        }),
        mut_arg("connections", |arg| arg.default_value("1,4,16")),
    )]
    Overhead(Measure<ListenArgs>),

    /// Duration of logical decoding of DDL, by number of tables
    ///
    /// An INSERT and an ALTER TABLE ADD COLUMN are executed on each of N tables, and decoded
    /// with test_decoding. The time to decode INSERTs alone is measured separately and
    /// subtracted. By default, the targets are stock PostgreSQL and a server with
    /// pg_pinpoint_decoding.
    ///
    /// Example: pinpoint-bench decode --tables 1000,10000 --temp-dir /dev/shm
    Decode(Measure<DecodeArgs>),

    /// Latency of notifications on a standby, and their cost for the sender
    ///
    /// Each target has a streaming standby. By default, the targets differ in
    /// pinpoint.replicate. The transactions of pgbench insert a row and notify. A probe
    /// executes the same transaction at fixed times. Three latencies are measured: until a
    /// listener on the primary has the notification, until a listener on the standby has
    /// it, and until the row is visible on the standby.
    ///
    /// Example: pinpoint-bench standby --writers 0,16 --duration 10s
    Standby(Measure<StandbyArgs>),

    /// Cost of watched tables, by number of writers
    ///
    /// The transactions of pgbench change a table that is watched, or that is not. Servers
    /// without pinpoint.watch() have triggers in PL/pgSQL instead.
    ///
    /// Example: pinpoint-bench watch --workload statement_trigger --writers 1,16
    Watch(Measure<WatchArgs>),

    /// Instructions, system calls and WAL of single operations
    ///
    /// The servers run under valgrind, which must be installed. What a session does for an
    /// operation is counted, such as SELECT 1, LISTEN or COMMIT with 1,000 channels. The
    /// results hardly differ from run to run, even on a busy machine.
    ///
    /// Example: pinpoint-bench instructions --operation select,notify --count 50
    #[command(mut_arg("runs", |arg| arg.default_value("1")))]
    Instructions(Measure<InstructionsArgs>),
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
    fn benchmark(&self) -> anyhow::Result<Benchmark> {
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
                "How much does a notification add to a transaction that writes?",
                ("writers", "writers"),
            )),
            Self::Notify(args) => args.own.describe(about(
                "notify",
                "How many notifications per second can many sessions send?",
                ("senders", "senders"),
            )),
            Self::Queue(args) => args.own.describe_queue(about(
                "queue",
                "How many transactions per second can notify a channel with many listeners?",
                ("listeners", "listeners"),
            )),
            Self::Channels(args) => args.own.describe(about(
                "channels",
                "How long does COMMIT take in a transaction that notifies many channels?",
                ("channels", "channels"),
            )),
            Self::Listeners(args) => args.own.describe(about(
                "listeners",
                "How does the duration of COMMIT depend on the number of listeners?",
                ("listeners", "listeners"),
            )),
            Self::Idle(args) => args.own.describe(Benchmark::new(
                "idle",
                "How does the duration of COMMIT depend on the number of idle sessions?",
                Axis::new("idle_sessions", "idle sessions", Linear),
            )),
            Self::Hub(args) => args.own.describe(about(
                "hub",
                "How long does one notification to many listeners take, for the sender and until \
                 all listeners have received it?",
                ("listeners", "listeners"),
            )),
            Self::Listen(args) => args.own.describe_listen(about(
                "listen",
                "How many times per second can sessions LISTEN, UNLISTEN and NOTIFY?",
                ("connections", "connections"),
            )),
            Self::Overhead(args) => args.own.describe_overhead(about(
                "overhead",
                "How much does the library slow down a server that does not use NOTIFY?",
                ("connections", "connections"),
            )),
            Self::Decode(args) => args.own.describe(about(
                "decode",
                "How long does logical decoding take for DDL on many tables?",
                ("tables", "tables"),
            )),
            Self::Standby(args) => args.own.describe(about(
                "standby",
                "What is the latency of a notification on a standby, and how much does it slow \
                 down the sender?",
                ("writers", "writers"),
            )),
            Self::Watch(args) => args.own.describe(about(
                "watch",
                "What does a watched table cost the transactions that change it, and others?",
                ("writers", "writers"),
            )),
            Self::Instructions(args) => args.own.describe(Benchmark::new(
                operations::BENCHMARK,
                "How many instructions, system calls and bytes of WAL does an operation take?",
                Axis::new("size", "channels, or watched tables", Linear),
            )),
        }
    }

    pub fn job(&self) -> anyhow::Result<Job<'_>> {
        let (common, parameters) = self.parts();
        Ok(Job {
            benchmark: self.benchmark()?,
            common,
            parameters,
        })
    }

    /// The options that all have, and all options, for the record.
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
            Self::Watch(args) => (&args.common, json!(args)),
            Self::Instructions(args) => (&args.common, json!(args)),
        }
    }
}

#[cfg(test)]
mod tests {
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
}
