//! A PostgreSQL installation, as its `pg_config` describes it.

use std::env::consts::DLL_SUFFIX;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

use crate::target::Target;

#[derive(Debug, Error)]
pub enum InstallationError {
    #[error(
        "could not run \"{}\": install PostgreSQL's server development package, \
         or name the pg_config to use with --pg-config or --target", .0.display()
    )]
    PgConfig(PathBuf, #[source] io::Error),
    #[error("\"{}\" does not answer as pg_config does", .0.display())]
    Answer(PathBuf),
    #[error(
        "the server program \"{}\" does not exist: install the PostgreSQL server that \"{}\" \
         belongs to, or name another with --pg-config or --target",
        program.display(), pg_config.display()
    )]
    Program {
        program: PathBuf,
        pg_config: PathBuf,
    },
    #[error(
        "the program \"{}\" does not exist: install {name} (it comes with the PostgreSQL server, \
         or with its client or contrib programs) beside \"{}\", or name another installation with \
         --pg-config or --target",
        program.display(), pg_config.display()
    )]
    OtherProgram {
        name: String,
        program: PathBuf,
        pg_config: PathBuf,
    },
    #[error(
        "{what} \"{name}\" of target \"{target}\" is not installed in {}: install it \
         (make install PG_CONFIG={}, in its source tree)",
        folder.display(), pg_config.display()
    )]
    Missing {
        what: &'static str,
        name: String,
        target: String,
        folder: PathBuf,
        pg_config: PathBuf,
    },
}

#[derive(Debug)]
pub struct Installation {
    pub initdb: PathBuf,
    pub postgres: PathBuf,
    programs: PathBuf,
    libraries: PathBuf,
    extensions: PathBuf,
    pg_config: PathBuf,
}

impl Installation {
    /// Finds the installation of a target, and makes sure that all that the
    /// target asks for is there. The server would find out too, later and
    /// without a remedy.
    pub fn of(target: &Target) -> Result<Self, InstallationError> {
        let installation = Self::locate(&target.pg_config)?;

        for program in [&installation.initdb, &installation.postgres] {
            if !program.is_file() {
                return Err(InstallationError::Program {
                    program: program.clone(),
                    pg_config: target.pg_config.clone(),
                });
            }
        }
        let missing = |what, name: &str, folder: &Path| InstallationError::Missing {
            what,
            name: name.to_owned(),
            target: target.name.clone(),
            folder: folder.to_owned(),
            pg_config: target.pg_config.clone(),
        };
        for library in &target.preload {
            if !installation.has_library(library) {
                return Err(missing("the library", library, &installation.libraries));
            }
        }
        for extension in &target.extensions {
            let control_file = installation.extensions.join(format!("{extension}.control"));
            if !control_file.is_file() {
                return Err(missing(
                    "the extension",
                    extension,
                    &installation.extensions,
                ));
            }
        }
        Ok(installation)
    }

    pub fn locate(pg_config: &Path) -> Result<Self, InstallationError> {
        let output = Command::new(pg_config)
            .args(["--bindir", "--pkglibdir", "--sharedir"])
            .output()
            .map_err(|error| InstallationError::PgConfig(pg_config.to_owned(), error))?;

        let answer = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&Path> = answer.lines().map(Path::new).collect();
        let [bin, libraries, share] = lines[..] else {
            return Err(InstallationError::Answer(pg_config.to_owned()));
        };
        Ok(Self {
            initdb: bin.join("initdb"),
            postgres: bin.join("postgres"),
            programs: bin.to_owned(),
            libraries: libraries.to_owned(),
            extensions: share.join("extension"),
            pg_config: pg_config.to_owned(),
        })
    }

    /// A program that not every benchmark needs.
    pub fn program(&self, name: &str) -> Result<PathBuf, InstallationError> {
        let program = self.programs.join(name);
        if !program.is_file() {
            return Err(InstallationError::OtherProgram {
                name: name.to_owned(),
                program,
                pg_config: self.pg_config.clone(),
            });
        }
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
            initdb: PathBuf::new(),
            postgres: PathBuf::new(),
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
    fn a_missing_pg_config_names_the_remedy() {
        let error = Installation::locate(Path::new("/nowhere/pg_config")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not run \"/nowhere/pg_config\": install PostgreSQL's server development \
             package, or name the pg_config to use with --pg-config or --target"
        );
    }

    #[test]
    fn a_program_that_is_not_pg_config() {
        let error = Installation::locate(Path::new("true")).unwrap_err();
        assert!(matches!(error, InstallationError::Answer(_)), "{error}");
    }
}
