//! Other names of subcommands: each is a question that a subcommand answers with
//! certain options. What else is on the command line comes after these, and so
//! replaces them.

use std::ffi::OsString;

/// The name, the subcommand, and its options.
pub const ALIASES: &[(&str, &str, &[&str])] = &[
    (
        "notify",
        "commit",
        &["--form=alone", "--writers=1,2,4,8,16,32,64,128"],
    ),
    ("listeners", "channels", &["--listeners=1,10,50,100,200"]),
    ("idle", "channels", &["--idle=0,50,100,200,300,400,500"]),
    (
        "hub",
        "channels",
        &[
            "--channels=1",
            "--listeners=1,10,100,1000",
            "--workload=others_listen",
            "--transactions=50",
        ],
    ),
    (
        "multicast",
        "pingpong",
        &["--group=1,2,4,8,16", "--idle=60"],
    ),
    (
        "overhead",
        "listen",
        &[
            "--workload=select_only,select_only_listening",
            "--connections=1,4,16",
        ],
    ),
];

/// At the end of the main help.
pub const HELP: &str = "\
Other names, for certain questions:
  notify     commit --form alone: NOTIFY and nothing else
  listeners  channels, against the number of listeners
  idle       channels, against the number of sessions that do not listen
  hub        channels --channels 1, against the number of listeners
  multicast  pingpong, against the number of sessions that answer (--group)
  overhead   listen --workload select_only,select_only_listening";

/// The arguments of the program, with the subcommand's own name.
pub fn without_aliases(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let name = arguments.get(1).and_then(|name| name.to_str());
    let known = ALIASES.iter().find(|(alias, ..)| Some(*alias) == name);
    if let Some((_, subcommand, options)) = known {
        let options = options.iter().map(OsString::from);
        let replacement = [OsString::from(subcommand)].into_iter().chain(options);
        arguments.splice(1..2, replacement);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// What the benchmark is called that these arguments start.
    fn name(arguments: &[&str]) -> String {
        let arguments = ["pinpoint-bench"]
            .iter()
            .chain(arguments)
            .map(OsString::from);
        let cli = Cli::try_parse_from(without_aliases(arguments)).unwrap();
        let Command::Benchmark(command) = cli.command else {
            panic!("no benchmark");
        };
        let (plan, _) = command.into_job().plan(None).unwrap();
        plan.split_once(':').unwrap().0.to_owned()
    }

    #[test]
    fn every_name_is_a_benchmark_of_its_own() {
        for (alias, ..) in ALIASES {
            assert_eq!(name(&[alias]), *alias);
        }
        for subcommand in ["pingpong", "commit", "channels", "listen", "decode"] {
            assert_eq!(name(&[subcommand]), subcommand);
        }
    }

    #[test]
    fn options_replace_those_of_an_alias_and_may_have_their_older_names() {
        for arguments in [
            &["notify", "--senders", "16", "--runs", "1"][..],
            &["hub", "--listeners", "2,5", "--notifications", "3"],
            &["multicast", "--group", "1,3", "--listeners", "10"],
            &["overhead", "--clients", "2", "--protocol", "prepared"],
            &["idle", "--idle=0,6", "--channels", "7"],
        ] {
            assert_eq!(name(arguments), arguments[0]);
        }
    }
}
