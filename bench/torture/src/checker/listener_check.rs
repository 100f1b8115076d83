//! One listener, compared with what happened.
//!
//! Take the decoded stream, restricted to the channels of a listener. What it
//! receives must be a contiguous stretch of that. It goes on at least up to the
//! last fence that the listener waited for. As channels come and go during a
//! session, this is kept track of for each LISTEN.
//!
//! A LISTEN takes effect in the last moment before its commit record, and that is
//! promised from the first position that can be known to come after it. If the
//! transaction of the LISTEN introduces the listener by a row, the decoded
//! stream has the commit record itself: the stretch begins no later than with
//! the first transaction whose own commit record lies behind that. Whoever has
//! seen the row, or got a lock that the listener held, is among these. Else it
//! is the position at which LISTEN had returned. The stretch may begin earlier.
//!
//! Notifications without a row are not in the decoded stream. They have to be
//! in order with the others of their session, and those that were sent after
//! LISTEN had returned, or by a session that had seen the listener's row, and
//! acknowledged before a fence was sent have to be there when the fence arrives.
//!
//! On a channel that the listener shares anything may be left out, and what was
//! handed on by another may come late. `SharedDeliveries` looks for what nobody got.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use serde::Serialize;

use crate::checker::difference::{Difference, Line, Mismatch, Witness};
use crate::checker::history::History;
use crate::checker::record::{Entry, Event, Fate, Moment, Outcome, Returned, Sent};
use crate::workload::Plans;
use crate::workload::identity::{Channel, Introduction, Key, Lsn};

/// Lines to show before and after a difference.
const CONTEXT: usize = 4;

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counts {
    /// Transactions that were acknowledged.
    pub committed: u64,
    /// Transactions that were rolled back, or failed.
    pub rolled_back: u64,
    /// Transactions without an answer.
    pub unanswered: u64,
    /// Notifications received, all of them checked.
    pub notifications: u64,
    /// LISTENs that were checked from beginning to end.
    pub complete_intervals: u64,
    /// LISTENs that ended with their session.
    pub cut_intervals: u64,
    /// Notifications that at least one of those who share their channel had to receive.
    pub to_give: u64,
    /// How often one of those who share a channel received a notification on it.
    pub given: u64,
    /// How often one of them received it late, which happens to what is handed on.
    pub given_late: u64,
    /// Questions of position clients.
    pub questions: u64,
    /// Channels that the answers to these questions named as changed.
    pub changed: u64,
    /// Channels that were in a question, and that the answer did not name.
    pub unchanged: u64,
}

/// One LISTEN, or several of one transaction.
#[derive(Debug)]
struct Start {
    returned: Option<Returned>,
    introduction: Option<Introduction>,
    /// Everything must come that commits behind this; `None` if it is not known
    /// whether LISTEN took effect.
    promised: Option<Lsn>,
    /// Position of the first notification that came of it.
    first: Option<u64>,
}

/// The time between LISTEN and UNLISTEN on one channel.
#[derive(Debug)]
struct Period {
    /// Index of its start.
    start: usize,
    /// Others may get what comes on the channel.
    is_shared: bool,
    /// If it is shared: positions of what was received. Another LISTEN may be given the same.
    given: BTreeSet<u64>,
    /// UNLISTEN is sent: it may stop to receive, but not leave out anything.
    is_ending: bool,
    /// Position of the first one that did not come after that.
    stopped: Option<u64>,
}

#[derive(Debug)]
struct Session {
    pid: i32,
    /// Everything before this position has been dealt with.
    cursor: u64,
    starts: Vec<Start>,
    periods: BTreeMap<Channel, Period>,
    /// The channels that the next LISTENs share.
    shares: Vec<Channel>,
    /// Stays until all others have gone.
    stays: bool,
    /// Shares with those on the standby.
    on_standby: bool,
    /// Last transaction and index received from each session of each writer.
    last_sent: HashMap<(u32, i32), (u32, u32)>,
    /// Notifications without rows that are not yet accounted for.
    rowless: HashSet<Key>,
    /// Fences on their way.
    fences: HashMap<Key, Moment>,
    /// When the last fence that arrived was sent.
    fenced: Moment,
    recent: VecDeque<Sent>,
}

