//! Sessions that do nothing but stay connected, listening or not.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pinpoint_servers::connection::within;
use pinpoint_servers::server::Server;

use crate::clients::reader::CONNECTING_AT_ONCE;
use crate::clients::session::Session;

/// Which idle sessions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdleSessions {
    pub sessions: u32,
    /// How many of them listen on each channel, on which nothing is ever sent. With 0
    /// they have never executed LISTEN.
    pub listeners_per_channel: u32,
}

/// Those of a server. They stay connected, and are only added to.
#[derive(Debug, Default)]
pub struct ConnectedIdleSessions {
    sessions: Vec<Session>,
    listeners_per_channel: u32,
}

impl ConnectedIdleSessions {
    /// Connects more, until there are as many as there should be, and makes them listen.
    pub async fn adjust(
        &mut self,
        server: &Server,
        wanted: &IdleSessions,
        timeout: Duration,
    ) -> anyhow::Result<()> {
        let config = server.config();
        let present = self.sessions.len() as u32;
        let connecting = stream::iter(present..wanted.sessions)
            .map(|_| within(timeout, "a connection", Session::connect(&config)))
            .buffer_unordered(CONNECTING_AT_ONCE);
        let added: Vec<anyhow::Result<Session>> = connecting.try_collect().await?;
        for session in added {
            self.sessions.push(session?);
        }

        let per_channel = wanted.listeners_per_channel;
        if per_channel == 0 {
            return Ok(());
        }
        // Groups of another size are others.
        let is_same = self.listeners_per_channel == per_channel;
        let first = if is_same { present as usize } else { 0 };
        self.listeners_per_channel = per_channel;
        let listening = self.sessions.iter().enumerate().skip(first);
        let listen = listening.map(|(number, session)| {
            let channel = server.channel(&format!("idle_{}", number as u32 / per_channel));
            async move {
                let statements = format!("UNLISTEN *; LISTEN {channel}");
                within(timeout, "LISTEN", session.execute(&statements)).await?
            }
        });
        try_join_all(listen).await?;
        Ok(())
    }

    /// Makes sure that they are all still there, and have received nothing.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let lost = self.sessions.iter().filter(|s| s.is_closed()).count();
        let all = self.sessions.len();
        ensure!(
            lost == 0,
            "{lost} of {all} idle sessions lost their connection: these figures would not be for \
             {all} of them"
        );
        let received = self.sessions.iter_mut().map(Session::take_notifications);
        let misdirected = received.sum::<anyhow::Result<u32>>();
        let misdirected = misdirected.context("an idle session failed")?;
        ensure!(
            misdirected == 0,
            "{misdirected} notifications reached idle sessions, which they were not for"
        );
        Ok(())
    }
}
