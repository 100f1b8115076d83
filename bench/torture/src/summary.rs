//! What a run that passed has done.

use std::fmt;
use std::time::Duration;

use crate::checker::listener_check::Counts;
use crate::sessions::tally::Tally;

/// What went through the queue of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batches {
    pub published: i64,
    /// By another session than the sender: these were held back for a while.
    pub published_by_others: i64,
    /// The most that was seen to be held back at one time.
    pub max_held_back: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub duration: Duration,
    pub counts: Counts,
    pub tally: Tally,
    /// Where there is an engine.
    pub batches: Option<Batches>,
    pub has_position_clients: bool,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            duration,
            counts,
            tally,
            batches,
            has_position_clients,
        } = self;
        let seconds = duration.as_secs_f64();
        let per_second = |count: u64| count as f64 / seconds;
        writeln!(
            f,
            "transactions    {} committed ({:.0} per second), {} rolled back, \
             {} without an answer ({} of them with rows had committed)",
            counts.committed,
            per_second(counts.committed),
            counts.rolled_back,
            counts.unanswered,
            counts.unanswered_committed
        )?;
        writeln!(
            f,
            "disturbances    {} cancelled and {} terminated ({} of these behind their commit \
             record), {} abandoned; {} listeners terminated",
            tally.cancelled,
            tally.terminated,
            tally.interrupted_in_commit,
            tally.abandoned,
            tally.terminated_listeners
        )?;
        let errors: Vec<String> = tally
            .errors
            .iter()
            .map(|(code, count)| format!("{count} times {code}"))
            .collect();
        writeln!(
            f,
            "errors          {} ({} serializable transactions failed in COMMIT itself)",
            if errors.is_empty() {
                "none".to_owned()
            } else {
                errors.join(", ")
            },
            tally.failed_in_last_moment
        )?;
        writeln!(
            f,
            "notifications   {} received and checked ({:.0} per second), {} rows looked for",
            counts.notifications,
            per_second(counts.notifications),
            tally.rows_seen
        )?;
        writeln!(
            f,
            "intervals       {} from LISTEN to the last fence, {} cut short",
            counts.complete_intervals, counts.cut_intervals
        )?;
        if counts.to_give > 0 {
            writeln!(
                f,
                "shared          {} given to {:.1} listeners each, {} late",
                counts.to_give,
                counts.given as f64 / counts.to_give as f64,
                counts.given_late
            )?;
        }
        if tally.pauses + tally.restarts + tally.promoted_listeners > 0 {
            writeln!(
                f,
                "standby         {} times paused, {} restarted; {} listeners stayed through its \
                 promotion",
                tally.pauses, tally.restarts, tally.promoted_listeners
            )?;
        }
        if tally.watched_changes > 0 {
            writeln!(
                f,
                "watched tables  {} transactions changed one; COMMIT PREPARED cancelled {} times, \
                 terminated {} times",
                tally.watched_changes, tally.cancelled_prepared, tally.terminated_prepared
            )?;
        }
        if tally.stopped_waker > 0 {
            writeln!(
                f,
                "waker           stopped {} times, {} of them possibly with a lock",
                tally.stopped_waker, tally.stopped_with_lock
            )?;
        }
        if tally.switches > 0 {
            writeln!(
                f,
                "switching       {} times off and on; {} units of work not replicated, {} \
                 heartbeats forged",
                tally.switches, tally.unreplicated, tally.forged
            )?;
        }
        if *has_position_clients {
            writeln!(
                f,
                "positions       {} questions: {} channels had changed, {} had not ({} of these \
                 since a heartbeat, {} on a standby); {} heartbeats, {} connections cut",
                counts.questions,
                counts.changed,
                counts.unchanged,
                counts.unchanged_since_heartbeat,
                counts.unchanged_on_standby,
                tally.heartbeats,
                tally.cut_clients
            )?;
            if counts.unchanged == 0 {
                writeln!(
                    f,
                    "WARNING         every answer named all channels, so none was checked"
                )?;
            }
        } else if batches.is_none() {
            writeln!(
                f,
                "positions       not checked, as the server has no pg_pinpoint"
            )?;
        }
        if let Some(batches) = batches {
            writeln!(
                f,
                "batches         {} published, {} of them ({:.0} %) by another session than \
                 their sender; at most {} seen held back at a time",
                batches.published,
                batches.published_by_others,
                100.0 * batches.published_by_others as f64 / batches.published.max(1) as f64,
                batches.max_held_back
            )?;
        }
        Ok(())
    }
}
