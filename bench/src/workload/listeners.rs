//! The listeners of a load: what they ask the server for, and what they must receive.

use anyhow::{Context, ensure};
use clap::ValueEnum;
use pinpoint_servers::server::Server;
use serde::Serialize;
use tokio_postgres::Config;

use super::transaction::with_channel;
use crate::clients::load_listeners::{Received, listen_to_fence};

/// Sessions that listen, and read everything that they get.
#[derive(Debug, Clone, Copy)]
pub struct Listeners {
    /// What the figures begin with that tell when the probes arrived, each from when it
    /// was due.
    pub figures: &'static str,
    pub count: u32,
    pub on_standby: bool,
    /// What they execute to listen.
    pub listen: &'static str,
    /// Whether they get the notifications of the load, and not those of the probe alone.
    pub gets_load: bool,
    pub delivery: Delivery,
}

impl Listeners {
    /// What each of them executes.
    pub fn statements(&self, channel: &str) -> String {
        let listen = with_channel(self.listen, channel);
        format!("{listen}; {}", listen_to_fence(channel))
    }
}

/// Which listeners are to get a notification: what they ask the server for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Every listener receives every notification
    Broadcast,
    /// A listener receives identical unread notifications once (pinpoint.fold)
    Folded,
    /// A few listeners receive each notification (pinpoint.shared_channels)
    Shared,
}

impl Delivery {
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

/// Everything that was sent must have been received, once: by every listener, or,
/// where they share the channel, by one of them at least. What was folded may have
/// arrived as little as once.
pub fn check(
    received: &[Received],
    delivery: Delivery,
    probes: u32,
    transactions: u64,
) -> anyhow::Result<()> {
    if received.is_empty() {
        return Ok(());
    }
    for Received { probes: got, .. } in received {
        let (got, last) = (got.len(), got.last().map(|&(number, _)| number));
        ensure!(
            last.is_none_or(|number| number < probes),
            "a listener received a probe that was not sent: the server invented it"
        );
        ensure!(
            delivery == Delivery::Shared || got == probes as usize,
            "a listener received {got} of the {probes} probes: the server lost or invented some"
        );
    }
    let mut somewhere = vec![false; probes as usize];
    for (number, _) in received.iter().flat_map(|received| &received.probes) {
        somewhere[*number as usize] = true;
    }
    let nowhere = somewhere.iter().filter(|arrived| !**arrived).count();
    ensure!(
        nowhere == 0,
        "{nowhere} of the {probes} probes arrived at no listener"
    );

    let least = match delivery {
        Delivery::Broadcast => transactions,
        Delivery::Folded => transactions.min(1),
        Delivery::Shared => 0,
    };
    for Received { load, .. } in received {
        ensure!(
            (least..=transactions).contains(load),
            "a listener received {load} notifications of the load, but {transactions} transactions \
             have sent one: the server lost or invented some"
        );
    }
    let all: u64 = received.iter().map(|received| received.load).sum();
    ensure!(
        delivery != Delivery::Shared || all >= transactions,
        "all listeners together received {all} notifications of the load, but {transactions} \
         transactions have sent one: the server lost some"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn received(start: Instant, probes: &[(u32, u32)], load: u64) -> Received {
        Received {
            probes: probes.iter().map(|&(n, ms)| (n, start + ms * MS)).collect(),
            fence: start + 300 * MS,
            load,
        }
    }

    #[test]
    fn what_is_lost_is_an_error() {
        use Delivery::{Broadcast, Folded, Shared};

        let start = Instant::now();
        let all = &[(0, 1), (1, 2), (2, 3)][..];
        let check = |delivery, probes, transactions, listeners: &[(&[(u32, u32)], u64)]| {
            let listeners = listeners.iter();
            let received: Vec<Received> = listeners
                .map(|&(probes, load)| received(start, probes, load))
                .collect();
            check(&received, delivery, probes, transactions).is_ok()
        };
        // Nothing is sent by a plain load.
        for delivery in [Broadcast, Folded, Shared] {
            assert!(check(delivery, 0, 0, &[(&[], 0), (&[], 0)]));
            assert!(!check(delivery, 0, 0, &[(&[], 1)]));
            assert!(!check(delivery, 0, 0, &[(&all[..1], 0)]));
            assert!(check(delivery, 3, 7, &[(all, 7), (all, 7)]));
            assert!(!check(delivery, 3, 7, &[(all, 7), (all, 8)]));
            assert!(!check(delivery, 3, 7, &[(&all[..2], 7), (&all[..2], 7)]));
            assert!(!check(delivery, 2, 7, &[(all, 7)]));
        }
        // Some are not for all.
        for (delivery, listeners, expected) in [
            (Broadcast, [(all, 6), (all, 7)], false),
            (Broadcast, [(&all[1..], 7), (all, 7)], false),
            (Folded, [(all, 1), (all, 7)], true),
            (Folded, [(all, 0), (all, 7)], false),
            (Folded, [(&all[1..], 7), (all, 7)], false),
            (Shared, [(&all[1..], 0), (&all[..1], 7)], true),
            (Shared, [(all, 3), (&[][..], 4)], true),
            (Shared, [(all, 3), (&[][..], 3)], false),
        ] {
            assert_eq!(check(delivery, 3, 7, &listeners), expected, "{delivery:?}");
        }
    }
}
