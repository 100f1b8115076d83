//! A PostgreSQL installation, as its `pg_config` describes it.

use std::env::consts::DLL_SUFFIX;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::target::Target;

#[derive(Debug, Clone)]
pub struct Installation {
    programs: PathBuf,
    libraries: PathBuf,
    extensions: PathBuf,
    pg_config: PathBuf,
}

impl Installation {
    /// Finds the installation of a target, and makes sure that all that the
    /// target asks for is there. The server would find out too, later and
    /// without a remedy.
    pub fn of(target: &Target) -> anyhow::Result<Self> {
        let installation = Self::locate(&target.pg_config)?;
        for program in ["initdb", "postgres"] {
            installation.program(program)?;
        }
        let ensure_installed = |is_there, what, name: &str, folder: &Path| {
            ensure!(
                is_there,
                "{what} \"{name}\" of target \"{}\" is not installed in {}: install it \
                 (make install PG_CONFIG={}, in its source tree)",
                target.name,
                folder.display(),
                target.pg_config.display()
            );
            Ok(())
        };
        for library in &target.preload {
            let is_there = installation.has_library(library);
            ensure_installed(is_there, "the library", library, &installation.libraries)?;
        }
        let folder = &installation.extensions;
        for extension in &target.extensions {
            let is_there = folder.join(format!("{extension}.control")).is_file();
            ensure_installed(is_there, "the extension", extension, folder)?;
        }
        Ok(installation)
    }

    pub fn locate(pg_config: &Path) -> anyhow::Result<Self> {
        let output = Command::new(pg_config)
            .args(["--bindir", "--pkglibdir", "--sharedir"])
            .output()
            .with_context(|| {
                format!(
                    "could not run \"{}\": install PostgreSQL's server development package, \
                     or name the pg_config to use with --pg-config or --target",
                    pg_config.display()
                )
            })?;
        let answer = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&Path> = answer.lines().map(Path::new).collect();
        let [bin, libraries, share] = lines[..] else {
            bail!(
                "\"{}\" does not answer as pg_config does",
                pg_config.display()
            );
        };
        Ok(Self {
            programs: bin.to_owned(),
            libraries: libraries.to_owned(),
            extensions: share.join("extension"),
            pg_config: pg_config.to_owned(),
        })
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let program = self.programs.join(name);
        ensure!(
            program.is_file(),
            "the program \"{}\" does not exist: install {name} (it comes with the PostgreSQL \
             server, or with its client or contrib programs) beside \"{}\", or name another \
             installation with --pg-config or --target",
            program.display(),
            self.pg_config.display()
        );
        Ok(program)
    }

    /// A library is named as in `shared_preload_libraries`: with or without a
    /// folder, with or without its suffix.
    fn has_library(&self, library: &str) -> bool {
        let path = self
            .libraries
            .join(library.strip_prefix("$libdir/").unwrap_or(library));
        let mut with_suffix = path.clone().into_os_string();
        with_suffix.push(DLL_SUFFIX);
        path.is_file() || Path::new(&with_suffix).is_file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_as_the_server_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(format!("present{DLL_SUFFIX}"));
        std::fs::write(&file, "").unwrap();
        let installation = Installation {
            programs: PathBuf::new(),
            libraries: folder.path().to_owned(),
            extensions: PathBuf::new(),
            pg_config: PathBuf::new(),
        };

        assert!(installation.has_library("present"));
        assert!(installation.has_library("$libdir/present"));
        assert!(installation.has_library(&format!("present{DLL_SUFFIX}")));
        assert!(installation.has_library(file.to_str().unwrap()));
        assert!(!installation.has_library("absent"));
        assert!(!installation.has_library(""));
    }

    #[test]
    fn what_is_no_pg_config() {
        let error = |path: &str| {
            Installation::locate(Path::new(path))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error("/nowhere/pg_config"),
            "could not run \"/nowhere/pg_config\": install PostgreSQL's server development \
             package, or name the pg_config to use with --pg-config or --target"
        );
        assert_eq!(error("true"), "\"true\" does not answer as pg_config does");
    }
}
