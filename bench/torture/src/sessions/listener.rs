//! What a listener does: comes and goes, listens and stops to listen, sits in
//! transactions, reads slowly or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand::seq::{IteratorRandom, SliceRandom};
use tokio_postgres::Client;

use crate::checker::finding::Finding;
use crate::checker::record::Event;
use crate::sessions::connection::{End, execute, is_accepted, within};
use crate::sessions::listener_session::{Listening, PROMOTED};
use crate::sessions::run_state::Shared;
use crate::sessions::schema::{insert_and_notify, introduce};
use crate::sessions::standby_state::Standby;
use crate::workload::identity::{
    Channel, FENCE_BASE, Introduction, Key, TransactionId, min_length,
};
use crate::workload::random_for;
use crate::workload::weighted_choice::choose;

/// Between two looks for the row of what has just arrived.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Sent for each listener on a standby while its replay waits for the promotion.
const LAST_NOTIFICATIONS: u32 = 20;

/// What a listener does next.
#[derive(Clone, Copy)]
enum Action {
    Read,
    ReadSlowly,
    Sleep,
    SitInTransaction,
    ListenOnMore,
    ListenAgain,
    ChangeNothing,
    Unlisten,
    Exchange,
    StartAnew,
    Fence,
    FallBehind,
    NotifyOneself,
}

/// How often a listener does each of them.
const ACTIONS: [(u32, Action); 13] = [
    (30, Action::Read),
    (10, Action::ReadSlowly),
    (8, Action::Sleep),
    (8, Action::SitInTransaction),
    (10, Action::ListenOnMore),
    (5, Action::ListenAgain),
    (4, Action::ChangeNothing),
    (8, Action::Unlisten),
    (5, Action::Exchange),
    (3, Action::StartAnew),
    (5, Action::Fence),
    (2, Action::FallBehind),
    (2, Action::NotifyOneself),
];

/// Listens until told to stop.
pub async fn run(shared: Arc<Shared>, listener: u32) -> Result<(), Finding> {
    // Before anything is waited for, as the standby must know of all listeners there.
    let standby = shared.standby_of(listener);
    let mut steps = standby.map(Standby::tokens).unwrap_or_default();
    let who = format!("companion of listener {listener}");
    let companion = shared.connect(&who).await?.client;
    // A fence need not wait for a standby that is being held back.
    let sql = "SET synchronous_commit = local";
    execute(&shared, &who, &companion, sql).await?;

    let mut next_number = 0;
    for number in 0.. {
        if shared.is_stopping() {
            break;
        }
        let session = Listening::connect(&shared, listener).await?;
        let mut visit = Visit {
            shared: &shared,
            listener,
            companion: &companion,
            rng: random_for(shared.workload.seed, 1 + listener, number),
            channels: BTreeSet::new(),
            looked: Instant::now(),
            next_number: &mut next_number,
            steps: &mut steps,
            session,
        };
        let result = if shared.stays(listener) {
            visit.stay().await
        } else {
            visit.run().await
        };
        match result {
            Ok(()) => visit.session.close(),
            Err(End::Lost) => visit.session.add(Event::Closed { is_complete: false }),
            Err(End::Finding(finding)) => return Err(finding),
        }
    }
    shared.add_gone();
    Ok(())
}

/// One session of a listener.
struct Visit<'a> {
    shared: &'a Arc<Shared>,
    listener: u32,
    /// The session that sends the fences.
    companion: &'a Client,
    rng: ChaCha8Rng,
    /// On which it listens, not counting that of its fences.
    channels: BTreeSet<Channel>,
    /// When it last looked for a row.
    looked: Instant,
    next_number: &'a mut u32,
    /// The steps towards the promotion of a standby that it has not taken yet.
    steps: &'a mut Vec<Arc<()>>,
    session: Listening,
}

