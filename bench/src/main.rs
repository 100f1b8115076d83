use std::process::ExitCode;

use clap::Parser;
use pinpoint_bench::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