/// Something wrong, at a position of the decoded stream if it has to do with that.
struct Problem {
    what: Mismatch,
    position: Option<u64>,
}

impl From<Mismatch> for Problem {
    fn from(what: Mismatch) -> Self {
        Self {
            what,
            position: None,
        }
    }
}

/// What is to be told of a notification that was received.
#[derive(Debug, Clone, Copy, Default)]
struct Arrival {
    /// Its position, on a channel that the listener shares.
    given: Option<u64>,
    is_late: bool,
}

#[derive(Debug)]
pub struct ListenerCheck {
    listener: u32,
    pending: VecDeque<Event>,
    session: Option<Session>,
    /// Positions of what was received on shared channels since the last look at them,
    /// on the primary.
    given: Vec<u64>,
    /// The session that was to stay, and has gone right after a fence.
    stayed: Option<Session>,
}

impl ListenerCheck {
    pub fn new(listener: u32) -> Self {
        Self {
            listener,
            pending: VecDeque::new(),
            session: None,
            given: Vec::new(),
            stayed: None,
        }
    }

    pub fn add(&mut self, event: Event) {
        self.pending.push_back(event);
    }

    /// The oldest position that is still needed.
    pub fn oldest_position(&self) -> Option<u64> {
        self.session.as_ref().map(|session| session.cursor)
    }

    /// Since when transactions without rows are still needed.
    pub fn oldest_time(&self) -> Option<Moment> {
        self.session.as_ref().map(|session| session.fenced)
    }

