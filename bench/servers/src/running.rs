//! A server that runs already (`--url`).
//!
//! Nothing is written there outside a schema, which is made for the
//! measurement and removed after it.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use nix::unistd::{Uid, User};
use rand::TryRng;
use rand::rngs::SysRng;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config};

use crate::connection::connect;
use crate::installation::Installation;
use crate::target::check_name;

/// The name of a server that is not given one.
const NAME: &str = "server";

const SCHEMA_PREFIX: &str = "pinpoint_bench";

/// Where the URL does not say how long to try.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The session that removes the schema, and another one that has not quite ended.
const MORE_SESSIONS: u32 = 2;

/// Sessions that were cut short may hold locks until the server notices.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(30);

/// A running server, as the command line names it. Displayed without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningTarget {
    pub name: String,
    config: Box<Config>,
    /// What follows the `?` of the URL, without the password.
    parameters: String,
}

impl FromStr for RunningTarget {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let is_url = |text: &str| {
            ["postgresql://", "postgres://"]
                .iter()
                .any(|scheme| text.starts_with(scheme))
        };
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if is_url(url) => (name, url),
            _ if is_url(text) => (NAME, text),
            _ => bail!("expected postgresql://..., or NAME=postgresql://..."),
        };
        check_name(name)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            anyhow!("not a URL of PostgreSQL: {:#}", anyhow::Error::from(error))
        })?;
        ensure!(
            config.get_hosts().len() == 1 && config.get_ports().len() <= 1,
            "name one server, as in postgresql://user@host:5432/database"
        );
        ensure!(
            config.get_ssl_mode() != SslMode::Require,
            "encryption (sslmode=require) is not supported: leave that out, and measure from the \
             server's own machine or through a tunnel"
        );
        config.ssl_mode(SslMode::Disable);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // As PostgreSQL's own programs have it.
        if config.get_user().is_none()
            && let Ok(Some(user)) = User::from_uid(Uid::effective())
        {
            config.user(user.name);
        }
        if config.get_password().is_none()
            && let Ok(password) = env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_dbname().is_none()
            && let Some(user) = config.get_user().map(str::to_owned)
        {
            config.dbname(user);
        }
        let (_, parameters) = url.split_once('?').unwrap_or_default();
        let parameters: Vec<&str> = parameters
            .split('&')
            .filter(|parameter| !parameter.is_empty() && !parameter.starts_with("password="))
            .collect();
        Ok(Self {
            name: name.to_owned(),
            config: Box::new(config),
            parameters: parameters.join("&"),
        })
    }
}

impl RunningTarget {
    /// Where it is and how it is connected to, without its password.
    pub fn url(&self) -> String {
        let (host, port) = address(&self.config);
        let host = host.to_string_lossy().replace('/', "%2F");
        let question_mark = if self.parameters.is_empty() { "" } else { "?" };
        format!(
            "postgresql://{}@{host}:{port}/{}{question_mark}{}",
            self.config.get_user().unwrap_or_default(),
            self.config.get_dbname().unwrap_or_default(),
            self.parameters
        )
    }
}

/// Host, or the folder of the socket, and port.
fn address(config: &Config) -> (OsString, u16) {
    let host = match config.get_hosts() {
        [Host::Tcp(host), ..] => host.into(),
        [Host::Unix(folder), ..] => folder.into(),
        [] => OsString::new(),
    };
    (host, config.get_ports().first().copied().unwrap_or(5432))
}

/// How programs of PostgreSQL are to connect, by their environment.
pub fn environment(config: &Config) -> Vec<(&'static str, OsString)> {
    let (host, port) = address(config);
    let mut environment: Vec<(&str, OsString)> = vec![
        ("PGHOST", host),
        ("PGPORT", port.to_string().into()),
        ("PGSSLMODE", "disable".into()),
    ];
    let strings = [
        ("PGUSER", config.get_user()),
        ("PGDATABASE", config.get_dbname()),
        ("PGOPTIONS", config.get_options()),
    ];
    environment.extend(strings.map(|(name, value)| (name, value.unwrap_or_default().into())));
    if let Some(password) = config.get_password() {
        let password = String::from_utf8_lossy(password).into_owned();
        environment.push(("PGPASSWORD", password.into()));
    }
    environment
}

impl fmt::Display for RunningTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.url())
    }
}

/// A running server that is measured.
#[derive(Debug)]
pub struct Running {
    pub target: RunningTarget,
    /// Of our sessions there.
    pub config: Config,
    schema: String,
}

