//! Every benchmark, one after the other (`all`).

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Parser};
use pinpoint_servers::arguments::ServerArgs;

use super::job;
use crate::benchmarks::BenchmarkCommand;
use crate::report::results_folder;
use crate::runner::interrupt::Interrupts;
use crate::runner::measure::{Context, End};
use crate::runner::progress::{Progress, in_words};

/// The benchmarks, and the options that `--quick` gives them.
const BENCHMARKS: &str = "\
pingpong --idle-listeners=0,100,1000 --duration=0.5 --warmup=0.2
multicast --group=1,4,16 --duration=0.5 --warmup=0.2
commit --writers=1,16 --duration=1 --warmup=1
notify --senders=32 --duration=1 --warmup=1
queue --listeners=100 --workload=broadcast,shared --duration=1 --warmup=0
channels --channels=1,1000,10000 --transactions=5 --warmup-transactions=1
listeners --listeners=1,100 --transactions=3 --warmup-transactions=1
idle --idle-sessions=0,500 --transactions=5 --warmup-transactions=1
hub --listeners=1,100,1000 --transactions=10 --warmup-transactions=2
listen --connections=32 --workload=listen_unlisten_unique,listen_notify_unique,listen_notify_common \
--duration=1 --warmup=0
overhead --connections=8 --duration=0.5 --warmup=0
decode --tables=1000,3000
standby --writers=16 --duration=0.5 --warmup=0
watch --writers=4 --workload=statement_trigger --duration=0.5 --warmup=0";

/// All benchmarks, one after the other
///
/// Each benchmark has its default options and clusters of its own. If one fails,
/// the others still run.
///
/// Example: pinpoint-bench all --quick --output results
#[derive(Debug, Args)]
pub struct AllArgs {
    /// Directory for the results: NAME.json of each benchmark, and index.html with
    /// charts of all of them
    #[arg(long, value_name = "DIR")]
    output: PathBuf,

    /// Measure fewer points with shorter runs: less than ten minutes in all
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    servers: ServerArgs,
}

/// A benchmark's own command line.
#[derive(Parser)]
struct Benchmark {
    #[command(subcommand)]
    command: BenchmarkCommand,
}

/// A benchmark that is to be made.
struct Planned {
    name: &'static str,
    command_line: Vec<String>,
    command: BenchmarkCommand,
}

impl AllArgs {
    fn plan(&self, command_line: &[String]) -> anyhow::Result<Vec<Planned>> {
        let plan = |line: &'static str| {
            let (name, quick) = line.split_once(' ').context("options are missing")?;
            let options: Vec<&str> = quick.split(' ').filter(|_| self.quick).collect();
            let file = self.output.join(format!("{name}.json"));
            let arguments = ["pinpoint-bench", name]
                .into_iter()
                .chain(options.iter().copied())
                .map(OsString::from)
                .chain(["--json".into(), file.into_os_string()]);
            Ok(Planned {
                name,
                command_line: alone(command_line, name, &options),
                command: Benchmark::try_parse_from(arguments)?.command,
            })
        };
        BENCHMARKS.lines().map(plan).collect()
    }
}

/// The command line that makes one of the benchmarks alone, from that for all.
fn alone(command_line: &[String], name: &str, options: &[&str]) -> Vec<String> {
    let mut alone = Vec::new();
    let mut arguments = command_line.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "all" if alone.len() == 1 => {
                alone.push(name.to_owned());
                alone.extend(options.iter().map(ToString::to_string));
            }
            "--quick" => {}
            "--output" => {
                arguments.next();
            }
            option if option.starts_with("--output=") => {}
            _ => alone.push(argument.clone()),
        }
    }
    alone
}

