//! The manual pages and the shells' completions, for whoever makes a package.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

const NAME: &str = "pinpoint-bench";

/// Write manual pages and completions for bash, zsh and fish to a directory
///
/// Example: pinpoint-bench documents .
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An existing directory
    folder: PathBuf,
}

impl Args {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        write(&self.folder).with_context(|| format!("could not write to {}", self.folder.display()))
    }
}

/// One manual page for the program and one for each subcommand.
fn write(folder: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Cli::command(), folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), NAME, folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        write(folder.path()).unwrap();

        let program = read("pinpoint-bench.1");
        let completions = [
            "pinpoint-bench.bash",
            "_pinpoint-bench",
            "pinpoint-bench.fish",
        ]
        .map(read);
        let command = Cli::command();
        let (hidden, shown): (Vec<_>, Vec<_>) =
            command.get_subcommands().partition(|c| c.is_hide_set());
        assert!(shown.len() > 5);
        for name in shown.iter().map(|c| c.get_name()) {
            let page = read(&format!("pinpoint-bench-{name}.1"));
            assert!(page.contains("SYNOPSIS"), "{name}");
            assert!(program.contains(name), "{name}");
            assert!(completions.iter().all(|c| c.contains(name)), "{name}");
        }
        assert_eq!(hidden.len(), 1);
        assert!(!program.contains(hidden[0].get_name()));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let args = Args {
            folder: "/nonexistent/here".into(),
        };
        let error = args.run().unwrap_err();
        assert_eq!(error.to_string(), "could not write to /nonexistent/here");
    }
}
