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
    (
        "queue",
        "commit",
        &[
            "--writers=16",
            "--listeners=1,50,200,1000",
            "--workload=broadcast,folded,shared",
        ],
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
  queue      commit, against the number of listeners, who may share the channel
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
        plan(arguments).split_once(':').unwrap().0.to_owned()
    }

    fn plan(arguments: &[&str]) -> String {
        let arguments = ["pinpoint-bench"]
            .iter()
            .chain(arguments)
            .map(OsString::from);
        let cli = Cli::try_parse_from(without_aliases(arguments)).unwrap();
        let Command::Benchmark(command) = cli.command else {
            panic!("no benchmark");
        };
        command.into_job().plan(None).unwrap().0
    }

    /// Lists are replaced, and not added to.
    #[test]
    fn workloads_replace_those_of_an_alias() {
        for (arguments, measurements) in [
            (&["queue", "--listeners=5"][..], 3),
            (&["queue", "--listeners=5", "--workload=shared"], 1),
            (
                &["queue", "--listeners=5", "--workload=shared,broadcast"],
                2,
            ),
            (&["hub", "--listeners=5", "--workload=others_listen"], 1),
            (&["overhead", "--clients=2", "--workload=select_only"], 1),
        ] {
            let plan = plan(arguments);
            assert!(
                plan.contains(&format!(": {measurements} measurement")),
                "{plan}"
            );
        }
    }

    #[test]
    fn every_name_is_a_benchmark_of_its_own() {
        for (alias, ..) in ALIASES {
            assert_eq!(name(&[alias]), *alias);
        }
        for subcommand in [
            "pingpong", "commit", "channels", "listen", "decode", "standby",
        ] {
            assert_eq!(name(&[subcommand]), subcommand);
        }
    }

    #[test]
    fn options_replace_those_of_an_alias_and_may_have_their_older_names() {
        for arguments in [
            &["notify", "--senders", "16", "--runs", "1"][..],
            &["queue", "--listeners", "50", "--workload", "shared"],
            &["hub", "--listeners", "2,5", "--notifications", "3"],
            &["multicast", "--group", "1,3", "--listeners", "10"],
            &["overhead", "--clients", "2", "--protocol", "prepared"],
            &["idle", "--idle=0,6", "--channels", "7"],
        ] {
            assert_eq!(name(arguments), arguments[0]);
        }
    }
}