    /// What was received on shared channels of the primary since this was asked last.
    pub fn take_given(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.given)
    }

    /// Whether this listener shares the channel of an entry, has done so since before it
    /// committed, and stays for it: then some listener must get it.
    pub fn stays_for(&self, position: u64, entry: &Entry) -> bool {
        let stays = |session: &Session| {
            let period = session.periods.get(&entry.sent.channel);
            session.stays
                && period.is_some_and(|period| {
                    period.is_shared && session.starts[period.start].covers(entry)
                })
        };
        match (&self.session, &self.stayed) {
            (Some(session), _) => stays(session),
            (None, Some(stayed)) => position < stayed.cursor && stays(stayed),
            (None, None) => false,
        }
    }

    /// Up to which position everything must have been received, by the last listener
    /// that was there.
    pub fn stayed_until(&self) -> Option<u64> {
        self.stayed.as_ref().map(|session| session.cursor)
    }

    /// Goes through all events so far. All that was received must be in
    /// `history` by now, if it is to be at all.
    pub fn check(
        &mut self,
        history: &History,
        plans: &impl Plans,
        counts: &mut Counts,
    ) -> Result<(), Box<Difference>> {
        if let Some(session) = &mut self.session {
            for period in session.periods.values_mut() {
                period.given = period.given.split_off(&history.base());
            }
        }
        while let Some(event) = self.pending.pop_front() {
            let received = match &event {
                Event::Received(received) => Some(*received),
                _ => None,
            };
            if let Err(problem) = self.handle(event, history, plans, counts) {
                return Err(self.difference(problem, received, history, plans));
            }
        }
        Ok(())
    }

    fn handle(
        &mut self,
        event: Event,
        history: &History,
        plans: &impl Plans,
        counts: &mut Counts,
    ) -> Result<(), Problem> {
        if let Event::Connected { pid, at } = event {
            self.session = Some(Session::new(pid, at, history.base()));
            return Ok(());
        }
        // A record that was shrunk may lack the connection.
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        match event {
            Event::Connected { .. } => {}
            Event::Listen {
                channels,
                returned,
                introduction,
            } => session.listen(channels, Start::new(returned, introduction, history)),
            Event::Shares {
                channels,
                stays,
                on_standby,
            } => {
                session.shares = channels;
                session.stays = stays;
                session.on_standby = on_standby;
            }
            Event::Unlistening(channels) => {
                for channel in &channels {
                    if let Some(period) = session.periods.get_mut(channel) {
                        period.is_ending = true;
                        counts.complete_intervals += 1;
                    }
                }
            }
            Event::Unlistened(channels) => {
                for channel in &channels {
                    session.periods.remove(channel);
                }
            }
            Event::FenceSent { key, at } => {
                session.fences.insert(key, at);
            }
            Event::Received(received) => {
                counts.notifications += 1;
                let arrival = session.receive(received, history, plans)?;
                session.remember(received);
                if let Some(position) = arrival.given
                    && !session.on_standby
                {
                    counts.given += 1;
                    counts.given_late += u64::from(arrival.is_late);
                    self.given.push(position);
                }
            }
            Event::Garbled { channel, payload } => {
                return Err(Mismatch::Garbled { channel, payload }.into());
            }
            Event::Early(key) => return Err(Mismatch::Early(key).into()),
            Event::InTransaction(key) => return Err(Mismatch::InTransaction(key).into()),
            Event::Closed { is_complete } => {
                let running = session.periods.values().filter(|p| !p.is_ending).count() as u64;
                if is_complete {
                    counts.complete_intervals += running;
                } else {
                    counts.cut_intervals += running;
                }
                let session = self.session.take();
                self.stayed = session.filter(|session| session.stays && is_complete);
            }
        }
        Ok(())
    }

    fn difference(
        &self,
        problem: Problem,
        received: Option<Sent>,
        history: &History,
        plans: &impl Plans,
    ) -> Box<Difference> {
        let missing = problem.what.missing();
        let mut difference = Difference::new(problem.what, plans);
        difference.is_late = missing.is_some_and(|key| self.is_still_to_come(key));
        difference.witness = self.session.as_ref().map(|session| Witness {
            listener: self.listener,
            pid: session.pid,
            channels: session.periods.keys().copied().collect(),
            expected: session.expected_around(problem.position, history),
            received: self.received_around(session, received, history),
        });
        difference
    }

    /// Whether it has arrived since.
    fn is_still_to_come(&self, key: Key) -> bool {
        let mut later = self.pending.iter();
        later.any(|event| matches!(event, Event::Received(received) if received.key == key))
    }

    fn received_around(
        &self,
        session: &Session,
        received: Option<Sent>,
        history: &History,
    ) -> Vec<Line> {
        let later = self.pending.iter().filter_map(|event| match event {
            Event::Received(received) => Some(*received),
            _ => None,
        });
        let line = |received: Sent, is_marked| {
            let position = history.position_of(received.key);
            Line {
                lsn: position.and_then(|position| Some(history.get(position)?.lsn)),
                sent: received,
                is_marked,
            }
        };
        let before = session.recent.iter().map(|&r| line(r, false));
        let here = received.map(|r| line(r, true));
        let after = later.take(CONTEXT).map(|r| line(r, false));
        before.chain(here).chain(after).collect()
    }
}

/// The channel, payload and PID must be those of the entry at this position.
fn ensure_as_sent(received: Sent, position: u64, history: &History) -> Result<(), Problem> {
    let what = match history.get(position) {
        None => Mismatch::NotCommitted(received.key),
        Some(&Entry { sent, .. }) if sent != received => Mismatch::Altered { sent, received },
        Some(_) => return Ok(()),
    };
    Err(Problem {
        what,
        position: Some(position),
    })
}

impl Start {
    fn new(
        returned: Option<Returned>,
        introduction: Option<Introduction>,
        history: &History,
    ) -> Self {
        let committed = introduction.and_then(|introduction| history.introduced(introduction));
        Self {
            returned,
            introduction,
            promised: committed.or(returned.map(|returned| returned.lsn)),
            first: None,
        }
    }

    /// Would leaving out this entry be wrong, if its channel stays? Then LISTEN took effect
    /// before it committed, as something before it has arrived, or had to.
    fn covers(&self, entry: &Entry) -> bool {
        self.first.is_some() || self.promised.is_some_and(|lsn| entry.lsn > lsn)
    }

