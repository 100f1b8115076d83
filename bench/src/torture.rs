//! The torture: does every listener receive exactly what was committed on its
//! channels, in commit order?
//!
//! Many writers insert rows and notify of them, in all the ways there are, and
//! are cancelled, terminated and abandoned in mid-commit. Many listeners come
//! and go. The oracle is PostgreSQL itself: with each notification goes a row,
//! in the same (sub)transaction, and logical decoding tells which of them
//! committed, and in which order.
//!
//! ```text
//! workload ──► script ──► writers ─────────┐ outcomes
//!                                          ▼
//! schema ───► replication ──► oracle ──► checker ──► difference
//!                                          ▲
//!             listeners ──► listening ─────┘ events, by an observer each
//! ```

mod args;
mod checker;
#[cfg(test)]
mod checker_tests;
mod difference;
mod disturbance;
mod finding;
mod history;
mod identity;
mod listeners;
mod listening;
mod observer;
mod oracle;
mod planner;
mod replication;
mod run;
mod schema;
mod script;
mod shared;
mod summary;
mod workload;
mod writers;

use std::time::Duration;

use thiserror::Error;

pub use self::args::TortureArgs;
pub use self::finding::Finding;
use self::identity::FENCE_BASE;
pub use self::run::{MORE_SESSIONS, run};
use crate::target::{Setting, SettingError, Target};

/// The library that faults can be planted in.
const ENGINE: &str = "pg_pinpoint";

#[derive(Debug, Error)]
pub enum PlanError {
    #[error(
        "a fault can be planted in {ENGINE} only, and target \"{0}\" does not load that: \
         leave out --fault, or add preload={ENGINE}"
    )]
    NoEngine(String),
    #[error(transparent)]
    Setting(#[from] SettingError),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub duration: Duration,
    pub writers: u32,
    pub listeners: u32,
    pub channels: u32,
    /// A value of pinpoint.debug_fault.
    pub fault: Option<&'static str>,
    /// How long anything may take.
    pub timeout: Duration,
}

impl Plan {
    /// Sessions at a time.
    pub fn sessions(&self) -> u32 {
        self.writers + 2 * self.listeners + MORE_SESSIONS
    }

    /// Gives a target the settings that the torture needs, and those that make it
    /// harder. The target's own come after them.
    pub fn prepare(&self, mut target: Target) -> Result<Target, PlanError> {
        if self.fault.is_some() && !target.preload.iter().any(|name| name == ENGINE) {
            return Err(PlanError::NoEngine(target.name));
        }
        target.settings.splice(0..0, self.settings()?);
        Ok(target)
    }

    fn settings(&self) -> Result<Vec<Setting>, SettingError> {
        let mut settings = vec![
            "wal_level=logical",
            // The standby that decodes is slow at times, on purpose.
            "wal_sender_timeout=0",
            // Keep a commit that is written from being flushed, for a while.
            "commit_delay=1000",
            "commit_siblings=3",
            // Errors are part of the plan. What ends a server is logged all the same.
            "log_min_messages=log",
        ];
        let fault = self
            .fault
            .map(|fault| format!("pinpoint.debug_fault={fault}"));
        settings.extend(fault.as_deref());
        settings.into_iter().map(str::parse).collect()
    }
}
