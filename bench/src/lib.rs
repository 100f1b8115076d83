//! Measures PostgreSQL's LISTEN/NOTIFY on several servers side by side.

pub mod cli;
mod cluster;
mod installation;
mod interrupt;
mod latency;
mod limits;
mod load;
mod machine;
mod output;
mod pingpong;
mod process;
mod progress;
mod report;
mod session;
mod stats;
mod target;
mod torture;
mod workspace;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::Context;
use console::Term;
use rand::TryRng;
use rand::rngs::SysRng;

use crate::cli::{Cli, Command, Format, LoadArgs, OutputArgs, PingpongArgs, TortureArgs};
use crate::cluster::Clusters;
use crate::interrupt::Interrupts;
use crate::load::Pgbench;
use crate::machine::Machine;
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::report::{Report, Results, TargetRecord};
use crate::torture::Finding;

/// For a measurement that could not be made; clap uses it for the command line, too.
const FAILURE: u8 = 2;

/// For a server that did not pass a test.
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
        let command = async {
            match cli.command {
                Command::Pingpong(args) => pingpong(&args).await.map(|()| ExitCode::SUCCESS),
                Command::Commit(args) => load("commit", args.plan(), &args.load)
                    .await
                    .map(|()| ExitCode::SUCCESS),
                Command::Notify(args) => load("notify", args.plan(), &args.load)
                    .await
                    .map(|()| ExitCode::SUCCESS),
                Command::Torture(args) => torture(&args).await,
            }
        };
        tokio::select! {
            biased;
            interrupt = interrupts.next() => {
                eprintln!("Interrupted; the servers are stopped and their folders removed.");
                ExitCode::from(interrupt.exit_code())
            }
            result = command => match result {
                Ok(code) => code,
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
    let outputs = Outputs::open(&args.output)?;

    let date = report::rfc3339(SystemTime::now());
    let progress = Progress::new(pingpong::count_runs(&plan, targets.len()));
    progress.announce("starting the servers".to_owned());
    let mut clusters = Clusters::start(targets, &args.clusters.temp_dir(), sessions).await?;
    let records = TargetRecord::of_all(&clusters).await?;
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
    outputs.publish(&report)
}

/// The benchmarks `commit` and `notify`.
async fn load(benchmark: &'static str, plan: load::Plan, args: &LoadArgs) -> anyhow::Result<()> {
    let targets = args
        .clusters
        .targets()
        .into_iter()
        .map(|target| plan.prepare(target))
        .collect::<Result<Vec<_>, _>>()?;
    let pgbenches = targets
        .iter()
        .map(Pgbench::of)
        .collect::<Result<Vec<_>, _>>()?;
    // pgbench inherits the limit.
    limits::allow_connections(plan.sessions().into())?;
    let outputs = Outputs::open(&args.output)?;

    let date = report::rfc3339(SystemTime::now());
    let progress = Progress::new(load::count_loads(&plan, targets.len()));
    progress.announce("starting the servers".to_owned());
    let mut clusters = Clusters::start(targets, &args.clusters.temp_dir(), plan.sessions()).await?;
    let records = TargetRecord::of_all(&clusters).await?;
    let results = load::run(&plan, &mut clusters, &pgbenches, &progress).await?;
    drop(progress);
    drop(clusters);

    outputs.publish(&Report {
        benchmark,
        version: env!("CARGO_PKG_VERSION"),
        command_line: std::env::args().collect(),
        date,
        machine: Machine::detect(),
        parameters: plan,
        targets: records,
        results,
    })
}

/// The exit code tells whether all targets passed.
async fn torture(args: &TortureArgs) -> anyhow::Result<ExitCode> {
    let random = SysRng.try_next_u32().context("no random seed")?;
    let plan = args.plan(random.into());
    limits::allow_connections(plan.sessions().into())?;
    for target in args.clusters.targets_to_test() {
        let target = plan.prepare(target)?;
        let name = target.name.clone();
        println!("{name}: seed {}", plan.seed);

        let progress = Progress::new(plan.duration.as_secs());
        progress.announce(format!("{name}: starting the server"));
        let started = Instant::now();
        let mut clusters =
            Clusters::start(vec![target], &args.clusters.temp_dir(), plan.sessions()).await?;
        let cluster = clusters.iter_mut().next().context("no cluster")?;
        let result = torture::run(&plan, cluster, &progress).await;
        drop(progress);
        drop(clusters);

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

/// Where results go. The files are opened before the measurement.
struct Outputs {
    format: Format,
    csv: Option<OutputFile>,
    json: Option<OutputFile>,
}

impl Outputs {
    fn open(args: &OutputArgs) -> anyhow::Result<Self> {
        Ok(Self {
            format: args.format,
            csv: args.csv.as_deref().map(OutputFile::open).transpose()?,
            json: args.json.as_deref().map(OutputFile::open).transpose()?,
        })
    }

    fn publish(self, results: &impl Results) -> anyhow::Result<()> {
        print(results, self.format).context("could not write to standard output")?;
        if let Some(file) = self.csv {
            file.write(|out| results.write_csv(out))?;
        }
        if let Some(file) = self.json {
            file.write(|out| report::write_json(results, out))?;
        }
        for warning in results.warnings() {
            eprintln!("warning: {warning}");
        }
        Ok(())
    }
}

fn print(results: &impl Results, format: Format) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match format {
        Format::Table => {
            let width = Term::stdout().size_checked().map(|(_, columns)| columns);
            stdout.write_all(results.table(width).as_bytes())?;
        }
        Format::Tsv => results.write_tsv(&mut stdout)?,
    }
    stdout.flush()
}
