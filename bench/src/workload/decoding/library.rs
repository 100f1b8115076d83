//! The library pg_pinpoint_decoding in a server: is it really used?

use std::path::Path;

use anyhow::{Context, bail, ensure};
use pinpoint_servers::server::Server;
use pinpoint_servers::target::Target;
use tokio_postgres::Client;

/// Of the library, and of the extension that shows its statistics.
const NAME: &str = "pg_pinpoint_decoding";

/// The same PostgreSQL with the library loaded.
pub fn target(pg_config: &Path) -> Target {
    Target {
        preload: vec![NAME.to_owned()],
        extensions: vec![NAME.to_owned()],
        ..Target::pinpoint(pg_config)
    }
}

/// The statistics of a server that has the library.
#[derive(Debug)]
pub struct Library {
    session: Client,
}

impl Library {
    /// Makes sure that the library is active if the server has loaded it.
    pub async fn of(server: &Server) -> anyhow::Result<Option<Self>> {
        let session = server.connect().await?;
        let loaded = session
            .query_one("SHOW shared_preload_libraries", &[])
            .await?;
        let loaded: String = loaded.try_get(0)?;
        if !loaded.split(',').any(|library| library.trim() == NAME) {
            return Ok(None);
        }
        let sql = format!("CREATE EXTENSION IF NOT EXISTS {NAME}");
        session.batch_execute(&sql).await?;
        let sql = "SELECT refused_because FROM pinpoint_decoding.stat_server";
        let refused_because: Option<String> = session.query_one(sql, &[]).await?.try_get(0)?;
        if let Some(reason) = refused_because {
            bail!(
                "{NAME} is loaded, but not active: {reason} (\"docs/decoding.md\" tells what it needs)"
            );
        }
        Ok(Some(Self { session }))
    }

    /// How often the library has looked up a relation since the server started.
    pub async fn lookups(&self) -> anyhow::Result<u64> {
        let sql = "SELECT lookups FROM pinpoint_decoding.stat_server";
        let lookups: i64 = self.session.query_one(sql, &[]).await?.try_get(0)?;
        u64::try_from(lookups).context("a number of look-ups is negative")
    }
}

/// Every change takes a look-up.
pub fn ensure_used(found: u64, expected: u64) -> anyhow::Result<()> {
    ensure!(
        found >= expected,
        "{NAME} has looked up {found} relations for {expected} changes: PostgreSQL's own function \
         was used instead, and the figures would be those of stock PostgreSQL"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_takes_a_lookup() {
        assert!(ensure_used(100, 100).is_ok());
        let error = ensure_used(99, 100).unwrap_err().to_string();
        assert!(error.contains("looked up 99 relations for 100 changes"));
    }
}
