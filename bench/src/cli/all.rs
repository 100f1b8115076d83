//! Every benchmark, one after the other (`all`).

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Parser};

use super::command_line;
use crate::benchmarks::BenchmarkCommand;
use crate::report::results_folder;
use crate::runner::interrupt::Interrupts;
use crate::runner::measure::End;

/// What `--quick` gives to benchmarks without runs of their own, unless the command line says
/// otherwise: there is just an interval of so many.
const QUICK_RUNS: &str = "--runs=6";

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
watch --writers=4 --workload=statement_trigger --duration=0.5 --warmup=0
instructions --operation=select,notify --count=20 --runs=1";

/// All benchmarks, one after the other
///
/// Each benchmark has its default options and clusters of its own. If one fails,
/// the others still run.
///
/// With --aa at the end, each benchmark compares a server with itself. The last line but one
/// tells at how many points the interval does not contain 1.
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

    /// Options for each of the benchmarks, such as --target; they come last
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
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
    fn plan(&self) -> Vec<Planned> {
        let sets_runs = |option: &str| option.starts_with("--runs");
        let runs_are_set = self.options.iter().any(|option| sets_runs(option));
        let plan = |line: &'static str| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            let mut quick: Vec<&str> = words.filter(|_| self.quick).collect();
            if runs_are_set {
                quick.retain(|option| !sets_runs(option));
            } else if self.quick && !quick.iter().any(|option| sets_runs(option)) {
                quick.push(QUICK_RUNS);
            }
            let quick = quick.into_iter().map(str::to_owned);
            let own = quick.chain(self.options.iter().cloned());
            let alone = command_line([name.to_owned()].into_iter().chain(own.clone()));
            let json = self.output.join(format!("{name}.json"));
            let arguments = ["pinpoint-bench", name]
                .into_iter()
                .map(OsString::from)
                .chain(own.map(OsString::from))
                .chain(["--json".into(), json.into_os_string()]);
            Planned {
                name,
                command_line: alone,
                command: Benchmark::parse_from(arguments).command,
            }
        };
        BENCHMARKS.lines().map(plan).collect()
    }
}

/// Measures, and writes the results of each benchmark when it ends.
pub async fn run(args: &AllArgs, interrupts: &mut Interrupts) -> anyhow::Result<End> {
    let planned = args.plan();
    fs::create_dir_all(&args.output).with_context(|| {
        format!(
            "could not make the folder {}: name another with --output",
            args.output.display()
        )
    })?;
    let count = planned.len();
    let mut failed = Vec::new();
    let mut interrupt = None;
    for (position, planned) in planned.into_iter().enumerate() {
        let job = planned.command.job()?;
        if let Some(refusal) = job.refusal()? {
            eprintln!("left out: {refusal}");
            continue;
        }
        eprint!("{} of {count}: ", position + 1);
        match job.run(planned.command_line, interrupts).await {
            Ok(End::Complete | End::Unmet) => {}
            Ok(End::Interrupted(signal)) => {
                interrupt = Some(signal);
                break;
            }
            Err(error) => {
                eprintln!("error: {}: {error:#}", planned.name);
                failed.push(planned.name);
            }
        }
    }

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
        let arguments = ["all", "--output=x"].iter().chain(arguments);
        All::parse_from(arguments).args.plan()
    }

    #[test]
    fn every_benchmark_is_measured_and_called_as_its_subcommand() {
        let names: Vec<_> = plan(&[]).iter().map(|p| p.name).collect();
        let command = BenchmarkCommand::augment_subcommands(clap::Command::new("all"));
        let subcommands: Vec<_> = command.get_subcommands().map(|c| c.get_name()).collect();
        assert_eq!(names, subcommands);
        for quick in [&[][..], &["--quick"]] {
            for Planned { name, command, .. } in plan(quick) {
                assert_eq!(command.job().unwrap().benchmark.name, name);
            }
        }
    }

    #[test]
    fn every_benchmark_can_compare_a_server_with_itself() {
        for Planned { name, command, .. } in plan(&["--quick", "--aa"]) {
            assert_eq!(command.job().unwrap().refusal().unwrap(), None, "{name}");
        }
    }

    #[test]
    fn the_record_tells_how_to_make_one_benchmark_alone() {
        let plan = plan(&["--quick", "--target=a=pg_config", "--setting", "fsync=off"]);
        assert_eq!(
            plan[0].command_line.join(" "),
            "pinpoint-bench pingpong --idle-listeners=0,100,1000 --duration=0.5 --warmup=0.2 \
             --runs=6 --target=a=pg_config --setting fsync=off"
        );
        let command_line = |arguments| self::plan(arguments)[0].command_line.join(" ");
        assert!(command_line(&["--quick", "--runs=12"]).ends_with(" --warmup=0.2 --runs=12"));
        let last = |arguments| self::plan(arguments).pop().unwrap().command_line.join(" ");
        assert!(last(&["--quick"]).ends_with(" --count=20 --runs=1"));
        assert!(last(&["--quick", "--runs=12"]).ends_with(" --count=20 --runs=12"));
    }
}
