//! Other names of subcommands: each is a question that a subcommand answers with
//! certain options. What else is on the command line comes after these, and so
//! replaces them.

use std::ffi::OsString;

/// The name, the subcommand, and its options.
type Alias = (&'static str, &'static str, &'static [&'static str]);

pub const ALIASES: &[Alias] = &[
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

const HELP_COMMAND: &str = "help";

/// The other name among the arguments of the program, which is the first one or
/// that after `help`, and its place.
fn alias_of(arguments: &[OsString]) -> Option<(usize, &'static Alias)> {
    let argument = |place: usize| arguments.get(place).and_then(|argument| argument.to_str());
    let place = match argument(1) {
        Some(HELP_COMMAND) => 2,
        _ => 1,
    };
    let alias = ALIASES
        .iter()
        .find(|(name, ..)| Some(*name) == argument(place));
    Some((place, alias?))
}

/// The arguments of the program, with the subcommand's own name.
pub fn without_aliases(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if let Some((place, (_, subcommand, options))) = alias_of(&arguments) {
        arguments[place] = OsString::from(subcommand);
        if place == 1 {
            arguments.splice(2..2, options.iter().map(OsString::from));
        }
    }
    arguments
}

/// The command for these arguments of the program. If there is another name among
/// them, the subcommand's help, which shows its own defaults, says first what that is.
pub fn explained(command: clap::Command, arguments: &[OsString]) -> clap::Command {
    match alias_of(arguments) {
        Some((_, (alias, subcommand, options))) => {
            let meaning = format!("`{alias}` is: {subcommand} {}", options.join(" "));
            command.mut_subcommand(subcommand, |command| command.before_help(meaning))
        }
        None => command,
    }
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
    fn help_says_first_what_a_name_stands_for() {
        let help = |arguments: &[&str]| {
            let arguments = ["pinpoint-bench"].iter().chain(arguments);
            let error = Cli::of(arguments.map(OsString::from).collect()).unwrap_err();
            assert_eq!(error.exit_code(), 0);
            error.to_string()
        };
        for option in ["-h", "--help"] {
            let own = help(&["channels", option]);
            assert!(!own.contains("` is: "), "{own}");
            assert_eq!(
                help(&["hub", option]),
                "`hub` is: channels --channels=1 --listeners=1,10,100,1000 \
                 --workload=others_listen --transactions=50\n\n"
                    .to_owned()
                    + &own
            );
            for (alias, ..) in ALIASES {
                let help = help(&[alias, option]);
                assert!(help.starts_with(&format!("`{alias}` is: ")), "{help}");
            }
        }
        assert_eq!(help(&["help", "queue"]), help(&["queue", "--help"]));
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
