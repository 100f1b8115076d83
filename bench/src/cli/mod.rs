//! The command line. Each subcommand's own options are where the subcommand is.

mod output;
pub mod values;

use clap::{Args, Parser, Subcommand};

pub use self::output::{ConditionArgs, Format, OutputArgs};
use crate::all::AllArgs;
use crate::benchmark::Benchmark;
use crate::runner::{Job, JobOf};
use crate::{decode, hub, listen, load, multicast, overhead, pingpong, report, sending};
pub use pinpoint_servers::arguments::{ServerArgs, Targets};
use pinpoint_servers::running::RunningTarget;
use pinpoint_torture::TortureArgs;

/// Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.
///
/// Every subcommand makes throwaway clusters, takes its measurements on them in
/// turn, and removes them. No other cluster is touched, unless --url names it.
/// Started as root, the servers run as the user `postgres`.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Benchmark(BenchmarkCommand),
    All(AllArgs),
    Report(report::Args),
    Torture(TortureArgs),
}

/// The subcommands that measure.
#[derive(Debug, Subcommand)]
pub enum BenchmarkCommand {
    Pingpong(pingpong::Args),
    Commit(load::CommitArgs),
    Notify(load::NotifyArgs),
    Channels(sending::ChannelsArgs),
    Listeners(sending::ListenersArgs),
    Idle(sending::IdleArgs),
    Hub(hub::Args),
    Multicast(multicast::Args),
    Listen(listen::Args),
    Overhead(overhead::Args),
    Decode(decode::Args),
}

/// Their names, and the options that `all --quick` gives them.
pub const BENCHMARKS: &[(&str, &[&str])] = &[
    ("pingpong", pingpong::QUICK),
    ("commit", load::QUICK_COMMIT),
    ("notify", load::QUICK_NOTIFY),
    ("channels", sending::QUICK_CHANNELS),
    ("listeners", sending::QUICK_LISTENERS),
    ("idle", sending::QUICK_IDLE),
    ("hub", hub::QUICK),
    ("multicast", multicast::QUICK),
    ("listen", listen::QUICK),
    ("overhead", overhead::QUICK),
    ("decode", decode::QUICK),
];

impl BenchmarkCommand {
    pub(crate) fn into_job(self) -> Box<dyn Job> {
        fn job<B: Benchmark + 'static>(benchmark: B, common: CommonArgs) -> Box<dyn Job> {
            Box::new(JobOf { benchmark, common })
        }
        match self {
            Self::Pingpong(args) => job(args.plan(), args.common),
            Self::Commit(args) => job(args.plan(), args.load.common),
            Self::Notify(args) => job(args.plan(), args.load.common),
            Self::Channels(args) => job(args.plan(), args.sending.common),
            Self::Listeners(args) => job(args.plan(), args.sending.common),
            Self::Idle(args) => job(args.plan(), args.sending.common),
            Self::Hub(args) => job(args.plan(), args.common),
            Self::Multicast(args) => job(args.plan(), args.common),
            Self::Listen(args) => job(args.plan(), args.common),
            Self::Overhead(args) => job(args.plan(), args.common),
            Self::Decode(args) => job(args.plan(), args.common),
        }
    }
}

/// What all benchmarks have in common.
#[derive(Debug, Args)]
pub struct CommonArgs {
    #[command(flatten)]
    pub servers: ServerArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// The command line for the record, with the passwords left out.
pub(crate) fn command_line() -> Vec<String> {
    without_passwords(std::env::args())
}

fn without_passwords(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let without = |url: &str| match url.parse::<RunningTarget>() {
        Ok(target) => target.to_string(),
        // It would not have been accepted.
        Err(_) => String::new(),
    };
    let mut recorded: Vec<String> = Vec::new();
    for argument in arguments {
        let argument = match argument.strip_prefix("--url=") {
            Some(url) => format!("--url={}", without(url)),
            None if recorded.last().is_some_and(|last| last == "--url") => without(&argument),
            None => argument,
        };
        recorded.push(argument);
    }
    recorded
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn passwords_are_not_recorded() {
        let arguments = [
            "pinpoint-bench",
            "notify",
            "--url",
            "a=postgresql://me:secret@h:1/d",
            "--url=postgresql://me:secret@h:1/d",
            "--runs",
            "1",
        ];
        assert_eq!(
            without_passwords(arguments.map(str::to_owned).into_iter()),
            [
                "pinpoint-bench",
                "notify",
                "--url",
                "a=postgresql://me@h:1/d",
                "--url=server=postgresql://me@h:1/d",
                "--runs",
                "1",
            ]
        );
    }

    #[test]
    fn every_benchmark_is_listed_with_its_options_for_quick() {
        let command = BenchmarkCommand::augment_subcommands(clap::Command::new("all"));
        let names: Vec<_> = command.get_subcommands().map(|c| c.get_name()).collect();
        let listed: Vec<_> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, listed);
        for (name, quick) in BENCHMARKS {
            let arguments = ["pinpoint-bench", name]
                .into_iter()
                .chain(quick.iter().copied());
            Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
