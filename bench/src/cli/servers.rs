//! Which servers to measure.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::running::RunningTarget;
use crate::target::{Setting, Target};

/// Which servers to measure.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub struct ServerArgs {
    #[command(flatten)]
    clusters: ClusterArgs,

    /// Instead of throwaway clusters: a running server to measure; the first is the
    /// baseline (repeatable)
    ///
    /// Nothing is written there outside a schema, which is removed in the end.
    #[arg(
        long,
        value_name = "[NAME=]postgresql://USER@HOST:PORT/DATABASE",
        conflicts_with_all = ["pg_config", "target", "setting"]
    )]
    url: Vec<RunningTarget>,
}

impl ServerArgs {
    pub fn targets_or(&self, default: impl FnOnce(&Path) -> Vec<Target>) -> Targets {
        if self.url.is_empty() {
            Targets::Own(self.clusters.targets_or(default))
        } else {
            Targets::Running(self.url.clone())
        }
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

    /// The baseline first.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Own(targets) => targets.iter().map(|target| target.name.clone()).collect(),
            Self::Running(targets) => targets.iter().map(|target| target.name.clone()).collect(),
        }
    }
}

/// Which clusters to make, and how their servers are set up.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Servers")]
pub struct ClusterArgs {
    /// pg_config of the PostgreSQL to measure, once stock and once with pg_pinpoint
    #[arg(
        long,
        value_name = "PATH",
        default_value = "pg_config",
        conflicts_with = "target"
    )]
    pg_config: PathBuf,

    /// Instead of --pg-config: a server to measure; the first is the baseline (repeatable)
    ///
    /// NAME=PG_CONFIG may be followed by `preload=LIBRARY` (for
    /// shared_preload_libraries), `extension=EXTENSION` (for CREATE EXTENSION)
    /// and settings of postgresql.conf as `NAME=VALUE`, each any number of times,
    /// with commas between them.
    #[arg(
        long,
        value_name = "NAME=PG_CONFIG[,preload=LIBRARY][,extension=EXTENSION][,SETTING=VALUE]..."
    )]
    target: Vec<Target>,

    /// A setting of postgresql.conf for all targets (repeatable)
    ///
    /// Without it the servers run with PostgreSQL's own defaults, fsync included.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<Setting>,

    /// Where to make the throwaway clusters [default: the system's folder for temporary files]
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
        clusters: ClusterArgs,
    }

    fn targets(arguments: &[&str]) -> Vec<Target> {
        let arguments = ["pinpoint-bench"].iter().chain(arguments);
        Servers::parse_from(arguments)
            .clusters
            .targets_or(|pg_config| vec![Target::stock(pg_config), Target::pinpoint(pg_config)])
    }

    #[test]
    fn default_targets_are_stock_and_pinpoint_of_one_pg_config() {
        let targets = targets(&["--pg-config", "/opt/pg/bin/pg_config"]);
        let names: Vec<_> = targets.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["stock", "pinpoint"]);
        for target in &targets {
            assert_eq!(target.pg_config, PathBuf::from("/opt/pg/bin/pg_config"));
        }
        assert!(targets[0].preload.is_empty() && targets[0].extensions.is_empty());
        assert_eq!(targets[1].preload, ["pg_pinpoint"]);
        assert_eq!(targets[1].extensions, ["pg_pinpoint"]);
    }

    #[test]
    fn a_targets_own_settings_come_after_those_for_all() {
        let targets = targets(&[
            "--setting",
            "fsync=off",
            "--target",
            "a=pg_config,fsync=on",
            "--target",
            "b=pg_config",
        ]);
        let settings = |target: &Target| -> Vec<String> {
            target.settings.iter().map(Setting::to_string).collect()
        };
        assert_eq!(settings(&targets[0]), ["fsync = 'off'", "fsync = 'on'"]);
        assert_eq!(settings(&targets[1]), ["fsync = 'off'"]);
    }
}
