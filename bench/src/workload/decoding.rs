//! Logical decoding of DDL.
//!
//! The method is that of the patch in the discussion "Optimize
//! RelfilenumberMapInvalidateCallback for logical decoding performance"
//! (pgsql-hackers, June 2026). For each point a database of its own is filled,
//! once, and two replication slots keep what was written:
//!
//! ```text
//!  CREATE TABLE, N times │ INSERT, N times │ INSERT, N times   ALTER TABLE, N times │
//!                        ▲                 ▲                                        ▲
//!                        └── slot "dml" ───┴───────────── slot "total" ─────────────┘
//! ```
//!
//! Every run decodes both and leaves the slots as they are. The difference is the DDL.

mod database;
pub mod library;
pub mod recvlogical;
pub mod statements;

use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use pinpoint_servers::server::Server;
use serde::Serialize;

use self::database::{Database, Decoded, Slot};
use self::library::Library;
use self::statements::Grouping;
use crate::report::results::Values;

/// One in the database of the point, one for its making, and one that reads the
/// library's statistics.
pub const SESSIONS: u32 = 3;

/// For each decoding: stock PostgreSQL needs N times N.
const TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy)]
pub struct Decoding {
    pub interface: Interface,
    pub grouping: Grouping,
    pub tables: u32,
}

/// Which process decodes, and how that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Interface {
    /// A new WAL sender for each decoding, with pg_recvlogical
    #[value(name = "walsender")]
    WalSender,
    /// The same session for all decodings, with pg_logical_slot_peek_changes()
    #[value(name = "sql")]
    Sql,
}

impl Decoding {
    /// Decodes what a slot keeps, which stays there.
    async fn decode(
        &self,
        server: &Server,
        database: &Database,
        slot: &Slot,
    ) -> anyhow::Result<Decoded> {
        let decoded = match self.interface {
            Interface::WalSender => {
                let copy = database.copy(slot).await?;
                let name = &database.name;
                let decoded = recvlogical::receive(server, name, copy, &slot.end, TIMEOUT).await?;
                database.drop_copy(TIMEOUT).await?;
                decoded
            }
            Interface::Sql => database.peek(slot, TIMEOUT).await?,
        };
        slot.ensure_complete(decoded.changes)?;
        Ok(decoded)
    }
}

/// What is kept of a server between its runs.
#[derive(Debug)]
pub struct Decoder {
    library: Option<Library>,
    /// The database of the point.
    database: Option<Database>,
}

impl Decoder {
    pub async fn start(server: &Server) -> anyhow::Result<Self> {
        Ok(Self {
            library: Library::of(server).await?,
            database: None,
        })
    }

    /// Makes the database of a point in the place of the one before.
    pub async fn prepare(&mut self, server: &Server, decoding: &Decoding) -> anyhow::Result<()> {
        if let Some(former) = self.database.take() {
            former.drop(server).await?;
        }
        let database = Database::create(server, decoding.grouping, decoding.tables.into());
        let database = self.database.insert(database.await?);
        server.checkpoint().await?;

        // So that the first run finds the catalogs in memory, like the others.
        for slot in [&database.dml, &database.total] {
            decoding.decode(server, database, slot).await?;
        }
        Ok(())
    }

    pub async fn run(
        &self,
        server: &Server,
        decoding: &Decoding,
        run: u32,
    ) -> anyhow::Result<Values> {
        let database = self.database.as_ref().context("no database is prepared")?;
        let lookups_before = self.lookups().await?;

        let decode = |slot| decoding.decode(server, database, slot);
        let (dml, total) = if run % 2 == 1 {
            let dml = decode(&database.dml).await?;
            (dml, decode(&database.total).await?)
        } else {
            let total = decode(&database.total).await?;
            (decode(&database.dml).await?, total)
        };

        if self.library.is_some() {
            let lookups = self.lookups().await? - lookups_before;
            library::ensure_used(lookups, database.dml.changes + database.total.changes)?;
        }
        Ok(values(dml, total))
    }

    async fn lookups(&self) -> anyhow::Result<u64> {
        match &self.library {
            Some(library) => library.lookups().await,
            None => Ok(0),
        }
    }
}

fn values(dml: Decoded, total: Decoded) -> Values {
    let (dml, total) = (dml.time.as_secs_f64(), total.time.as_secs_f64());
    [
        ("ddl_seconds", total - dml),
        ("dml_seconds", dml),
        ("total_seconds", total),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ddl_is_what_is_more_than_the_dml_or_less() {
        let decoded = |time| Decoded {
            time: Duration::from_millis(time),
            changes: 1,
        };
        for (dml, total, ddl) in [(250, 1000, 0.75), (1000, 750, -0.25)] {
            let values = values(decoded(dml), decoded(total));
            assert_eq!(values["ddl_seconds"], ddl);
        }
    }
}
