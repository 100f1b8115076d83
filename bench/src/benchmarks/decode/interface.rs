//! Who decodes, and how that is asked for.

use std::time::Duration;

use clap::ValueEnum;
use pinpoint_servers::server::Server;
use serde::Serialize;

use super::database::{Database, Decoding, Slot};
use super::receiver::Receiver;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Interface {
    /// A new WAL sender each time, for pg_recvlogical
    #[value(name = "walsender")]
    WalSender,
    /// A session that stays, with pg_logical_slot_peek_changes()
    #[value(name = "sql")]
    Sql,
}

impl Interface {
    /// Decodes what a slot keeps, which stays there.
    pub async fn decode(
        self,
        server: &Server,
        database: &Database,
        slot: &Slot,
        timeout: Duration,
    ) -> anyhow::Result<Decoding> {
        let decoding = match self {
            Self::WalSender => {
                let receiver = Receiver::of(server, &database.name, timeout)?;
                let copy = database.copy(slot).await?;
                let decoding = receiver.receive(copy, &slot.end).await?;
                database.drop_copy(timeout).await?;
                decoding
            }
            Self::Sql => database.peek(slot, timeout).await?,
        };
        slot.ensure_complete(decoding.changes)?;
        Ok(decoding)
    }
}
