//! The comparison, with differences planted one by one.

mod position_clients;
mod run_builder;

use std::collections::HashMap;

use self::run_builder::*;
use crate::checker::Checker;
use crate::checker::difference::Mismatch;
use crate::checker::record::{Decoded, Entry, Event, Fate, Moment, Record, Sent};
use crate::workload::Planned;
use crate::workload::identity::{Channel, Introduction, Key, Lsn};

#[test]
fn what_was_committed_is_what_is_received() {
    let plan = Plan::default();
    let counts = listener_on_1(&plan, &on_channel(1))
        .event(Event::Closed { is_complete: true })
        .passes();
    assert_eq!(counts.notifications, 5);
    assert_eq!((counts.complete_intervals, counts.cut_intervals), (1, 0));
}

#[test]
fn several_channels_are_one_sequence() {
    let plan = Plan::default();
    Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1, 2], 0, 0)
        .receive(&committed())
        .passes();
}

#[test]
fn a_missing_notification() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    arrivals.remove(2);
    let what = listener_on_1(&plan, &arrivals).fails();
    assert_eq!(what.missing(), Some(key(1, 2)));
}

#[test]
fn a_missing_notification_at_the_beginning() {
    let plan = Plan::default();
    let what = listener_on_1(&plan, &on_channel(1)[1..]).fails();
    assert_eq!(what.missing(), Some(key(1, 1)));
}

#[test]
fn a_repeated_notification() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    for position in [2, 4] {
        arrivals.insert(position, arrivals[1]);
        let what = listener_on_1(&plan, &arrivals).fails();
        assert_eq!(what, Mismatch::Repeated(key(2, 1)));
        arrivals.remove(position);
    }
}

#[test]
fn swapped_notifications() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    arrivals.swap(1, 2);
    let what = listener_on_1(&plan, &arrivals).fails();
    let swapped = Mismatch::Missing {
        key: key(2, 1),
        received: key(1, 2),
    };
    assert_eq!(what, swapped);
}

#[test]
fn swapped_channels() {
    let plan = Plan::default();
    let mut arrivals = committed();
    arrivals.swap(3, 4);
    let what = Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1, 2], 0, 0)
        .receive(&arrivals)
        .fails();
    assert_eq!(
        what,
        Mismatch::Missing {
            key: key(1, 2),
            received: key(3, 2),
        }
    );
}

#[test]
fn a_notification_of_a_rollback() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    arrivals.insert(3, (key(5, 1), 1));
    let what = listener_on_1(&plan, &arrivals).fails();
    assert_eq!(what, Mismatch::NotCommitted(key(5, 1)));
}

#[test]
fn a_notification_of_a_savepoint_that_was_rolled_back() {
    let plan = Plan::default();
    let undone = Key {
        index: 1,
        ..key(2, 1)
    };
    let mut arrivals = on_channel(1);
    arrivals.insert(2, (undone, 1));
    let what = listener_on_1(&plan, &arrivals).fails();
    assert_eq!(what, Mismatch::NotCommitted(undone));
}

#[test]
fn a_wrong_pid() {
    let plan = Plan::default();
    let sent = received(key(2, 1), 1);
    let wrong = Sent { pid: 1, ..sent };
    let what = listener_on_1(&plan, &on_channel(1)[..1])
        .event(Event::Received(wrong))
        .fails();
    assert_eq!(
        what,
        Mismatch::Altered {
            sent,
            received: wrong,
        }
    );
}

#[test]
fn a_wrong_channel_and_a_wrong_payload() {
    let plan = Plan::default();
    let what = Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1, 2], 0, 0)
        .receive(&[(key(1, 1), 2)])
        .fails();
    assert_eq!(
        what,
        Mismatch::Altered {
            sent: received(key(1, 1), 1),
            received: received(key(1, 1), 2),
        }
    );

    let sent = received(key(1, 1), 1);
    let cut = Sent {
        length: LENGTH - 1,
        ..sent
    };
    let what = listener_on_1(&plan, &[])
        .event(Event::Received(cut))
        .fails();
    assert_eq!(
        what,
        Mismatch::Altered {
            sent,
            received: cut,
        }
    );
}

