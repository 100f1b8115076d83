//! Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.

mod all;
mod assert;
mod benchmark;
mod chart;
pub mod cli;
mod cpu;
mod crowd;
mod decode;
mod hub;
mod interrupt;
mod latency;
mod listen;
mod load;
mod lookup;
mod machine;
mod multicast;
mod noise;
mod number;
mod output;
mod overhead;
mod page;
mod pgbench;
mod pingpong;
mod progress;
mod render;
mod report;
mod results;
mod round_trips;
mod runner;
#[cfg(test)]
mod samples;
mod sending;
mod session;
mod stats;

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use pinpoint_servers::{limits, process, server, target};
use pinpoint_torture::{TortureArgs, TortureCommand};

use crate::cli::{Cli, Command};
use crate::interrupt::Interrupts;
use crate::progress::Progress;
use crate::runner::{Context, End};

/// For a measurement that could not be made; clap uses it for the command line, too.
const FAILURE: u8 = 2;

/// For a server that did not pass a test, or does not meet a condition.
const DIFFERENCE: u8 = 1;

/// Does what the command line asks for, and says on standard error what went wrong.
///
/// A signal to stop ends the measurement where it is. What it has started and
/// made goes with it, since it all belongs to the future that is dropped then.
pub fn main(cli: Cli) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    runtime.block_on(async {
        let mut interrupts = match Interrupts::catch() {
            Ok(interrupts) => interrupts,
            Err(error) => return fail(&error.into()),
        };
        let end = match cli.command {
            Command::Benchmark(command) => {
                let job = command.into_job();
                let context = Context {
                    command_line: cli::command_line(),
                    progress: &Progress::new(job.time()),
                    interrupts: &mut interrupts,
                };
                job.run(context).await
            }
            Command::Report(args) => {
                let met = report::run(&args.folder, &args.conditions.conditions);
                met.map(|met| if met { End::Complete } else { End::Unmet })
            }
            Command::All(args) => all::run(&args, &cli::command_line(), &mut interrupts).await,
            Command::Torture(args) => {
                tokio::select! {
                    biased;
                    interrupt = interrupts.next() => Ok(End::Interrupted(interrupt)),
                    result = torture(&args) => match result {
                        Ok(code) => return code,
                        Err(error) => Err(error),
                    },
                }
            }
        };
        match end {
            Ok(End::Complete) => ExitCode::SUCCESS,
            Ok(End::Unmet) => ExitCode::from(DIFFERENCE),
            Ok(End::Interrupted(interrupt)) => {
                eprintln!("Interrupted; what was made for the measurement is removed.");
                ExitCode::from(interrupt.exit_code())
            }
            Ok(End::Failed(error)) | Err(error) => fail(&error),
        }
    })
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(FAILURE)
}

/// The exit code tells whether all have passed.
async fn torture(args: &TortureArgs) -> anyhow::Result<ExitCode> {
    let passed = match &args.command {
        Some(TortureCommand::Check { file, shrink }) => {
            pinpoint_torture::check(file, shrink.as_deref())?
        }
        None => {
            let progress = Progress::new(args.plan.duration);
            let shown = Cell::new(Duration::ZERO);
            pinpoint_torture::torture(&args.plan, &|elapsed, what| {
                progress.advance(elapsed.saturating_sub(shown.get()));
                shown.set(elapsed);
                progress.announce(what);
            })
            .await?
        }
    };
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DIFFERENCE)
    })
}
