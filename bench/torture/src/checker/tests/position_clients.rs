//! What position clients are told, with differences planted one by one.

use super::run_builder::*;
use crate::checker::difference::Mismatch;
use crate::checker::record::{Fate, Last, PositionEvent};
use crate::workload::identity::{Channel, Lsn};

/// Two transactions on channel 1, the second one acknowledged after 5 seconds.
fn story(plan: &Plan) -> Story<'_> {
    Story::new(plan)
        .commit(&[(key(1, 1), 1), (key(1, 2), 1)])
        .outcome(key(1, 1), Fate::Committed, 1, 2, 1)
        .outcome(key(1, 2), Fate::Committed, 3, 5, 1)
}

fn read(number: u32) -> PositionEvent {
    PositionEvent::Read {
        channels: vec![Channel(1)],
        last: vec![Last(Channel(1), 1, number)],
    }
}

fn received(number: u32) -> PositionEvent {
    PositionEvent::Received {
        channel: Channel(1),
        key: key(1, number),
    }
}

impl Story<'_> {
    /// It asks, and channel 1 is not reported.
    fn told_unchanged(self, seconds: u64, replayed: Option<u64>) -> Self {
        let at = self.at(seconds);
        self.position(PositionEvent::Asked {
            at,
            replayed: replayed.map(Lsn),
            changed: Vec::new(),
            unchanged: vec![Channel(1)],
        })
    }
}

fn unreported(number: u32, is_replayed: bool) -> Mismatch {
    Mismatch::Unreported {
        client: 3,
        transaction: id(1, number),
        channel: Channel(1),
        is_replayed,
    }
}

#[test]
fn what_was_acknowledged_before_must_be_in_the_copy() {
    let plan = Plan::default();
    // At that moment it may not have been counted yet.
    story(&plan)
        .position(read(1))
        .told_unchanged(5, None)
        .passes();
    let what = story(&plan)
        .position(read(1))
        .told_unchanged(6, None)
        .fails();
    assert_eq!(what, unreported(2, false));
    let counts = story(&plan)
        .position(read(2))
        .told_unchanged(6, None)
        .passes();
    assert_eq!((counts.questions, counts.unchanged), (1, 1));
}

#[test]
fn what_was_replayed_before_must_be_in_the_copy() {
    let plan = Plan::default();
    // Their commit records end at 10 and 20.
    let what = |replayed| {
        story(&plan)
            .position(read(1))
            .told_unchanged(9, Some(replayed))
    };
    what(19).passes();
    assert_eq!(what(20).fails(), unreported(2, true));
}

#[test]
fn a_later_notification_does_not_stand_in_for_one_that_was_missed() {
    let plan = Plan::default();
    let all = [1, 2].map(received);
    let received = |events: &[PositionEvent]| {
        let story = events.iter().cloned().fold(story(&plan), Story::position);
        story.told_unchanged(9, None)
    };
    received(&all).passes();
    assert_eq!(received(&all[1..]).fails(), unreported(1, false));
    assert_eq!(received(&all[..1]).fails(), unreported(2, false));
}

#[test]
fn at_the_end_the_copy_is_the_table() {
    let plan = Plan::default();
    let table = || PositionEvent::Table(vec![Last(Channel(1), 1, 2)]);
    story(&plan).position(read(2)).position(table()).passes();
    let seen = story(&plan).position(read(1)).position(received(2));
    seen.position(table()).passes();
    let what = story(&plan).position(read(1)).position(table()).fails();
    let other = Mismatch::OtherCopy {
        client: 3,
        channel: Channel(1),
        in_copy: Some(id(1, 1)),
        in_table: Some(id(1, 2)),
    };
    assert_eq!(what, other);
}