#[test]
fn what_the_listener_sees_for_itself() {
    let plan = Plan::default();
    let early = listener_on_1(&plan, &on_channel(1)[..1])
        .event(Event::Early(key(1, 1)))
        .fails();
    assert_eq!(early, Mismatch::Early(key(1, 1)));

    let inside = listener_on_1(&plan, &on_channel(1)[..1])
        .event(Event::InTransaction(key(1, 1)))
        .fails();
    assert_eq!(inside, Mismatch::InTransaction(key(1, 1)));
}

#[test]
fn a_channel_that_it_does_not_listen_on() {
    let plan = Plan::default();
    let what = listener_on_1(&plan, &committed()).fails();
    assert_eq!(
        what,
        Mismatch::NotListening {
            key: key(3, 1),
            channel: Channel(2),
        }
    );
}

#[test]
fn the_beginning_may_be_anywhere_before_listen_returned() {
    let plan = Plan::default();
    let all = on_channel(1);
    // LISTEN returned when the WAL ended behind the second transaction, at 20.
    for first in 0..=2 {
        Story::new(&plan)
            .commit(&committed())
            .connect()
            .listen(&[1], 20, 0)
            .receive(&all[first..])
            .passes();
    }
    let what = Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1], 20, 0)
        .receive(&all[3..])
        .fails();
    assert_eq!(what.missing(), Some(key(1, 2)));
}

#[test]
fn a_listener_that_introduced_itself_begins_with_its_commit_record() {
    let plan = Plan::default();
    let all = on_channel(1);
    // It returned only behind the fourth one, at 40, but committed at 15.
    let story = |introduced, first: usize| {
        Story::new(&plan)
            .commit(&committed())
            .connect()
            .listen_introduced(&[1], 40, 0, introduced)
            .receive(&all[first..])
    };
    for first in 0..=1 {
        story(Some(15), first).passes();
    }
    assert_eq!(story(Some(15), 2).fails().missing(), Some(key(2, 1)));
    story(None, 2).passes();
}

#[test]
fn whoever_has_seen_a_listener_reaches_it_without_rows_too() {
    let plan = plan_rowless(&[(id(1, 5), true, 1)]);
    let fence = key(9, 0);
    let story = |seen: &[Introduction], arrivals: &[(Key, u32)]| {
        Story::new(&plan)
            .commit(&[(fence, 3)])
            .connect()
            .listen_introduced(&[1, 3], 0, 10, Some(0))
            .outcome_after_seeing(rowless(1, 5), Fate::Committed, 9, 12, 1, seen)
            .fence_sent(fence, 20)
            .receive(arrivals)
            .receive(&[(fence, 3)])
    };
    let number = |number| Introduction {
        number,
        ..INTRODUCTION
    };
    let other = Introduction {
        listener: 1,
        ..INTRODUCTION
    };
    for seen in [&[INTRODUCTION][..], &[other, number(8)]] {
        story(seen, &[(rowless(1, 5), 1)]).passes();
        let lost = Mismatch::MissingBeforeFence(rowless(1, 5));
        assert_eq!(story(seen, &[]).fails(), lost);
    }
    // Somebody else, or only what there was before.
    for seen in [&[][..], &[other, number(6)]] {
        story(seen, &[]).passes();
    }
}

#[test]
fn from_the_beginning_on_nothing_may_be_missing() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    arrivals.remove(1);
    let lost = Mismatch::Missing {
        key: on_channel(1)[1].0,
        received: arrivals[1].0,
    };
    // What was sent before LISTEN returned may be missing, but not what lies in between.
    for returned in [0, 20] {
        let what = Story::new(&plan)
            .commit(&committed())
            .connect()
            .listen(&[1], returned, 0)
            .receive(&arrivals)
            .fails();
        assert_eq!(what, lost);
    }
}

#[test]
fn channels_of_one_transaction_begin_together() {
    let plan = Plan::default();
    // Channel 1 begins at position 10, so what channel 2 has at 30 must come.
    let what = Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1, 2], 70, 0)
        .receive(&[(key(1, 1), 1), (key(2, 1), 1), (key(1, 2), 1)])
        .fails();
    assert_eq!(what.missing(), Some(key(3, 1)));

    Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1], 70, 0)
        .listen(&[2], 70, 0)
        .receive(&[(key(1, 1), 1), (key(2, 1), 1), (key(1, 2), 1)])
        .passes();
}

