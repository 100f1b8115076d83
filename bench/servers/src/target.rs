//! What is measured: a PostgreSQL installation and how a server of it is set up.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde::Serialize;

/// What a target looks like.
const SYNTAX: &str = "expected NAME=PG_CONFIG, followed by ,NAME=VALUE any number of times";

/// The library and the extension of the notifications.
pub const ENGINE: &str = "pg_pinpoint";

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
    fn new(name: &str, value: &str) -> anyhow::Result<Self> {
        let first_is_letter = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_name_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
        ensure!(
            first_is_letter && name.chars().all(is_name_character),
            "\"{name}\" is not the name of a setting"
        );
        ensure!(
            !value.contains(['\n', '\r', '\0']),
            "the value of {name} has a line break or a null character"
        );
        let mut reserved = RESERVED.iter();
        if let Some((name, remedy)) = reserved.find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            bail!("{name} is set by pinpoint-bench itself: {remedy}");
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl FromStr for Setting {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, value) = text.split_once('=').context("expected NAME=VALUE")?;
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
    /// The program that runs the server's, and its arguments; empty for none.
    pub wrapper: &'static [&'static str],
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
            wrapper: &[],
        }
    }

    /// The same PostgreSQL with pg_pinpoint loaded and created.
    pub fn pinpoint(pg_config: &Path) -> Self {
        Self {
            name: "pinpoint".to_owned(),
            preload: vec![ENGINE.to_owned()],
            extensions: vec![ENGINE.to_owned()],
            ..Self::stock(pg_config)
        }
    }

    /// Whether pg_pinpoint is loaded and created.
    pub fn has_engine(&self) -> bool {
        names_engine(&self.preload) && names_engine(&self.extensions)
    }
}

fn names_engine(names: &[String]) -> bool {
    names.iter().any(|name| name == ENGINE)
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.split(',').map(|part| part.split_once('='));

        let (name, pg_config) = parts.next().flatten().context(SYNTAX)?;
        check_name(name)?;
        ensure!(!pg_config.is_empty(), SYNTAX);

        let mut target = Self {
            name: name.to_owned(),
            ..Self::stock(Path::new(pg_config))
        };
        for part in parts {
            match part.context(SYNTAX)? {
                ("preload", library) => {
                    ensure!(
                        !library.is_empty() && !library.contains(['"', '\'', '\n', ' ']),
                        "\"{library}\" is not the name of a library"
                    );
                    target.preload.push(library.to_owned());
                }
                ("extension", extension) => target.extensions.push(extension.to_owned()),
                (name, value) => target.settings.push(Setting::new(name, value)?),
            }
        }
        ensure!(
            names_engine(&target.preload) || !names_engine(&target.extensions),
            "the extension {ENGINE} does nothing on a server that has not loaded its library: add \
             preload={ENGINE} to target \"{name}\""
        );
        Ok(target)
    }
}

/// Whether a target may have this name.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let is_name_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    ensure!(
        (1..=MAX_NAME_LENGTH).contains(&name.len()) && name.chars().all(is_name_character),
        "the name \"{name}\" is not 1 to {MAX_NAME_LENGTH} letters, digits, hyphens and underscores"
    );
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
                wrapper: &[],
            }
        );
    }

    #[test]
    fn what_is_no_target() {
        let long = format!("{}=pg_config", "n".repeat(MAX_NAME_LENGTH + 1));
        for (text, message) in [
            ("", SYNTAX),
            ("pg_config", SYNTAX),
            ("a=", SYNTAX),
            ("a=pg_config,", SYNTAX),
            ("a=pg_config,fsync", SYNTAX),
            ("=pg_config", "the name \"\" is not"),
            ("../a=pg_config", "the name \"../a\" is not"),
            (&long, "the name \"nnn"),
            ("a=pg_config,preload=", "is not the name of a library"),
            ("a=pg_config,=1", "\"\" is not the name of a setting"),
            (
                "a=pg_config,extension=pg_pinpoint",
                "add preload=pg_pinpoint to target \"a\"",
            ),
            ("a=pg_config,PORT=1", "port is set by pinpoint-bench itself"),
            ("a=pg_config,work_mem=1\n", "has a line break"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn a_setting_may_contain_equals_signs_and_quotes() {
        let setting: Setting = r"search_path=a='b\c'".parse().unwrap();
        assert_eq!(setting.to_string(), r"search_path = 'a=''b\\c'''");
    }
}
