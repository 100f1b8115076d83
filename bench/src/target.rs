//! What is measured: a PostgreSQL installation and how a server of it is set up.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("expected NAME=PG_CONFIG, followed by ,NAME=VALUE any number of times")]
    Syntax,
    #[error(
        "the name \"{0}\" is not 1 to {MAX_NAME_LENGTH} letters, digits, hyphens and underscores"
    )]
    Name(String),
    #[error("\"{0}\" is not the name of a library")]
    Library(String),
    #[error("two targets are named \"{0}\": give each --target or --url a name of its own")]
    Duplicate(String),
    #[error(transparent)]
    Setting(#[from] SettingError),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum SettingError {
    #[error("expected NAME=VALUE")]
    Syntax,
    #[error("\"{0}\" is not the name of a setting")]
    Name(String),
    #[error("the value of {0} has a line break or a null character")]
    Value(String),
    #[error("{0} is set by pinpoint-bench itself: {1}")]
    Reserved(&'static str, &'static str),
}

/// Settings that the clusters stand on, and what to use instead.
const RESERVED: [(&str, &str); 9] = [
    ("config_file", "give single settings with --setting"),
    ("data_directory", "choose the place with --temp-dir"),
    ("hba_file", "only its own sessions can connect"),
    ("listen_addresses", "the servers have no TCP port"),
    (
        "logging_collector",
        "the log is read to explain why a server failed",
    ),
    ("max_connections", "it follows from the number of listeners"),
    ("port", "the servers have no TCP port"),
    (
        "shared_preload_libraries",
        "name libraries with preload= of --target",
    ),
    (
        "unix_socket_directories",
        "choose the place with --temp-dir",
    ),
];

/// Names become part of the path of a socket, which is short.
const MAX_NAME_LENGTH: usize = 20;

/// One line of postgresql.conf. Displayed as it is written there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub name: String,
    pub value: String,
}

impl Setting {
    fn new(name: &str, value: &str) -> Result<Self, SettingError> {
        let first_is_letter = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_name_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
        if !first_is_letter || !name.chars().all(is_name_character) {
            return Err(SettingError::Name(name.to_owned()));
        }
        if value.contains(['\n', '\r', '\0']) {
            return Err(SettingError::Value(name.to_owned()));
        }
        if let Some((name, remedy)) = RESERVED
            .iter()
            .find(|(reserved, _)| reserved.eq_ignore_ascii_case(name))
        {
            return Err(SettingError::Reserved(name, remedy));
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (name, value) = text.split_once('=').ok_or(SettingError::Syntax)?;
        Self::new(name, value)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, quoted(&self.value))
    }
}

/// A value as postgresql.conf wants it: within quotes, `'` doubled and `\` escaped
/// (documentation, "Parameter Interaction via the Configuration File").
pub fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', "''"))
}

/// A server to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    pub pg_config: PathBuf,
    /// Libraries for `shared_preload_libraries`.
    pub preload: Vec<String>,
    /// Extensions to create in the database that is measured.
    pub extensions: Vec<String>,
    pub settings: Vec<Setting>,
}

impl Target {
    /// PostgreSQL as it comes.
    pub fn stock(pg_config: &Path) -> Self {
        Self {
            name: "stock".to_owned(),
            pg_config: pg_config.to_owned(),
            preload: Vec::new(),
            extensions: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// The same PostgreSQL with pg_pinpoint loaded and created.
    pub fn pinpoint(pg_config: &Path) -> Self {
        Self {
            name: "pinpoint".to_owned(),
            preload: vec!["pg_pinpoint".to_owned()],
            extensions: vec!["pg_pinpoint".to_owned()],
            ..Self::stock(pg_config)
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let mut parts = text.split(',').map(|part| part.split_once('='));

        let (name, pg_config) = parts.next().flatten().ok_or(TargetError::Syntax)?;
        check_name(name)?;
        if pg_config.is_empty() {
            return Err(TargetError::Syntax);
        }

        let mut target = Self {
            name: name.to_owned(),
            ..Self::stock(Path::new(pg_config))
        };
        for part in parts {
            match part.ok_or(TargetError::Syntax)? {
                ("preload", library) => {
                    if library.is_empty() || library.contains(['"', '\'', '\n', ' ']) {
                        return Err(TargetError::Library(library.to_owned()));
                    }
                    target.preload.push(library.to_owned());
                }
                ("extension", extension) => target.extensions.push(extension.to_owned()),
                (name, value) => target.settings.push(Setting::new(name, value)?),
            }
        }
        Ok(target)
    }
}

/// Whether a target may have this name.
pub fn check_name(name: &str) -> Result<(), TargetError> {
    let is_name_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME_LENGTH || !name.chars().all(is_name_character) {
        return Err(TargetError::Name(name.to_owned()));
    }
    Ok(())
}

/// Results are told apart by the name of their target.
pub fn ensure_unique_names<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), TargetError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(TargetError::Duplicate(name.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_with_everything() {
        let target: Target =
            "fast=/opt/pg/bin/pg_config,preload=pg_pinpoint,preload=pg_stat_statements,\
             extension=pg_pinpoint,fsync=off,pinpoint.queue_size=1MB"
                .parse()
                .unwrap();
        assert_eq!(
            target,
            Target {
                name: "fast".to_owned(),
                pg_config: PathBuf::from("/opt/pg/bin/pg_config"),
                preload: vec!["pg_pinpoint".to_owned(), "pg_stat_statements".to_owned()],
                extensions: vec!["pg_pinpoint".to_owned()],
                settings: vec![
                    Setting::new("fsync", "off").unwrap(),
                    Setting::new("pinpoint.queue_size", "1MB").unwrap(),
                ],
            }
        );
    }

    #[test]
    fn malformed_targets() {
        for (text, error) in [
            ("", TargetError::Syntax),
            ("pg_config", TargetError::Syntax),
            ("a=", TargetError::Syntax),
            ("a=pg_config,", TargetError::Syntax),
            ("a=pg_config,fsync", TargetError::Syntax),
            ("=pg_config", TargetError::Name(String::new())),
            ("../a=pg_config", TargetError::Name("../a".to_owned())),
            ("a=pg_config,preload=", TargetError::Library(String::new())),
            (
                "a=pg_config,=1",
                TargetError::Setting(SettingError::Name(String::new())),
            ),
        ] {
            assert_eq!(text.parse::<Target>(), Err(error), "{text}");
        }
        let long = format!("{}=pg_config", "n".repeat(MAX_NAME_LENGTH + 1));
        assert!(matches!(long.parse::<Target>(), Err(TargetError::Name(_))));
    }

    #[test]
    fn a_setting_may_contain_equals_signs_and_quotes() {
        let setting: Setting = r"search_path=a='b\c'".parse().unwrap();
        assert_eq!(setting.to_string(), r"search_path = 'a=''b\\c'''");
    }

    #[test]
    fn settings_that_the_clusters_stand_on_are_refused() {
        for (name, remedy) in RESERVED {
            assert_eq!(
                Setting::from_str(&format!("{}=1", name.to_uppercase())),
                Err(SettingError::Reserved(name, remedy))
            );
        }
    }

    #[test]
    fn a_setting_cannot_bring_in_another_line() {
        assert_eq!(
            "work_mem=4MB\nport=1".parse::<Setting>(),
            Err(SettingError::Value("work_mem".to_owned()))
        );
    }

    #[test]
    fn names_must_differ() {
        assert_eq!(ensure_unique_names(["a", "b"]), Ok(()));
        assert_eq!(
            ensure_unique_names(["a", "b", "a"]),
            Err(TargetError::Duplicate("a".to_owned()))
        );
    }
}