#[test]
fn a_listen_without_an_answer_promises_nothing() {
    let plan = Plan::default();
    let counts = Story::new(&plan)
        .commit(&committed())
        .connect()
        .event(Event::Listen {
            channels: vec![Channel(1)],
            returned: None,
            introduction: None,
        })
        .receive(&on_channel(1)[2..])
        .event(Event::Closed { is_complete: false })
        .passes();
    assert_eq!((counts.complete_intervals, counts.cut_intervals), (0, 1));
}

#[test]
fn a_session_may_end_early_but_not_leave_out_anything() {
    let plan = Plan::default();
    let cut = || Event::Closed { is_complete: false };
    listener_on_1(&plan, &on_channel(1)[..3])
        .event(cut())
        .passes();
    let mut arrivals = on_channel(1)[..3].to_vec();
    arrivals.remove(1);
    let what = listener_on_1(&plan, &arrivals).event(cut()).fails();
    assert_eq!(what.missing(), Some(key(2, 1)));
}

#[test]
fn a_session_begins_without_the_channels_of_the_one_before() {
    let plan = Plan::default();
    let what = listener_on_1(&plan, &on_channel(1)[..3])
        .event(Event::Closed { is_complete: true })
        .connect()
        .listen(&[2], 0, 0)
        .receive(&[(key(2, 2), 1)])
        .fails();
    assert_eq!(
        what,
        Mismatch::NotListening {
            key: key(2, 2),
            channel: Channel(1),
        }
    );
}

#[test]
fn a_channel_ends_somewhere_while_unlisten_is_under_way() {
    let plan = Plan::default();
    let one = vec![Channel(1)];
    let story = |arrivals: &[(Key, u32)]| {
        Story::new(&plan)
            .commit(&committed())
            .connect()
            .listen(&[1, 2], 0, 0)
            .receive(&committed()[..3])
            .event(Event::Unlistening(one.clone()))
            .receive(arrivals)
    };
    // Channel 2 goes on, channel 1 ends right here, or later.
    story(&[(key(3, 2), 2)])
        .event(Event::Unlistened(one.clone()))
        .passes();
    story(&[(key(1, 2), 1), (key(3, 2), 2)])
        .event(Event::Unlistened(one.clone()))
        .passes();
    // It cannot go on after a gap, nor after the answer.
    let what = story(&[(key(3, 2), 2), (key(2, 2), 1)]).fails();
    assert_eq!(what.missing(), Some(key(1, 2)));
    let what = story(&[(key(1, 2), 1)])
        .event(Event::Unlistened(one.clone()))
        .receive(&[(key(2, 2), 1)])
        .fails();
    assert_eq!(
        what,
        Mismatch::NotListening {
            key: key(2, 2),
            channel: Channel(1),
        }
    );
}

#[test]
fn a_late_notification_from_before_the_beginning() {
    let plan = Plan::default();
    let what = Story::new(&plan)
        .commit(&committed())
        .connect()
        .listen(&[1], 20, 0)
        .receive(&[(key(2, 1), 1), (key(1, 1), 1)])
        .fails();
    assert_eq!(what, Mismatch::Late(key(1, 1)));
}

#[test]
fn without_rows_order_holds_within_the_session() {
    let plan = plan_rowless(&[(id(1, 5), true, 1), (id(1, 6), true, 1)]);
    let story = |arrivals: &[(Key, u32)]| {
        listener_on_1(&plan, &[])
            .outcome(rowless(1, 5), Fate::Committed, 1, 2, 1)
            .outcome(rowless(1, 6), Fate::Committed, 3, 4, 1)
            .receive(arrivals)
    };
    let (five, six) = ((rowless(1, 5), 1), (rowless(1, 6), 1));
    story(&[five, six]).passes();
    assert_eq!(story(&[six, five]).fails(), Mismatch::LateInSession(five.0));
    assert_eq!(story(&[five, five]).fails(), Mismatch::Repeated(five.0));
    // One with a row that the same session committed before.
    let what = story(&[five, (key(1, 1), 1)]).fails();
    assert_eq!(what, Mismatch::LateInSession(key(1, 1)));
}