impl Running {
    /// A server that can be reached and has room for `sessions` sessions. Nothing
    /// is made there yet.
    pub async fn check(target: RunningTarget, sessions: u32) -> anyhow::Result<Self> {
        let random = SysRng.try_next_u32().context("no random numbers")?;
        let schema = format!("{SCHEMA_PREFIX}_{}_{random:08x}", std::process::id());
        let mut config = *target.config.clone();
        let options = config.get_options().unwrap_or_default();
        let options = format!("{options} -c search_path={schema}");
        config
            .options(options.trim_start())
            .application_name("pinpoint-bench");
        let running = Self {
            target,
            config,
            schema,
        };

        let not_reached = || {
            let target = &running.target;
            format!("could not connect to {target}: start that server, or correct --url")
        };
        let client = connect(&running.config).await.with_context(not_reached)?;
        let room = room(&client).await.with_context(not_reached)?;
        let needed = sessions + MORE_SESSIONS;
        ensure!(
            room >= i64::from(needed),
            "{} has room for {room} more sessions, but the benchmark needs {needed}: raise \
             max_connections there, or ask for fewer sessions",
            running.target
        );
        Ok(running)
    }

    pub async fn create_schema(&self) -> anyhow::Result<()> {
        let create = async {
            let client = connect(&self.config).await?;
            let sql = format!("CREATE SCHEMA {}", self.schema);
            client.batch_execute(&sql).await
        };
        create.await.with_context(|| {
            format!(
                "could not make a schema on {}: the user needs the privilege CREATE on the database",
                self.target
            )
        })
    }

    /// Says so if that fails: there is nothing more to be done then.
    pub async fn remove_schema(&self) {
        let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        let remove = async {
            let client = connect(&self.config).await?;
            client
                .batch_execute("SET client_min_messages = warning")
                .await?;
            client.batch_execute(&sql).await
        };
        let removed = tokio::time::timeout(REMOVAL_DEADLINE, remove).await;
        let error = match removed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{:#}", anyhow::Error::from(error)),
            Err(_) => format!("not done within {REMOVAL_DEADLINE:?}"),
        };
        eprintln!(
            "warning: could not remove the schema that was made on {}: {error}; \
             \"{sql}\" removes it",
            self.target
        );
    }

    /// A channel that other sessions of the same database do not happen to use.
    pub fn channel(&self, name: &str) -> String {
        format!("{}_{name}", self.schema)
    }
}

/// A program on the PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// A program of PostgreSQL, from the PATH or from beside pg_config.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    on_path(name)
        .or_else(|| {
            let installation = Installation::locate(Path::new("pg_config")).ok()?;
            installation.program(name).ok()
        })
        .with_context(|| {
            format!(
                "there is no {name} on the PATH, nor beside pg_config: install it (it comes with \
                 the PostgreSQL server, or with its client or contrib programs)"
            )
        })
}

/// How many more sessions the server admits.
async fn room(client: &Client) -> Result<i64, tokio_postgres::Error> {
    let sql = "SELECT current_setting('max_connections')::bigint \
                   - current_setting('superuser_reserved_connections')::bigint \
                   - coalesce(current_setting('reserved_connections', true)::bigint, 0) \
                   - (SELECT count(*) FROM pg_stat_activity \
                      WHERE datid IS NOT NULL AND pid <> pg_backend_pid())";
    client.query_one(sql, &[]).await?.try_get(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> RunningTarget {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn displayed_without_the_password() {
        let target = target("mine=postgresql://me:secret@db.example:5433/shop");
        assert_eq!(
            target.to_string(),
            "mine=postgresql://me@db.example:5433/shop"
        );
    }

    #[test]
    fn a_name_is_not_needed() {
        let target = target("postgres://me@%2Frun%2Fpostgresql?application_name=a");
        assert_eq!(
            target.to_string(),
            "server=postgresql://me@%2Frun%2Fpostgresql:5432/me?application_name=a"
        );
    }

    #[test]
    fn parameters_tell_two_of_one_server_apart() {
        let text = "off=postgresql://me@h/d?password=secret&options=-c%20pinpoint.enabled%3Doff";
        assert_eq!(
            target(text).to_string(),
            "off=postgresql://me@h:5432/d?options=-c%20pinpoint.enabled%3Doff"
        );
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for (text, message) in [
            ("", "expected postgresql://"),
            ("host=/tmp", "expected postgresql://"),
            ("a=b=postgresql://h", "expected postgresql://"),
            ("=postgresql://h", "the name \"\" is not"),
            ("postgresql://h:port/d", "not a URL of PostgreSQL"),
            ("postgresql://a,b/d", "name one server"),
            ("postgresql:///d", "name one server"),
            ("postgresql://h/d?sslmode=require", "encryption"),
        ] {
            let error = text.parse::<RunningTarget>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
