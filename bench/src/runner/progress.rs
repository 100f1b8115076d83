//! Progress on standard error. Nothing is shown where that is no terminal.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressFinish, ProgressState, ProgressStyle};

/// Seldom, since drawing takes time from what is measured.
const TICK: Duration = Duration::from_millis(250);

/// A progress bar, which goes away when this is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Where the present part ends.
    part_end: Cell<u64>,
}

impl Progress {
    /// For what takes about as long as `time`.
    pub fn new(time: Duration) -> Self {
        let style =
            ProgressStyle::with_template("{spinner} {prefix}{wide_msg} {bar:20} {percent}%{left}")
                .expect("the template is valid")
                .with_key("left", time_left);
        let bar = ProgressBar::new(milliseconds(time))
            .with_style(style)
            .with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(TICK);
        Self {
            bar,
            part_end: Cell::new(0),
        }
    }

    /// The next part begins, which takes about as long as `time`. The one before
    /// is done, even if it took fewer steps than it was to.
    pub fn begin(&self, name: String, time: Duration) {
        self.bar.set_prefix(name);
        self.bar.set_position(self.part_end.get());
        self.part_end.set(self.part_end.get() + milliseconds(time));
    }

    /// Says what is being done now.
    pub fn announce(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Something is done that takes about as long as `time`.
    pub fn advance(&self, time: Duration) {
        self.bar.inc(milliseconds(time));
    }

    /// Takes the bar away while something is printed.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

/// About how long that is: `3 minutes`.
pub fn in_words(time: Duration) -> HumanDuration {
    HumanDuration(time)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Nothing can be said before something is done.
fn time_left(state: &ProgressState, out: &mut dyn fmt::Write) {
    if state.pos() > 0 {
        // There is nowhere to report that drawing failed.
        let _ = write!(out, " (about {:#} left)", HumanDuration(state.eta()));
    }
}