#[test]
fn without_rows_nothing_is_lost_between_listen_and_fence() {
    let plan = plan_rowless(&[(id(1, 5), true, 1)]);
    let fence = key(9, 0);
    let story = |started, finished, fate, arrivals: &[(Key, u32)]| {
        Story::new(&plan)
            .commit(&[(fence, 3)])
            .connect()
            .listen(&[1, 3], 0, 10)
            .outcome(rowless(1, 5), fate, started, finished, 1)
            .fence_sent(fence, 20)
            .receive(arrivals)
            .receive(&[(fence, 3)])
    };
    let lost = Mismatch::MissingBeforeFence(rowless(1, 5));
    let here = [(rowless(1, 5), 1)];
    story(11, 12, Fate::Committed, &here).passes();
    assert_eq!(story(11, 12, Fate::Committed, &[]).fails(), lost);
    // Too early, too late, or not certain.
    story(9, 12, Fate::Committed, &[]).passes();
    story(11, 21, Fate::Committed, &[]).passes();
    story(11, 12, Fate::Unknown, &[]).passes();
    story(11, 12, Fate::Unknown, &here).passes();
    // The writer was told of an error.
    story(11, 12, Fate::RolledBack, &[]).passes();
    let what = story(11, 12, Fate::RolledBack, &here).fails();
    assert_eq!(what, Mismatch::NotCommitted(rowless(1, 5)));
}

#[test]
fn without_rows_what_is_rolled_back_or_made_up() {
    let plan = plan_rowless(&[(id(1, 5), false, 1), (id(1, 6), true, 1)]);
    let story = |arrival| {
        listener_on_1(&plan, &[])
            .outcome(rowless(1, 6), Fate::Committed, 1, 2, 1)
            .event(Event::Received(arrival))
    };
    let rolled_back = received(rowless(1, 5), 1);
    assert_eq!(
        story(rolled_back).fails(),
        Mismatch::NotCommitted(rowless(1, 5))
    );
    let made_up = received(rowless(1, 7), 1);
    assert_eq!(story(made_up).fails(), Mismatch::NotSent(rowless(1, 7)));
    let sent = received(rowless(1, 6), 1);
    let wrong_pid = Sent { pid: 1, ..sent };
    assert_eq!(
        story(wrong_pid).fails(),
        Mismatch::Altered {
            sent,
            received: wrong_pid,
        }
    );
}

#[test]
fn the_oracle_is_compared_with_the_writers() {
    let plan = Plan::default();
    let story = |fate| {
        Story::new(&plan)
            .outcome(key(8, 1), fate, 0, 0, 1)
            .commit(&committed())
    };
    let what = story(Fate::Committed).fails();
    assert_eq!(what, Mismatch::NotDecoded(id(8, 1)));
    story(Fate::RolledBack).passes();
    assert_eq!(story(Fate::Unknown).passes().unanswered, 1);
}

#[test]
fn the_oracle_is_compared_with_the_plan() {
    let commits = |commits, channel| {
        let planned = Planned {
            commits,
            has_rows: true,
            notifications: vec![notification(channel)],
        };
        let plan = Plan(HashMap::from([(id(1, 1), planned)]));
        let decoded = Decoded {
            id: id(1, 1),
            entries: vec![Entry {
                lsn: Lsn(10),
                sent: received(key(1, 1), 1),
            }],
            at: Moment::default(),
        };
        Checker::new(&plan, 0, MEMORY)
            .apply(Record::Decoded(decoded))
            .map_err(|difference| difference.what)
    };
    assert_eq!(commits(true, 1), Ok(()));
    assert_eq!(commits(true, 2), Err(Mismatch::OtherRows(id(1, 1))));
    assert_eq!(commits(false, 1), Err(Mismatch::OtherRows(id(1, 1))));
}

#[test]
fn what_is_not_needed_any_more_is_forgotten() {
    let plan = Plan::default();
    let mut story = listener_on_1(&plan, &on_channel(1));
    story.check().unwrap();
    let now = story.at(60);
    story.checker.apply(Record::Round(now)).unwrap();

    let mut story = story.receive(&[(key(1, 2), 1)]);
    let what = story.check().unwrap_err().what;
    assert_eq!(what, Mismatch::NotCommitted(key(1, 2)));
}