/// Measures, and writes the results of each benchmark when it ends.
pub async fn run(
    args: &AllArgs,
    command_line: &[String],
    interrupts: &mut Interrupts,
) -> anyhow::Result<End> {
    let planned = args.plan(command_line)?;
    let mut jobs = Vec::new();
    let mut time = Duration::ZERO;
    for Planned {
        name,
        command_line,
        command,
    } in &planned
    {
        let job = job(command, &args.servers)?;
        match job.refusal()? {
            Some(refusal) => eprintln!("left out: {}", refusal.reason),
            None => {
                time += job.time()?;
                jobs.push((name, command_line, job));
            }
        }
    }
    fs::create_dir_all(&args.output).with_context(|| {
        format!(
            "could not make the folder {}: name another with --output",
            args.output.display()
        )
    })?;
    let count = jobs.len();
    eprintln!("{count} benchmarks: about {}", in_words(time));
    let progress = Progress::new(time);
    let mut failed = Vec::new();
    let mut interrupt = None;
    for (position, (name, command_line, job)) in jobs.into_iter().enumerate() {
        progress.begin(format!("{} of {count}, ", position + 1), job.time()?);
        let context = Context {
            command_line: command_line.clone(),
            progress: &progress,
            interrupts,
        };
        match job.run(context).await {
            Ok(End::Complete | End::Unmet) => {}
            Ok(End::Interrupted(signal)) => {
                interrupt = Some(signal);
                break;
            }
            Ok(End::Failed(error)) | Err(error) => {
                progress.suspend(|| eprintln!("error: {name}: {error:#}"));
                failed.push(*name);
            }
        }
    }
    drop(progress);

    // What is there is shown, however this ends.
    let page = results_folder::write_page(&args.output);
    if let Some(interrupt) = interrupt {
        return Ok(End::Interrupted(interrupt));
    }
    if !failed.is_empty() {
        bail!(
            "not everything could be measured: {} failed",
            failed.join(", ")
        );
    }
    page.map(|()| End::Complete)
}

#[cfg(test)]
mod tests {
    use clap::Subcommand;

    use super::*;

    #[derive(Parser)]
    struct All {
        #[command(flatten)]
        args: AllArgs,
    }

    fn plan(arguments: &[&str]) -> Vec<Planned> {
        let command_line: Vec<String> = ["pinpoint-bench", "all"]
            .iter()
            .chain(arguments)
            .map(ToString::to_string)
            .collect();
        let args = All::parse_from(&command_line[1..]).args;
        args.plan(&command_line).unwrap()
    }

    #[test]
    fn every_benchmark_is_measured_and_called_as_its_subcommand() {
        let names: Vec<_> = plan(&["--output=x"]).iter().map(|p| p.name).collect();
        let command = BenchmarkCommand::augment_subcommands(clap::Command::new("all"));
        let subcommands: Vec<_> = command.get_subcommands().map(|c| c.get_name()).collect();
        assert_eq!(names, subcommands);
        for quick in [&["--output=x"][..], &["--output=x", "--quick"]] {
            for Planned { name, command, .. } in plan(quick) {
                assert_eq!(command.benchmark().unwrap().name, name);
            }
        }
    }

    #[test]
    fn quick_is_less_than_ten_minutes_and_draws_verdicts() {
        let args = All::parse_from(["all", "--output=x"]).args;
        let time: Duration = plan(&["--output=x", "--quick"])
            .iter()
            .map(|planned| {
                job(&planned.command, &args.servers)
                    .unwrap()
                    .time()
                    .unwrap()
            })
            .sum();
        // The rest is for what is not counted: sessions that connect, slow machines.
        assert!(time < Duration::from_secs(520), "{time:?}");
        assert!(!BENCHMARKS.contains("--runs"));
    }

    #[test]
    fn the_record_tells_how_to_make_one_benchmark_alone() {
        let plan = plan(&[
            "--output",
            "all",
            "--quick",
            "--target=a=pg_config",
            "--setting",
            "fsync=off",
        ]);
        assert_eq!(
            plan[0].command_line,
            [
                "pinpoint-bench",
                "pingpong",
                "--idle-listeners=0,100,1000",
                "--duration=0.5",
                "--warmup=0.2",
                "--target=a=pg_config",
                "--setting",
                "fsync=off"
            ]
        );
    }
}
