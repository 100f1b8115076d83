//! Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.

pub mod cli;
mod cluster;
mod installation;
mod interrupt;
mod limits;
mod machine;
mod output;
mod pingpong;
mod process;
mod progress;
mod report;
mod session;
mod stats;
mod target;
mod workspace;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use console::Term;

use crate::cli::{Cli, Command, Format, PingpongArgs};
use crate::cluster::Clusters;
use crate::interrupt::Interrupts;
use crate::machine::Machine;
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::report::{Report, TargetRecord};

/// For a measurement that could not be made; clap uses it for the command line, too.
const FAILURE: u8 = 2;

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
        let command = async {
            match cli.command {
                Command::Pingpong(args) => pingpong(&args).await,
            }
        };
        tokio::select! {
            biased;
            interrupt = interrupts.next() => {
                eprintln!("Interrupted; the servers are stopped and their folders removed.");
                ExitCode::from(interrupt.exit_code())
            }
            result = command => match result {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            },
        }
    })
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(FAILURE)
}

async fn pingpong(args: &PingpongArgs) -> anyhow::Result<()> {
    let plan = args.plan();
    let targets = args.clusters.targets();
    let sessions = plan.max_idle() + pingpong::PLAYERS;
    limits::allow_connections(u64::from(sessions) * targets.len() as u64)?;
    let csv = args
        .output
        .csv
        .as_deref()
        .map(OutputFile::open)
        .transpose()?;
    let json = args
        .output
        .json
        .as_deref()
        .map(OutputFile::open)
        .transpose()?;

    let date = report::rfc3339(SystemTime::now());
    let progress = Progress::new(pingpong::count_runs(&plan, targets.len()));
    progress.announce("starting the servers".to_owned());
    let mut clusters = Clusters::start(targets, &args.clusters.temp_dir(), sessions).await?;
    let mut records = Vec::new();
    for cluster in clusters.iter() {
        records.push(TargetRecord::of(cluster).await?);
    }
    let results = pingpong::run(&plan, &mut clusters, &progress).await?;
    drop(progress);
    drop(clusters);

    let report = Report {
        benchmark: "pingpong",
        version: env!("CARGO_PKG_VERSION"),
        command_line: std::env::args().collect(),
        date,
        machine: Machine::detect(),
        parameters: plan,
        targets: records,
        results,
    };
    print(&report, args.output.format).context("could not write to standard output")?;
    if let Some(file) = csv {
        file.write(|out| report::write_csv(&report, out))?;
    }
    if let Some(file) = json {
        file.write(|out| report::write_json(&report, out))?;
    }
    for warning in report::warnings(&report.results) {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

fn print(report: &Report, format: Format) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match format {
        Format::Table => {
            let width = Term::stdout().size_checked().map(|(_, columns)| columns);
            stdout.write_all(report::render_table(report, width).as_bytes())?;
        }
        Format::Tsv => report::write_tsv(report, &mut stdout)?,
    }
    stdout.flush()
}
