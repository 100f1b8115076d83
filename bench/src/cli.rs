//! The command line, and what is done for each of its subcommands.

mod all;
mod documents;

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use pinpoint_servers::running::RunningTarget;
use pinpoint_torture::{TortureArgs, TortureCommand};

use self::all::AllArgs;
use crate::benchmarks::BenchmarkCommand;
use crate::report::results_folder::ReportArgs;
use crate::runner::interrupt::Interrupts;
use crate::runner::measure::End;
use crate::runner::progress::Progress;

/// For a measurement that could not be made; clap uses it for the command line, too.
const FAILURE: u8 = 2;

/// For a server that did not pass the torture test.
const DIFFERENCE: u8 = 1;

/// Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.
///
/// Each subcommand creates throwaway clusters, measures them in turn, and removes
/// them. It connects to no other server, unless --url names one. If root starts the
/// program, the servers run as the user `postgres`.
///
/// A first benchmark: pinpoint-bench pingpong --idle-listeners 0,1000
///
/// All benchmarks, with a page of charts: pinpoint-bench all --quick --output results
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Benchmark(BenchmarkCommand),
    All(AllArgs),
    Report(ReportArgs),
    Torture(TortureArgs),
    #[command(hide = true)]
    Documents(documents::Args),
}

impl Cli {
    /// Does what the command line asks for, and says on standard error what went wrong.
    ///
    /// A signal to stop ends the measurement where it is. What it has started and
    /// made goes with it, since it all belongs to the future that is dropped then.
    pub fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.run_to_its_end()),
            Err(error) => fail(&error.into()),
        }
    }

    async fn run_to_its_end(self) -> ExitCode {
        let mut interrupts = match Interrupts::catch() {
            Ok(interrupts) => interrupts,
            Err(error) => return fail(&error.into()),
        };
        match self.command.run(&mut interrupts).await {
            Ok(End::Complete) => ExitCode::SUCCESS,
            Ok(End::Unmet) => ExitCode::from(DIFFERENCE),
            Ok(End::Interrupted(interrupt)) => {
                eprintln!("Interrupted; what was made for the measurement is removed.");
                ExitCode::from(interrupt.exit_code())
            }
            Err(error) => fail(&error),
        }
    }
}

impl Command {
    async fn run(self, interrupts: &mut Interrupts) -> anyhow::Result<End> {
        let met = |met| if met { End::Complete } else { End::Unmet };
        match self {
            Self::Benchmark(command) => {
                let arguments = std::env::args().skip(1);
                command
                    .job()?
                    .run(command_line(arguments), interrupts)
                    .await
            }
            Self::Report(args) => args.run().map(|()| End::Complete),
            Self::All(args) => all::run(&args, interrupts).await,
            Self::Documents(args) => args.run().map(|()| End::Complete),
            Self::Torture(args) => tokio::select! {
                biased;
                interrupt = interrupts.next() => Ok(End::Interrupted(interrupt)),
                passed = torture(&args) => passed.map(met),
            },
        }
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(FAILURE)
}

/// Returns whether all have passed.
async fn torture(args: &TortureArgs) -> anyhow::Result<bool> {
    if let Some(TortureCommand::Check { file }) = &args.command {
        return pinpoint_torture::check(file);
    }
    let progress = Progress::new(args.plan.duration.as_secs());
    let shown = Cell::new(0);
    let on_progress = |elapsed: Duration, what| {
        let seconds = elapsed.as_secs();
        progress.advance(seconds.saturating_sub(shown.replace(seconds)));
        progress.announce(what);
    };
    pinpoint_torture::torture(&args.plan, &on_progress).await
}

/// A command line for the record, without passwords and without the folder of the program.
fn command_line(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let without = |url: &str| match url.parse::<RunningTarget>() {
        Ok(target) => target.to_string(),
        // It would not have been accepted.
        Err(_) => String::new(),
    };
    let mut recorded = vec![env!("CARGO_PKG_NAME").to_owned()];
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
    fn every_help_has_an_example_that_can_be_typed() {
        for command in Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            let mut lines = help.lines().map(str::trim);
            let example = lines.find_map(|line| line.strip_prefix("Example: "));
            let example = example.unwrap_or_else(|| panic!("{help}"));
            let words = example
                .split_whitespace()
                .map(|word| word.trim_matches('\''));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }

    #[test]
    fn passwords_are_not_recorded() {
        let arguments = [
            "notify",
            "--url",
            "a=postgresql://me:secret@h:1/d?password=secret",
            "--url=postgresql://me:secret@h:1/d",
            "--runs",
            "1",
        ];
        assert_eq!(
            command_line(arguments.map(str::to_owned)),
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
}