    /// The same for the notifications of a transaction that committed.
    fn covers_rowless(&self, transaction: &Outcome) -> bool {
        let had_seen = |introduction| {
            let mut seen = transaction.seen.iter();
            seen.any(|seen| seen.implies(introduction))
        };
        self.returned
            .is_some_and(|returned| returned.at < transaction.started)
            || self.introduction.is_some_and(had_seen)
    }
}

impl Session {
    fn new(pid: i32, at: Moment, cursor: u64) -> Self {
        Self {
            pid,
            cursor,
            starts: Vec::new(),
            periods: BTreeMap::new(),
            shares: Vec::new(),
            stays: false,
            on_standby: false,
            last_sent: HashMap::new(),
            rowless: HashSet::new(),
            fences: HashMap::new(),
            fenced: at,
            recent: VecDeque::new(),
        }
    }

    fn listen(&mut self, channels: Vec<Channel>, begun: Start) {
        let start = self.starts.len();
        self.starts.push(begun);
        for channel in channels {
            let period = Period {
                start,
                is_shared: self.shares.contains(&channel),
                given: BTreeSet::new(),
                is_ending: false,
                stopped: None,
            };
            self.periods.insert(channel, period);
        }
    }

    fn remember(&mut self, received: Sent) {
        if self.recent.len() == CONTEXT {
            self.recent.pop_front();
        }
        self.recent.push_back(received);
    }

    fn receive(
        &mut self,
        received: Sent,
        history: &History,
        plans: &impl Plans,
    ) -> Result<Arrival, Problem> {
        let Sent { key, channel, .. } = received;
        let Some(period) = self.periods.get_mut(&channel) else {
            return Err(Mismatch::NotListening { key, channel }.into());
        };
        let is_shared = period.is_shared;
        let mut arrival = Arrival::default();
        if key.has_row {
            arrival.given = history.position_of(key).filter(|_| is_shared);
            arrival.is_late = arrival.given.is_some_and(|position| position < self.cursor);
            if let Some(position) = arrival.given
                && !period.given.insert(position)
            {
                return Err(Mismatch::Repeated(key).into());
            }
            if let Some(position) = arrival.given
                && arrival.is_late
            {
                ensure_as_sent(received, position, history)?;
            } else {
                self.match_next(received, history)?;
            }
        } else {
            self.match_rowless(received, history, plans)?;
        }

        let sender = (key.transaction.writer, received.pid);
        let sent = (key.transaction.number, key.index);
        let last = self.last_sent.get(&sender).copied();
        match last {
            // Handed on.
            Some(last) if last >= sent && is_shared => {}
            Some(last) if last == sent => return Err(Mismatch::Repeated(key).into()),
            Some(last) if last > sent => return Err(Mismatch::LateInSession(key).into()),
            _ => {
                self.last_sent.insert(sender, sent);
            }
        }

        if let Some(sent) = self.fences.remove(&key) {
            self.account_for_rowless(sent, history)?;
        }
        Ok(arrival)
    }

    /// The LISTEN on this channel that holds now.
    fn start_on(&self, channel: Channel) -> Option<&Start> {
        let period = self.periods.get(&channel)?;
        Some(&self.starts[period.start])
    }

    /// Finds the next entry that must be there, which is this one or else.
    fn match_next(&mut self, received: Sent, history: &History) -> Result<(), Problem> {
        let Sent { key, channel, .. } = received;
        let mut position = self.cursor;
        loop {
            let Some(entry) = history.get(position) else {
                return Err(self.explain(key, None, history));
            };
            let due = entry.sent.channel;
            if entry.sent.key == key {
                break;
            }
            if self.start_on(due).is_some_and(|start| start.covers(entry))
                && let Some(period) = self.periods.get_mut(&due)
                && !period.is_shared
            {
                if !period.is_ending {
                    return Err(self.explain(key, Some(position), history));
                }
                period.stopped.get_or_insert(position);
            }
            position += 1;
        }
        ensure_as_sent(received, position, history)?;

        let period = &self.periods[&channel];
        if let Some(stopped) = period.stopped {
            return Err(self.explain(key, Some(stopped), history));
        }
        // What is handed on may be older than the LISTEN.
        if !period.is_shared {
            let start = period.start;
            self.starts[start].first.get_or_insert(position);
        }
        self.cursor = position + 1;
        Ok(())
    }