impl Visit<'_> {
    async fn run(&mut self) -> Result<(), End> {
        self.begin().await?;
        for _ in 0..self.rng.random_range(5..=25) {
            if self.shared.is_stopping() {
                break;
            }
            self.act().await?;
        }
        let shared = Arc::clone(self.shared);
        match shared.standby_of(self.listener) {
            Some(standby) if shared.is_stopping() => self.see_promotion(standby).await?,
            _ => self.fence().await?,
        }
        self.leave().await
    }

    /// Before the session is closed: what it shares must not be sent to it and then not be
    /// read, as if it had been received.
    async fn leave(&mut self) -> Result<(), End> {
        if !self.shared.has_sharing {
            return Ok(());
        }
        if self.rng.random_ratio(1, 2) {
            return self.session.terminate().await;
        }
        let mut channels: Vec<Channel> = self.channels.iter().copied().collect();
        channels.push(Channel::of_fence(self.listener));
        self.change("UNLISTEN *", Vec::new(), channels, None).await
    }

    /// Shares all channels, until all other listeners have gone: whatever they were given
    /// and have not read comes to this one at last.
    async fn stay(&mut self) -> Result<(), End> {
        self.begin().await?;
        while !(self.shared.is_stopping() && self.shared.is_last()) {
            if self.rng.random_ratio(1, 8) {
                self.sit_in_transaction().await?;
            } else {
                let time = self.milliseconds(10, 400);
                self.read(time).await?;
            }
        }
        let deadline = Instant::now() + self.shared.timeout;
        let sql = "SELECT count(*)::text FROM pinpoint.stat_listeners";
        while self.session.query_value(sql).await? != "1" {
            if Instant::now() >= deadline {
                let what = "the sessions of the other listeners to end";
                let finding = Finding::hang(&self.session.who, what, self.shared.timeout);
                return Err(finding.into());
            }
            self.read(LOOK_INTERVAL).await?;
        }
        // What they have handed on comes before what is published now, or right after.
        self.fence().await?;
        self.fence().await
    }

    /// Stays while the standby is promoted, with notifications that are replayed only then.
    async fn see_promotion(&mut self, standby: &Standby) -> Result<(), End> {
        let deadline = Instant::now() + self.shared.timeout;
        self.steps.pop();
        self.read_until("replay to be paused", deadline, |_| standby.is_held())
            .await?;
        for _ in 0..LAST_NOTIFICATIONS {
            self.notify_oneself().await?;
        }
        let number = self.send_fence(deadline).await?;
        self.steps.pop();
        self.await_fence(number, deadline).await?;
        self.read_until("the promotion", deadline, |_| standby.is_promoted())
            .await?;
        let channel = Channel::of_fence(self.listener);
        let sql = format!("NOTIFY {channel}, '{PROMOTED}'");
        self.session.query(&sql).await?;
        let what = "its notification after the promotion";
        self.read_until(what, deadline, |session| session.has_seen_promotion)
            .await?;
        self.shared.tally().promoted_listeners += 1;
        Ok(())
    }

    /// Reads until something is the case.
    async fn read_until(
        &mut self,
        what: &str,
        deadline: Instant,
        is_there: impl Fn(&Listening) -> bool,
    ) -> Result<(), End> {
        while !is_there(&self.session) {
            if Instant::now() >= deadline {
                return Err(Finding::hang(&self.session.who, what, self.shared.timeout).into());
            }
            self.read(LOOK_INTERVAL).await?;
        }
        Ok(())
    }

    fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }

    async fn act(&mut self) -> Result<(), End> {
        match choose(&mut self.rng, &ACTIONS) {
            Action::Read => {
                let time = self.milliseconds(10, 400);
                self.read(time).await
            }
            Action::ReadSlowly => self.read_slowly().await,
            Action::Sleep => {
                let time = self.milliseconds(50, 1500);
                tokio::time::sleep(time).await;
                Ok(())
            }
            Action::SitInTransaction => self.sit_in_transaction().await,
            Action::ListenOnMore => self.listen_on_more().await,
            Action::ListenAgain => self.listen_again().await,
            Action::ChangeNothing => self.change_nothing().await,
            Action::Unlisten => self.unlisten().await,
            Action::Exchange => self.exchange().await,
            Action::StartAnew => self.start_anew().await,
            Action::Fence => self.fence().await,
            Action::FallBehind => self.fall_behind().await,
            Action::NotifyOneself => self.notify_oneself().await,
        }
    }

    // ---- Reading ----

    async fn read(&mut self, time: Duration) -> Result<(), End> {
        let deadline = Instant::now() + time;
        while let Some(key) = self.session.next(deadline).await? {
            if key.has_row && self.looked.elapsed() >= LOOK_INTERVAL {
                self.look_for_row(key).await?;
            }
        }
        Ok(())
    }

    /// Who is told of a row must be able to see it.
    async fn look_for_row(&mut self, key: Key) -> Result<(), End> {
        let TransactionId { writer, number } = key.transaction;
        let sql = format!(
            "SELECT count(*) FROM event \
             WHERE writer = {writer} AND transaction = {number} AND index = {}",
            key.index
        );
        if self.session.query_value(&sql).await? != "1" {
            self.session.add(Event::Early(key));
        }
        self.shared.tally().rows_seen += 1;
        self.looked = Instant::now();
        Ok(())
    }

    async fn read_slowly(&mut self) -> Result<(), End> {
        let deadline = Instant::now() + self.milliseconds(50, 400);
        while self.session.next(deadline).await?.is_some() {
            let pause = self.milliseconds(1, 3);
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Gets a large backlog, in a transaction or as a client that does not read. Then it reads
    /// all of it, or is terminated.
    async fn fall_behind(&mut self) -> Result<(), End> {
        let in_transaction = self.rng.random_ratio(1, 2);
        if in_transaction {
            self.session.query("BEGIN").await?;
        }
        let deadline = Instant::now() + self.milliseconds(2000, 8000);
        while Instant::now() < deadline && !self.shared.is_stopping() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        if self.rng.random_ratio(1, 2) {
            return self.session.terminate().await;
        }
        if in_transaction {
            self.session.query("COMMIT").await?;
        }
        Ok(())
    }

    // ---- Transactions ----

    /// BEGIN, SQL, some time, reading or not, and more SQL. Nothing may arrive
    /// meanwhile. The transaction is still open then.
    async fn hold_transaction(&mut self, sql: &[String]) -> Result<(), End> {
        self.session.query("BEGIN").await?;
        let count = self.session.count;
        for statement in sql {
            self.session.query(statement).await?;
            let time = self.milliseconds(0, 200);
            if self.rng.random_ratio(1, 2) {
                self.session.read_until(Instant::now() + time).await?;
            } else {
                tokio::time::sleep(time).await;
            }
        }
        if self.session.count > count
            && let Some(key) = self.session.last
        {
            self.session.add(Event::InTransaction(key));
        }
        Ok(())
    }

    async fn sit_in_transaction(&mut self) -> Result<(), End> {
        self.hold_transaction(&["SELECT 1".to_owned()]).await?;
        let end = if self.rng.random_ratio(1, 2) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        self.session.query(end).await?;
        Ok(())
    }

    // ---- LISTEN and UNLISTEN ----

    /// Starts to listen on the channel of the fences, and some others.
    async fn begin(&mut self) -> Result<(), End> {
        self.choose_shared().await?;
        let all = self.shared.workload.channels as usize;
        let fewest = if self.shared.stays(self.listener) {
            all
        } else {
            1
        };
        let mut channels = self.pick_others(fewest..=all);
        channels.push(Channel::of_fence(self.listener));
        channels.shuffle(&mut self.rng);
        self.listen(channels).await
    }

    /// Shares half of the channels from now on, where there is sharing.
    async fn choose_shared(&mut self) -> Result<(), End> {
        if !self.shared.has_sharing {
            return Ok(());
        }
        let stays = self.shared.stays(self.listener);
        let mut channels: Vec<Channel> = (0..self.shared.workload.channels).map(Channel).collect();
        channels.retain(|_| stays || self.rng.random_ratio(1, 2));
        let names: Vec<String> = channels.iter().map(Channel::to_string).collect();
        let limit = self.rng.random_range(1..=3);
        let sql = format!(
            "SET pinpoint.shared_channels = '{}'; SET pinpoint.share_limit = {limit}",
            names.join(", ")
        );
        self.session.query(&sql).await?;
        let on_standby = self.shared.standby_of(self.listener).is_some();
        self.session.add(Event::Shares {
            channels,
            stays,
            on_standby,
        });
        Ok(())
    }

    /// Some of those channels on which it does not listen.
    fn pick_others(&mut self, count: std::ops::RangeInclusive<usize>) -> Vec<Channel> {
        let count = self.rng.random_range(count);
        (0..self.shared.workload.channels)
            .map(Channel)
            .filter(|channel| !self.channels.contains(channel))
            .sample(&mut self.rng, count)
    }

    /// Some of those channels on which it does.
    fn pick_own(&mut self) -> Vec<Channel> {
        let count = self.rng.random_range(1..=3);
        self.channels.iter().copied().sample(&mut self.rng, count)
    }

    /// LISTENs take effect one by one, all at once, or at the end of a
    /// transaction that takes a while, in which the listener may introduce itself.
    async fn listen(&mut self, channels: Vec<Channel>) -> Result<(), End> {
        if channels.is_empty() {
            return Ok(());
        }
        let mut commands: Vec<String> = channels.iter().map(|c| format!("LISTEN {c}")).collect();
        match self.rng.random_range(0..3) {
            0 => {
                for (command, &channel) in commands.iter().zip(&channels) {
                    self.change(command, vec![channel], Vec::new(), None)
                        .await?;
                }
            }
            1 => {
                let introduction = self.introduction(&mut commands);
                self.change(&commands.join("; "), channels, Vec::new(), introduction)
                    .await?;
            }
            _ => {
                let introduction = self.introduction(&mut commands);
                self.hold_transaction(&commands).await?;
                self.change("COMMIT", channels, Vec::new(), introduction)
                    .await?;
            }
        }
        Ok(())
    }

    /// Two times out of three, adds to the commands of a transaction what
    /// introduces this listener to the writers.
    fn introduction(&mut self, commands: &mut Vec<String>) -> Option<Introduction> {
        let is_told = self.rng.random_ratio(2, 3);
        // A standby cannot write.
        if !is_told || self.shared.standby_of(self.listener).is_some() {
            return None;
        }
        let introduction = Introduction {
            listener: self.listener,
            number: self.take_number(),
        };
        commands.push(introduce(introduction));
        Some(introduction)
    }

    async fn change(
        &mut self,
        sql: &str,
        listen: Vec<Channel>,
        unlisten: Vec<Channel>,
        introduction: Option<Introduction>,
    ) -> Result<(), End> {
        for channel in &unlisten {
            self.channels.remove(channel);
        }
        let fence = Channel::of_fence(self.listener);
        self.channels
            .extend(listen.iter().filter(|&&channel| channel != fence));
        self.session
            .change(sql, listen, unlisten, introduction, self.companion)
            .await
    }

    async fn listen_on_more(&mut self) -> Result<(), End> {
        let channels = self.pick_others(1..=3);
        self.listen(channels).await
    }

    /// LISTEN on what it listens on already changes nothing, and neither does
    /// UNLISTEN with a LISTEN after it in the same transaction.
    async fn listen_again(&mut self) -> Result<(), End> {
        for channel in self.pick_own() {
            let sql = if self.rng.random_ratio(1, 2) {
                format!("LISTEN {channel}")
            } else {
                format!("UNLISTEN {channel}; LISTEN {channel}")
            };
            self.session.query(&sql).await?;
        }
        Ok(())
    }

    /// What is rolled back changes nothing.
    async fn change_nothing(&mut self) -> Result<(), End> {
        let mut commands: Vec<String> = self
            .pick_others(1..=2)
            .iter()
            .map(|channel| format!("LISTEN {channel}"))
            .collect();
        commands.extend(self.pick_own().iter().map(|c| format!("UNLISTEN {c}")));
        commands.shuffle(&mut self.rng);
        self.hold_transaction(&commands).await?;
        self.session.query("ROLLBACK").await?;
        Ok(())
    }

    async fn unlisten(&mut self) -> Result<(), End> {
        let channels = self.pick_own();
        if channels.is_empty() {
            return Ok(());
        }
        self.fence().await?;
        let commands: Vec<String> = channels.iter().map(|c| format!("UNLISTEN {c}")).collect();
        if self.rng.random_ratio(1, 2) {
            self.change(&commands.join("; "), Vec::new(), channels, None)
                .await
        } else {
            self.hold_transaction(&commands).await?;
            self.change("COMMIT", Vec::new(), channels, None).await
        }
    }

    /// UNLISTEN on some and LISTEN on others in one transaction.
    async fn exchange(&mut self) -> Result<(), End> {
        let old = self.pick_own();
        let new = self.pick_others(1..=3);
        self.fence().await?;
        let mut commands: Vec<String> = old.iter().map(|c| format!("UNLISTEN {c}")).collect();
        commands.extend(new.iter().map(|c| format!("LISTEN {c}")));
        commands.shuffle(&mut self.rng);
        let introduction = self.introduction(&mut commands);
        self.hold_transaction(&commands).await?;
        self.change("COMMIT", new, old, introduction).await
    }

    /// UNLISTEN on all, one way or the other, and begin again.
    async fn start_anew(&mut self) -> Result<(), End> {
        self.fence().await?;
        let mut channels: Vec<Channel> = self.channels.iter().copied().collect();
        channels.push(Channel::of_fence(self.listener));
        let sql = if self.rng.random_ratio(1, 2) {
            "UNLISTEN *"
        } else {
            "DISCARD ALL"
        };
        self.change(sql, Vec::new(), channels, None).await?;
        let time = self.milliseconds(0, 100);
        self.read(time).await?;
        self.begin().await
    }

    // ---- Sending ----

    fn take_number(&mut self) -> u32 {
        let number = *self.next_number;
        *self.next_number += 1;
        number
    }

    fn next_key(&mut self) -> Key {
        Key {
            transaction: TransactionId {
                writer: FENCE_BASE + self.listener,
                number: self.take_number(),
            },
            index: 0,
            has_row: true,
        }
    }

    /// Has another session send a notification, and waits for that.
    async fn fence(&mut self) -> Result<(), End> {
        let deadline = Instant::now() + self.shared.timeout;
        let number = self.send_fence(deadline).await?;
        self.await_fence(number, deadline).await
    }

    /// Has another session send a notification, and returns its number.
    async fn send_fence(&mut self, deadline: Instant) -> Result<u32, End> {
        let who = self.session.who.clone();
        loop {
            let key = self.next_key();
            let at = self.shared.now();
            self.session.add(Event::FenceSent { key, at });
            let sql = insert_and_notify(&values(key, Channel::of_fence(self.listener)));
            let answer = self.companion.simple_query(&sql);
            match within(self.shared, &who, "its fence to be sent", answer).await? {
                Ok(_) => {
                    let channel = Channel::of_fence(self.listener);
                    self.shared.add_sent(key, channel, at);
                    return Ok(key.transaction.number);
                }
                // The queue is full, possibly of what this listener has not read.
                Err(error) if is_accepted(&error) && Instant::now() < deadline => {
                    self.session
                        .read_until(Instant::now() + LOOK_INTERVAL)
                        .await?;
                }
                Err(error) => return Err(Finding::unexpected_error(&who, &sql, &error).into()),
            }
        }
    }

    async fn await_fence(&mut self, number: u32, deadline: Instant) -> Result<(), End> {
        while self.session.fence != Some(number) {
            if self.session.next(deadline).await?.is_none() {
                let what = format!("fence {number} to arrive (its PID is {})", self.session.pid);
                return Err(Finding::hang(&self.session.who, &what, self.shared.timeout).into());
            }
        }
        Ok(())
    }

    /// Sends a notification by this session itself. A standby cannot send.
    async fn notify_oneself(&mut self) -> Result<(), End> {
        let is_on_standby = self.shared.standby_of(self.listener).is_some();
        let key = self.next_key();
        let channel = Channel(self.rng.random_range(0..self.shared.workload.channels));
        let sql = insert_and_notify(&values(key, channel));
        let who = self.session.who.clone();
        let answer = if is_on_standby {
            within(self.shared, &who, &sql, self.companion.simple_query(&sql)).await?
        } else {
            self.session.try_query(&sql).await?
        };
        match answer {
            Err(error) if !is_accepted(&error) => {
                Err(Finding::unexpected_error(&who, &sql, &error).into())
            }
            _ => Ok(()),
        }
    }
}

/// For the columns of a row, up to the length.
fn values(key: Key, channel: Channel) -> String {
    let TransactionId { writer, number } = key.transaction;
    let length = min_length(key);
    format!("{writer}, {number}, {}, {}, {length}", key.index, channel.0)
}
