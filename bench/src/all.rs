//! Every benchmark, one after the other (`all`).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Parser};

use crate::cli::{BENCHMARKS, BenchmarkCommand, ConditionArgs, ServerArgs};
use crate::interrupt::Interrupts;
use crate::progress::Progress;
use crate::report;
use crate::runner::{Context, End, Job};

/// Every benchmark, one after the other
///
/// Each with its own options as they are by default, and with clusters of its
/// own. One that fails does not keep the others from being made.
#[derive(Debug, Args)]
pub struct AllArgs {
    /// Where to put the results: NAME.json and NAME.csv of each benchmark, their
    /// charts, and index.html, a page with all of them
    #[arg(long, value_name = "DIR")]
    output: PathBuf,

    /// Fewer points and shorter runs, for a first look: less than ten minutes in all
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    conditions: ConditionArgs,

    #[command(flatten)]
    servers: ServerArgs,
}

/// A benchmark's own command line.
#[derive(Parser)]
struct Subcommand {
    #[command(subcommand)]
    command: BenchmarkCommand,
}

/// A benchmark that is to be made.
struct Planned {
    name: &'static str,
    command_line: Vec<String>,
    job: Box<dyn Job>,
}

impl AllArgs {
    fn plan(&self, command_line: &[String]) -> anyhow::Result<Vec<Planned>> {
        let plan = |&(name, quick): &(&'static str, &'static [&'static str])| {
            let options = if self.quick { quick } else { &[] };
            let file = |ending: &str| self.output.join(format!("{name}.{ending}"));
            let arguments = ["pinpoint-bench", name]
                .into_iter()
                .chain(options.iter().copied())
                .map(Into::into)
                .chain(["--json".into(), file("json").into_os_string()])
                .chain(["--csv".into(), file("csv").into_os_string()])
                .chain(self.conditions_on(name));
            let mut job = Subcommand::try_parse_from(arguments)?.command.into_job();
            job.set_servers(self.servers.clone());
            Ok(Planned {
                name,
                command_line: alone(command_line, name, options),
                job,
            })
        };
        let names: Vec<_> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        for condition in &self.conditions.conditions {
            condition.check_benchmark(&names)?;
        }
        BENCHMARKS.iter().map(plan).collect()
    }

    /// The options by which a benchmark learns of the conditions on it.
    fn conditions_on(&self, name: &str) -> impl Iterator<Item = OsString> {
        let conditions = self.conditions.conditions.iter();
        conditions
            .filter(move |condition| condition.benchmark() == name)
            .map(|condition| format!("--assert={condition}").into())
    }
}

/// The command line that makes one of the benchmarks alone, from that for all.
/// What has to be met was said of all results, and is left out.
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
            "--output" | "--assert" => {
                arguments.next();
            }
            option if option.starts_with("--output=") || option.starts_with("--assert=") => {}
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
    let plan = args.plan(command_line)?;
    let (plan, left_out): (Vec<_>, Vec<_>) = plan
        .into_iter()
        .partition(|planned| planned.job.refusal().is_none());
    for reason in left_out.iter().filter_map(|planned| planned.job.refusal()) {
        eprintln!("left out: {reason}");
    }
    for planned in &plan {
        planned.job.check()?;
    }
    make_folder(&args.output)?;
    let progress = Progress::new(plan.iter().map(|planned| planned.job.time()).sum());
    let count = plan.len();
    let mut failed = Vec::new();
    let mut is_met = true;
    let mut interrupt = None;
    for (position, planned) in plan.into_iter().enumerate() {
        progress.begin(format!("{} of {count}, ", position + 1), planned.job.time());
        let context = Context {
            command_line: planned.command_line,
            progress: &progress,
            interrupts,
        };
        match planned.job.run(context).await {
            Ok(End::Complete) => {}
            Ok(End::Unmet) => is_met = false,
            Ok(End::Interrupted(signal)) => {
                interrupt = Some(signal);
                break;
            }
            Ok(End::Failed(error)) | Err(error) => {
                progress.suspend(|| eprintln!("error: {}: {error:#}", planned.name));
                failed.push(planned.name);
            }
        }
    }
    drop(progress);

    // What is there is shown, however this ends.
    let page = report::run(&args.output, &[]);
    if let Some(interrupt) = interrupt {
        return Ok(End::Interrupted(interrupt));
    }
    if !failed.is_empty() {
        return Ok(End::Failed(anyhow::anyhow!(
            "not everything could be measured: {} failed",
            failed.join(", ")
        )));
    }
    page?;
    Ok(if is_met { End::Complete } else { End::Unmet })
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| {
        format!(
            "could not make the folder {}: name another with --output",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn every_benchmark_is_made() {
        let names: Vec<_> = plan(&["--output=x"]).iter().map(|p| p.name).collect();
        let known: Vec<_> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, known);
    }

    #[test]
    fn quick_is_less_than_ten_minutes() {
        let time: Duration = plan(&["--output=x", "--quick"])
            .iter()
            .map(|planned| planned.job.time())
            .sum();
        // The rest is for what is not counted: sessions that connect, slow machines.
        assert!(time < Duration::from_secs(450), "{time:?}");
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
                "--idle=0,100,1000",
                "--duration=1",
                "--warmup=0.5",
                "--runs=2",
                "--target=a=pg_config",
                "--setting",
                "fsync=off"
            ]
        );
    }
}
