//! Who is to get a notification: what the listeners ask the server for.

use std::fmt;

use anyhow::Context;
use clap::ValueEnum;
use pinpoint_servers::server::Server;
use serde::Serialize;
use tokio_postgres::Config;

/// How the notifications are to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Every listener gets every notification
    Broadcast,
    /// Identical ones that wait for a listener arrive once (pinpoint.fold)
    Folded,
    /// Each notification goes to a few of the listeners (pinpoint.shared_channels)
    Shared,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broadcast => "broadcast",
            Self::Folded => "folded",
            Self::Shared => "shared",
        })
    }
}

impl Workload {
    /// The setting that a session asks with, and its value.
    fn setting(self, channel: &str) -> Option<(&'static str, String)> {
        match self {
            Self::Broadcast => None,
            Self::Folded => Some(("pinpoint.fold", "on".to_owned())),
            Self::Shared => Some(("pinpoint.shared_channels", channel.to_owned())),
        }
    }

    /// What this comes to on a server, and how a listener connects there. Where the
    /// setting is not known everybody gets everything.
    pub async fn on(self, server: &Server, channel: &str) -> anyhow::Result<(Self, Config)> {
        let mut config = server.config();
        let Some((name, value)) = self.setting(channel) else {
            return Ok((self, config));
        };
        let sql = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = $1)";
        let row = server.connect().await?.query_one(sql, &[&name]).await;
        let row = row.with_context(|| format!("could not ask whether there is {name}"))?;
        if !row.try_get::<_, bool>(0)? {
            return Ok((Self::Broadcast, config));
        }
        let options = config.get_options().unwrap_or_default();
        let options = format!("{options} -c {name}={value}");
        config.options(options.trim_start());
        Ok((self, config))
    }
}
