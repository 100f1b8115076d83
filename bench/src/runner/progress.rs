//! Progress on standard error. Nothing is shown where that is no terminal.

use std::fmt;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressFinish, ProgressState, ProgressStyle};

/// Seldom, since drawing takes time from what is measured.
const TICK: Duration = Duration::from_millis(250);

/// A progress bar, which goes away when this is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// For so many steps.
    pub fn new(steps: u64) -> Self {
        let style = ProgressStyle::with_template("{spinner} {wide_msg} {bar:20} {percent}%{left}")
            .expect("the template is valid")
            .with_key("left", time_left);
        let bar = ProgressBar::new(steps)
            .with_style(style)
            .with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Says what is being done now.
    pub fn announce(&self, what: String) {
        self.0.set_message(what);
    }

    /// Some more steps are done.
    pub fn advance(&self, steps: u64) {
        self.0.inc(steps);
    }

    /// Takes the bar away while something is printed.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

/// Nothing can be said before something is done.
fn time_left(state: &ProgressState, out: &mut dyn fmt::Write) {
    if state.pos() > 0 {
        // There is nowhere to report that drawing failed.
        let _ = write!(out, " (about {:#} left)", HumanDuration(state.eta()));
    }
}
