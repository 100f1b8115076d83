//! What comes on shared channels: each notification must be received by one of those
//! who share its channel, if one of them is there all the time.
//!
//! Who it was given to may leave before it has read it, and then it goes to another,
//! as often as it takes. So one listener stays until all others have gone: what nobody
//! has received by then was lost.
//!
//! Each server gives to its own. Nobody can stay on a standby that is restarted, so this
//! is about the primary; what is received on the standby does not count.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::checker::difference::Mismatch;
use crate::checker::history::History;
use crate::checker::listener_check::{Counts, ListenerCheck};
use crate::checker::record::Moment;
use crate::workload::identity::Key;

#[derive(Debug, Default)]
pub struct SharedDeliveries {
    /// Up to which position entries have been looked at.
    seen: u64,
    /// What nobody has received yet, by position; since when it is known.
    open: BTreeMap<u64, (Key, Moment)>,
}

impl SharedDeliveries {
    /// To be asked when all listeners have been compared. What is open for longer than
    /// `patience` is lost.
    pub fn check(
        &mut self,
        history: &History,
        listener_checks: &mut [ListenerCheck],
        counts: &mut Counts,
        now: Moment,
        patience: Duration,
    ) -> Result<(), Mismatch> {
        let given: HashSet<u64> = listener_checks
            .iter_mut()
            .flat_map(ListenerCheck::take_given)
            .collect();
        for position in self.seen.max(history.base())..history.end() {
            if let Some(entry) = history.get(position)
                && listener_checks.iter().any(|o| o.stays_for(position, entry))
            {
                counts.to_give += 1;
                self.open.insert(position, (entry.sent.key, now));
            }
        }
        self.seen = history.end();
        for position in given {
            self.open.remove(&position);
        }
        let end = listener_checks
            .iter()
            .filter_map(ListenerCheck::stayed_until)
            .max();
        let lost = self.open.iter().find(|&(&position, &(_, since))| {
            end.is_some_and(|end| position < end) || now.saturating_sub(since) > patience
        });
        match lost {
            Some((_, &(key, _))) => Err(Mismatch::GivenToNobody(key)),
            None => Ok(()),
        }
    }
}