    /// Why `key` is not what had to come next. `due` is the position of what had
    /// to come, if that is known.
    fn explain(&self, key: Key, due: Option<u64>, history: &History) -> Problem {
        let true_position = history.position_of(key);
        let what = match true_position {
            None => Mismatch::NotCommitted(key),
            Some(position) if position < self.cursor => {
                let was_received = history.get(position).is_some_and(|entry| {
                    self.start_on(entry.sent.channel)
                        .and_then(|start| start.first)
                        .is_some_and(|first| first <= position)
                });
                if was_received {
                    Mismatch::Repeated(key)
                } else {
                    Mismatch::Late(key)
                }
            }
            Some(_) => {
                let due = due.and_then(|position| history.get(position));
                Mismatch::Missing {
                    key: due.map_or(key, |entry| entry.sent.key),
                    received: key,
                }
            }
        };
        Problem {
            position: match what {
                // What is wrong is that it did not come then.
                Mismatch::Late(_) | Mismatch::Repeated(_) => true_position,
                _ => due,
            },
            what,
        }
    }

    fn match_rowless(
        &mut self,
        received: Sent,
        history: &History,
        plans: &impl Plans,
    ) -> Result<(), Mismatch> {
        let key = received.key;
        let planned = plans
            .planned(key.transaction)
            .filter(|planned| !planned.has_rows)
            .ok_or(Mismatch::NotSent(key))?;
        let notification = planned
            .notifications
            .iter()
            .find(|notification| notification.index == key.index)
            .ok_or(Mismatch::NotSent(key))?;
        if !planned.commits {
            return Err(Mismatch::NotCommitted(key));
        }
        let pid = history.pid_of(key.transaction);
        let sent = Sent {
            key,
            channel: notification.channel,
            length: notification.length,
            pid: pid.ok_or(Mismatch::NotSent(key))?,
        };
        if sent != received {
            return Err(Mismatch::Altered { sent, received });
        }
        self.rowless.insert(key);
        Ok(())
    }

    /// A fence has arrived that was sent at `sent`.
    fn account_for_rowless(&mut self, sent: Moment, history: &History) -> Result<(), Mismatch> {
        for transaction in history.rowless_finished(self.fenced, sent) {
            for notification in &transaction.notifications {
                let key = Key {
                    transaction: transaction.id,
                    index: notification.index,
                    has_row: false,
                };
                let is_here = self.rowless.remove(&key);
                let is_shared = |channel| {
                    let period = self.periods.get(channel);
                    period.is_some_and(|period| period.is_shared)
                };
                let must_be_here = transaction.fate == Fate::Committed
                    && !is_shared(&notification.channel)
                    && self
                        .start_on(notification.channel)
                        .is_some_and(|start| start.covers_rowless(transaction));
                if must_be_here && !is_here {
                    return Err(Mismatch::MissingBeforeFence(key));
                }
                if is_here && transaction.fate == Fate::RolledBack {
                    return Err(Mismatch::NotCommitted(key));
                }
            }
        }
        self.fenced = self.fenced.max(sent);
        Ok(())
    }

    fn expected_around(&self, position: Option<u64>, history: &History) -> Vec<Line> {
        let here = position.unwrap_or(self.cursor);
        let line = |position: u64| {
            let entry = history.get(position)?;
            let is_heard = self.periods.contains_key(&entry.sent.channel);
            is_heard.then_some(Line {
                lsn: Some(entry.lsn),
                sent: entry.sent,
                is_marked: position == here,
            })
        };
        let mut lines: Vec<Line> = (history.base()..here)
            .rev()
            .filter_map(line)
            .take(CONTEXT)
            .collect();
        lines.reverse();
        lines.extend((here..history.end()).filter_map(line).take(CONTEXT + 1));
        lines
    }
}