#[test]
fn a_difference_shows_both_sequences() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    arrivals.swap(1, 2);
    let difference = listener_on_1(&plan, &arrivals).check().unwrap_err();
    insta::assert_snapshot!(difference.to_string(), @r"
    Difference at listener 0 (PID 7): writer 1 transaction 2 #0 arrived, but not writer 2 transaction 1 #0 before it, which committed earlier.
    It arrived later.
    It listens on c1.

    Expected, in commit order:
      0/A          c1       PID 101      writer 1 transaction 1 #0
    > 0/14         c1       PID 102      writer 2 transaction 1 #0
      0/28         c1       PID 101      writer 1 transaction 2 #0
      0/3C         c1       PID 102      writer 2 transaction 2 #0
      0/46         c1       PID 104      writer 4 transaction 1 #0

    Received:
      0/A          c1       PID 101      writer 1 transaction 1 #0
    > 0/28         c1       PID 101      writer 1 transaction 2 #0
      0/14         c1       PID 102      writer 2 transaction 1 #0
      0/3C         c1       PID 102      writer 2 transaction 2 #0
      0/46         c1       PID 104      writer 4 transaction 1 #0

    writer 1 transaction 2: what it was to do.
    writer 2 transaction 1: what it was to do.
    ");
}

#[test]
fn what_has_come_after_all_is_late_and_not_lost() {
    let plan = Plan::default();
    let mut arrivals = on_channel(1);
    let late = arrivals.remove(1);
    let difference = listener_on_1(&plan, &arrivals).check().unwrap_err();
    assert!(!difference.is_late);
    let arrival = arrival(late.0, 1);
    assert!(!difference.is_arrival_of_missing(&Record::Event(1, arrival.clone())));
    assert!(difference.is_arrival_of_missing(&Record::Event(0, arrival)));
    arrivals.push(late);
    assert!(listener_on_1(&plan, &arrivals).check().unwrap_err().is_late);
}

/// One that stays until all others have gone shares channel 1.
fn stays<'a>(plan: &'a Plan, shares: &[u32]) -> Story<'a> {
    Story::new(plan)
        .commit(&committed())
        .connect()
        .event(Event::Shares {
            channels: shares.iter().map(|&channel| Channel(channel)).collect(),
            stays: true,
            on_standby: false,
        })
}

#[test]
fn what_is_shared_may_be_left_out_but_not_by_all() {
    let plan = Plan::default();
    let mut arrivals = committed().to_vec();
    arrivals.remove(1);
    let story = || stays(&plan, &[1]).listen(&[1, 2], 0, 0).receive(&arrivals);
    let counts = story().passes();
    assert_eq!((counts.to_give, counts.given, counts.given_late), (5, 4, 0));

    let what = story().event(Event::Closed { is_complete: true }).fails();
    assert_eq!(what, Mismatch::GivenToNobody(key(2, 1)));
    let what = {
        let mut story = story();
        story.check().unwrap();
        story.start = story.at(61);
        story.fails()
    };
    assert_eq!(what, Mismatch::GivenToNobody(key(2, 1)));
    // What is given to another is not lost, unless that is on the standby.
    let with_another = |on_standby| {
        story()
            .other(|story| {
                story
                    .connect()
                    .event(Event::Shares {
                        channels: vec![Channel(1)],
                        stays: false,
                        on_standby,
                    })
                    .listen(&[1], 0, 0)
                    .receive(&[(key(2, 1), 1)])
            })
            .event(Event::Closed { is_complete: true })
    };
    with_another(false).passes();
    assert_eq!(
        with_another(true).fails(),
        Mismatch::GivenToNobody(key(2, 1))
    );
}

#[test]
fn what_is_not_shared_may_not_be_left_out() {
    let plan = Plan::default();
    let mut arrivals = committed().to_vec();
    arrivals.remove(2);
    let what = stays(&plan, &[1])
        .listen(&[1, 2], 0, 0)
        .receive(&arrivals)
        .fails();
    assert_eq!(what.missing(), Some(key(3, 1)));
}

#[test]
fn what_is_shared_may_come_late_but_not_twice() {
    let plan = Plan::default();
    let mut arrivals = committed().to_vec();
    let late = arrivals.remove(1);
    arrivals.push(late);
    let story = || stays(&plan, &[1]).listen(&[1, 2], 0, 0).receive(&arrivals);
    let counts = story().event(Event::Closed { is_complete: true }).passes();
    assert_eq!((counts.given, counts.given_late), (5, 1));
    let what = story().receive(&[late]).fails();
    assert_eq!(what, Mismatch::Repeated(key(2, 1)));
    // On the others it may not.
    let what = stays(&plan, &[2])
        .listen(&[1, 2], 0, 0)
        .receive(&arrivals)
        .fails();
    assert_eq!(what.missing(), Some(key(2, 1)));
}
