//! Which servers to use: the options of the command lines.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::Args;

use crate::running::RunningTarget;
use crate::target::{Setting, Target};

/// Added to the name of a target that is given twice.
pub const AGAIN: &str = "-again";

/// Which servers to measure.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub struct ServerArgs {
    #[command(flatten)]
    clusters: ClusterArgs,

    /// A running server to measure, instead of throwaway clusters; the first one is the
    /// baseline (repeatable)
    ///
    /// The program writes only to a schema of its own, and removes the schema at the
    /// end. To compare a server with itself under different settings, add settings to
    /// the URL: ?options=-c%20pinpoint.enabled%3Doff.
    #[arg(
        long,
        value_name = "[NAME=]postgresql://USER@HOST:PORT/DATABASE",
        conflicts_with_all = ["pg_config", "target", "setting"]
    )]
    url: Vec<RunningTarget>,

    /// Measure the first server twice, to check the method (A/A test)
    #[arg(long)]
    aa: bool,
}

impl ServerArgs {
    /// The targets, the baseline first. If the command line names none, they are
    /// the default ones of a pg_config.
    pub fn targets_or(
        &self,
        default: impl FnOnce(&Path) -> Vec<Target>,
    ) -> anyhow::Result<Targets> {
        Ok(if self.url.is_empty() {
            let targets = self.clusters.targets_or(default);
            Targets::Own(self.checked(targets, |target| &mut target.name)?)
        } else {
            Targets::Running(self.checked(self.url.clone(), |target| &mut target.name)?)
        })
    }

    /// Gives a name of its own to what is there twice, on purpose. Results are told apart by
    /// the name of their target.
    fn checked<T: Clone + PartialEq>(
        &self,
        mut targets: Vec<T>,
        name: impl Fn(&mut T) -> &mut String,
    ) -> anyhow::Result<Vec<T>> {
        if self.aa {
            targets.truncate(1);
            targets.extend(targets.first().cloned());
        }
        if let [first, second] = &mut targets[..]
            && first == second
        {
            name(second).push_str(AGAIN);
        }
        let mut seen = HashSet::new();
        for target in &mut targets {
            let name = name(target);
            ensure!(
                seen.insert(name.clone()),
                "two targets are named \"{name}\": give each --target or --url a name of its own"
            );
        }
        Ok(targets)
    }

    pub fn temp_dir(&self) -> PathBuf {
        self.clusters.temp_dir()
    }
}

/// All targets of a measurement. The first one is the baseline.
#[derive(Debug, Clone)]
pub enum Targets {
    /// To make throwaway clusters for.
    Own(Vec<Target>),
    Running(Vec<RunningTarget>),
}

impl Targets {
    pub fn count(&self) -> usize {
        match self {
            Self::Own(targets) => targets.len(),
            Self::Running(targets) => targets.len(),
        }
    }
}

/// Which clusters to make, and how their servers are set up.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub struct ClusterArgs {
    /// pg_config of the PostgreSQL installation to use
    #[arg(
        long,
        value_name = "PATH",
        default_value = "pg_config",
        conflicts_with = "target"
    )]
    pg_config: PathBuf,

    /// A server to use, instead of --pg-config; the first one is the baseline (repeatable)
    ///
    /// NAME=PG_CONFIG can be followed by `preload=LIBRARY` (added to
    /// shared_preload_libraries), `extension=EXTENSION` (CREATE EXTENSION) and
    /// `NAME=VALUE` (a setting in postgresql.conf), separated by commas. Each of
    /// them can be repeated.
    #[arg(
        long,
        value_name = "NAME=PG_CONFIG[,preload=LIBRARY][,extension=EXTENSION][,SETTING=VALUE]..."
    )]
    target: Vec<Target>,

    /// A setting in postgresql.conf of all targets (repeatable)
    ///
    /// By default, servers have PostgreSQL's default settings, including fsync = on.
    /// Some subcommands change settings: `decode` sets fsync = off. The files of
    /// --json contains the settings.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<Setting>,

    /// Directory for the throwaway clusters [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
}

impl ClusterArgs {
    /// The targets, the baseline first, with the settings for all of them before
    /// their own. If the command line names none, they are made of pg_config.
    pub fn targets_or(&self, default: impl FnOnce(&Path) -> Vec<Target>) -> Vec<Target> {
        let mut targets = if self.target.is_empty() {
            default(&self.pg_config)
        } else {
            self.target.clone()
        };
        for target in &mut targets {
            target.settings.splice(0..0, self.setting.iter().cloned());
        }
        targets
    }

    pub fn temp_dir(&self) -> PathBuf {
        self.temp_dir.clone().unwrap_or_else(std::env::temp_dir)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Servers {
        #[command(flatten)]
        servers: ServerArgs,
    }

    fn targets(arguments: &[&str]) -> anyhow::Result<Vec<Target>> {
        let arguments = ["pinpoint-bench"].iter().chain(arguments);
        let servers = Servers::parse_from(arguments).servers;
        let default = |pg_config: &_| vec![Target::stock(pg_config), Target::pinpoint(pg_config)];
        match servers.targets_or(default)? {
            Targets::Own(targets) => Ok(targets),
            Targets::Running(_) => panic!("there is no --url"),
        }
    }

    fn names(arguments: &[&str]) -> Vec<String> {
        let targets = targets(arguments).unwrap();
        targets.into_iter().map(|target| target.name).collect()
    }

    #[test]
    fn the_default_targets_are_of_one_pg_config() {
        let targets = targets(&["--pg-config", "/opt/pg/bin/pg_config"]).unwrap();
        for target in &targets {
            assert_eq!(target.pg_config, PathBuf::from("/opt/pg/bin/pg_config"));
        }
        assert!(targets[0].preload.is_empty() && targets[0].extensions.is_empty());
        assert_eq!(targets[1].preload, ["pg_pinpoint"]);
        assert_eq!(targets[1].extensions, ["pg_pinpoint"]);
    }

    #[test]
    fn one_server_can_be_measured_twice() {
        assert_eq!(names(&["--aa"]), ["stock", "stock-again"]);
        let twice = ["--target=a=pg_config", "--target=a=pg_config"];
        assert_eq!(names(&twice), ["a", "a-again"]);
        let others = ["--target=a=pg_config", "--target=a=pg_config,fsync=off"];
        assert!(targets(&others).is_err());
    }

    #[test]
    fn a_targets_own_settings_come_after_those_for_all() {
        let targets = targets(&[
            "--setting=fsync=off",
            "--target=a=pg_config,fsync=on",
            "--target=b=pg_config",
        ])
        .unwrap();
        let settings = |target: &Target| -> Vec<String> {
            target.settings.iter().map(Setting::to_string).collect()
        };
        assert_eq!(settings(&targets[0]), ["fsync = 'off'", "fsync = 'on'"]);
        assert_eq!(settings(&targets[1]), ["fsync = 'off'"]);
    }
}
