use std::process::ExitCode;

use clap::Parser;
use pinpoint_bench::cli::Cli;

fn main() -> ExitCode {
    pinpoint_bench::main(Cli::parse())
}
