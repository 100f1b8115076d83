use std::process::ExitCode;

use pinpoint_bench::cli::Cli;

fn main() -> ExitCode {
    Cli::of_program().run()
}
