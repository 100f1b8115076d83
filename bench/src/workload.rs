//! What is done to a server to measure it: the description of a benchmark, and the
//! code that carries it out.
//!
//! A benchmark is data: a setup, and at each point a workload, which says which idle
//! sessions there are and what the other sessions do. There are five activities.
//! Everything else that benchmarks differ by is a number, an SQL statement or a script.
//!
//! ```text
//! Benchmark ──► Workload ──► IdleSessions
//!                  └───────► Activity: RoundTrips, Commits, Load, Decoding, Counting
//! ```

pub mod callgrind;
pub mod commits;
pub mod counting;
pub mod decoding;
mod idle;
pub mod listeners;
pub mod load;
mod load_figures;
pub mod probe;
pub mod round_trips;
mod row_visibility;
pub mod standby;
pub mod transaction;

use std::path::Path;
use std::time::Duration;

use pinpoint_servers::connection::within;
use pinpoint_servers::server::Server;
use pinpoint_servers::target::{Setting, Target};

use self::commits::Commits;
use self::counting::Counting;
use self::decoding::{Decoder, Decoding};
use self::idle::ConnectedIdleSessions;
pub use self::idle::IdleSessions;
use self::load::{Load, Place};
use self::round_trips::RoundTrips;
use self::standby::Standby;
use crate::clients::session::Sessions;
use crate::report::results::{Axis, Figure, Values};

/// A place on the axis of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointId {
    /// Empty where only one workload is measured.
    pub workload: String,
    pub x: u32,
}

/// All that there is to know of a benchmark before it begins.
#[derive(Debug, Clone)]
pub struct Benchmark {
    pub name: &'static str,
    /// The question it answers, one sentence.
    pub question: &'static str,
    /// How it measures: paragraphs of plain text.
    pub method: Vec<String>,
    pub axis: Axis,
    /// The figures to report, the main one first.
    pub figures: Vec<Figure>,
    /// In the order in which they are measured.
    pub points: Vec<(PointId, Workload)>,
    /// Statements that are executed once on each server.
    pub setup: Vec<String>,
    pub has_standby: bool,
    /// Programs of PostgreSQL that it starts ("pgbench"). They are looked for before
    /// anything starts.
    pub programs: Vec<&'static str>,
    /// Settings that it needs; those of a target come after them.
    pub settings: Vec<Setting>,
    /// The servers to measure if the command line names none. The first one is the
    /// baseline.
    pub default_targets: fn(&Path) -> Vec<Target>,
    /// Why a running server (`--url`) cannot be measured, if it cannot.
    pub needs_own_cluster: Option<&'static str>,
    /// The program that runs the servers, and its arguments; empty for none.
    pub wrapper: &'static [&'static str],
    /// Why a target cannot be measured, if it cannot, and the remedy.
    pub objection: fn(&Target) -> Option<&'static str>,
    /// There is a warning if a listener reads for longer than this after a load.
    pub backlog_limit: Option<Duration>,
}

impl Benchmark {
    /// A benchmark that needs nothing special, without points.
    pub fn new(name: &'static str, question: &'static str, axis: Axis) -> Self {
        Self {
            name,
            question,
            method: Vec::new(),
            axis,
            figures: Vec::new(),
            points: Vec::new(),
            setup: Vec::new(),
            has_standby: false,
            programs: Vec::new(),
            settings: Vec::new(),
            default_targets: |pg_config| {
                vec![Target::stock(pg_config), Target::pinpoint(pg_config)]
            },
            needs_own_cluster: None,
            wrapper: &[],
            objection: |_| None,
            backlog_limit: None,
        }
    }

    /// Sessions that one server must admit at a time.
    pub fn sessions(&self) -> u32 {
        let sessions = self.points.iter().map(|(_, workload)| workload.sessions());
        sessions.max().unwrap_or(0)
    }
}

/// What is done on a server at a point.
#[derive(Debug, Clone)]
pub struct Workload {
    pub idle: IdleSessions,
    pub activity: Activity,
}

/// What the sessions do that are not idle.
#[derive(Debug, Clone)]
pub enum Activity {
    RoundTrips(RoundTrips),
    Commits(Commits),
    Load(Load),
    Decoding(Decoding),
    Counting(Counting),
}

impl From<Activity> for Workload {
    /// Without idle sessions.
    fn from(activity: Activity) -> Self {
        Self {
            idle: IdleSessions::default(),
            activity,
        }
    }
}

impl Workload {
    /// With the session that counts all others.
    fn sessions(&self) -> u32 {
        let active = match &self.activity {
            Activity::RoundTrips(round_trips) => round_trips.sessions(),
            Activity::Commits(commits) => commits.sessions(),
            Activity::Load(load) => load.sessions(),
            Activity::Decoding(_) => decoding::SESSIONS,
            Activity::Counting(_) => counting::SESSIONS,
        };
        1 + self.idle.sessions + active
    }
}

/// What is kept of a server between the runs of a benchmark.
#[derive(Debug)]
pub struct Measurement {
    idle: ConnectedIdleSessions,
    standby: Option<Standby>,
    decoder: Option<Decoder>,
    timeout: Duration,
}

impl Measurement {
    /// Makes what all points need. Nothing may take longer than `timeout`.
    pub async fn set_up(
        benchmark: &Benchmark,
        server: &Server,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        load::execute(server, &benchmark.setup, timeout).await?;
        let mut standby = None;
        if benchmark.has_standby {
            standby = Some(Standby::start(server).await?);
        }
        let decodes =
            |(_, workload): &(_, Workload)| matches!(workload.activity, Activity::Decoding(_));
        let mut decoder = None;
        if benchmark.points.iter().any(decodes) {
            decoder = Some(Decoder::start(server).await?);
        }
        Ok(Self {
            idle: ConnectedIdleSessions::default(),
            standby,
            decoder,
            timeout,
        })
    }

    /// Makes what all runs with a workload need.
    pub async fn prepare(&mut self, server: &Server, workload: &Workload) -> anyhow::Result<()> {
        self.idle
            .adjust(server, &workload.idle, self.timeout)
            .await?;
        if let (Activity::Decoding(decoding), Some(decoder)) =
            (&workload.activity, &mut self.decoder)
        {
            decoder.prepare(server, decoding).await?;
        }
        Ok(())
    }

    /// One run, which counts from 1, its own warm-up included. All sessions but the idle
    /// ones are new in each run: where the system puts a process is part of the noise.
    pub async fn measure(
        &mut self,
        server: &Server,
        workload: &Workload,
        run: u32,
    ) -> anyhow::Result<Values> {
        let sessions = Sessions::of(server).await?;
        let timeout = self.timeout;
        let values = match &workload.activity {
            Activity::RoundTrips(round_trips) => round_trips.run(server, timeout).await?,
            Activity::Commits(commits) => commits.run(server, timeout).await?,
            Activity::Load(load) => {
                let place = Place {
                    server,
                    standby: self.standby.as_ref(),
                    sessions: &sessions,
                    timeout,
                };
                match (load.run(place, run).await, &mut self.standby) {
                    (Err(error), Some(standby)) => return Err(standby.explain(error).await),
                    (result, _) => result?,
                }
            }
            Activity::Decoding(decoding) => match &self.decoder {
                Some(decoder) => decoder.run(server, decoding, run).await?,
                None => Values::new(),
            },
            Activity::Counting(counting) => counting.run(server, timeout).await?,
        };
        let gone = sessions.wait_for_others_to_go();
        within(timeout, "the end of all sessions", gone).await??;
        self.idle.check()?;
        Ok(values)
    }
}
