//! Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.

mod all;
mod assert;
mod benchmark;
mod chart;
pub mod cli;
mod cluster;
mod cpu;
mod crowd;
mod decode;
mod hub;
mod installation;
mod interrupt;
mod latency;
mod limits;
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
mod process;
mod progress;
mod render;
mod report;
mod results;
mod round_trips;
mod runner;
mod running;
#[cfg(test)]
mod samples;
mod sending;
mod server;
mod session;
mod stats;
mod target;
mod torture;
mod workspace;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use rand::TryRng;
use rand::rngs::SysRng;

use crate::cli::{Cli, Command};
use crate::cluster::Cluster;
use crate::installation::Installation;
use crate::interrupt::Interrupts;
use crate::progress::Progress;
use crate::runner::{Context, End};
use crate::target::Target;
use crate::torture::{Finding, TortureArgs};
use crate::workspace::Workspace;

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

/// The exit code tells whether all targets passed.
async fn torture(args: &TortureArgs) -> anyhow::Result<ExitCode> {
    let random = SysRng.try_next_u32().context("no random seed")?;
    let plan = args.plan(random.into());
    limits::allow_connections(plan.sessions().into())?;
    // There is nothing to compare.
    let default = |pg_config: &_| vec![Target::pinpoint(pg_config)];
    for target in args.clusters.targets_or(default) {
        let target = plan.prepare(target)?;
        let name = target.name.clone();
        println!("{name}: seed {}", plan.seed);

        let progress = Progress::new(plan.duration);
        progress.announce(format!("{name}: starting the server"));
        let started = Instant::now();
        let installation = Installation::of(&target)?;
        let workspace = Workspace::create(&args.clusters.temp_dir()).await?;
        let mut cluster = Cluster::start(target, installation, &workspace, plan.sessions()).await?;
        let result = torture::run(&plan, &mut cluster, &progress).await;
        drop(progress);
        drop(cluster);
        drop(workspace);

        match result.map_err(anyhow::Error::downcast::<Finding>) {
            Ok(summary) => println!("{summary}{name}: passed"),
            Err(Ok(finding)) => {
                println!(
                    "{finding}\n\n{name}: FAILED after {:.1} s, with seed {}",
                    started.elapsed().as_secs_f64(),
                    plan.seed
                );
                return Ok(ExitCode::from(DIFFERENCE));
            }
            Err(Err(error)) => return Err(error),
        }
    }
    Ok(ExitCode::SUCCESS)
}
