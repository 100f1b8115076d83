//! The benchmark `standby`: how long a notification takes to a listener on a streaming
//! standby, and what it costs the sender that it travels there (`pinpoint.replicate`).
//!
//! ```text
//! pgbench ──┐              ┌──► reader, which reads all
//!           ├──► primary ──┴──► listener ────────────────────┐
//! probe ────┘       │ WAL                                    ├──► measure ──► results
//!                   └──► standby ──► listener, lookout ──────┘
//! ```
//!
//! Load, probe and listeners are those of `load`. The lookout asks for the row of a
//! probe again and again, until it is visible.

mod lookout;
mod measure;
mod pair;
mod results;

use std::path::Path;

use pinpoint_servers::cluster;
use pinpoint_servers::options::{Numbers, numbers};
use pinpoint_servers::server::Server;
use pinpoint_servers::target::Target;
use serde::Serialize;

use self::pair::Pair;
use crate::benchmarks::load::probe::ProbeArgs;
use crate::clients::pgbench::{self, MAX_CLIENTS};
use crate::report::results::{Axis, Scale, Values};
use crate::runner::benchmark::{Benchmark, Description, PointId};
use crate::runner::options::{CommonArgs, TimeArgs};

/// Those of the program beside the writers, on both servers: two that control, one that
/// looks at all others, the probe, three that listen, and the lookout.
const MORE_SESSIONS: u32 = 8;

/// How long a notification takes to a listener on a standby, and what that costs
///
/// Two servers that both have a streaming standby are compared: the same server with
/// pinpoint.replicate off and on. pgbench inserts rows and notifies, in so many
/// sessions. Meanwhile one more session does the same at fixed times: measured is when
/// its notification arrives at a listener on the primary and at one on the standby, and
/// when its row becomes visible on the standby, which is PostgreSQL's own time.
///
/// Example: pinpoint-bench standby --writers 0,16 --duration 10s
#[derive(Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub struct StandbyArgs {
    /// Numbers of other sessions that write and notify to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "0,4,16,64",
        value_parser = numbers(0..=MAX_CLIENTS),
    )]
    writers: Numbers,

    #[command(flatten)]
    #[serde(flatten)]
    probe: ProbeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    time: TimeArgs,

    #[command(flatten)]
    #[serde(flatten)]
    common: CommonArgs,
}

impl Benchmark for StandbyArgs {
    type State = Pair;

    fn describe(&self) -> anyhow::Result<Description> {
        Ok(Description {
            name: "standby",
            question: "How long does a notification take to a listener on a standby, and what \
                       does it cost the sender?",
            method: vec![
                "Each server has a streaming standby, on the same machine. Unless targets were \
                 named, the two differ by pinpoint.replicate alone: with it off nothing of a \
                 notification travels, and only the primary's listener hears of it."
                    .to_owned(),
                format!(
                    "pgbench inserts rows, each in a transaction of its own that notifies, {} s \
                     to get warm and {} s that are measured. A session on the primary reads these \
                     notifications, of which there must be one for each transaction; on the \
                     standby nobody listens to them. WAL is counted from the beginning of the \
                     load to its end, and divided by all transactions.",
                    self.time.warmup.as_secs_f64(),
                    self.time.duration.as_secs_f64()
                ),
                format!(
                    "Meanwhile one more session, the probe, sends the same transaction {} times \
                     per second, at fixed times, on a channel of its own. A session on the \
                     primary and, with pinpoint.replicate, one on the standby listen to it, and \
                     each must get every notification. From when the probe is sent until its row \
                     is there, another session on the standby asks for the row without a pause. \
                     All times are taken from when the transaction was due: a server that makes \
                     the probe wait is not excused.",
                    self.probe.probes
                ),
            ],
            axis: Axis::new("writers", "writers", Scale::Logarithmic),
            figures: results::figures(),
            points: self.writers.iter().map(PointId::at).collect(),
            run_time: self.time.warmup + self.time.duration,
            sessions: self.writers.last() + MORE_SESSIONS,
            programs: &[pgbench::PROGRAM, cluster::BASE_BACKUP],
            settings: Vec::new(),
            needs_own_cluster: Some("it makes a standby"),
        })
    }

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn default_targets(&self, pg_config: &Path) -> Vec<Target> {
        ["off", "on"]
            .map(|value| Target {
                name: format!("replicate-{value}"),
                settings: vec![pair::replicate(value)],
                ..Target::pinpoint(pg_config)
            })
            .into()
    }

    fn objection(&self, target: &Target) -> Option<(&'static str, &'static str)> {
        (!target.has_engine()).then_some((
            "without pg_pinpoint nobody can LISTEN on a standby",
            "add preload=pg_pinpoint,extension=pg_pinpoint to it",
        ))
    }

    async fn set_up(&self, server: &Server) -> anyhow::Result<Pair> {
        Pair::set_up(server).await
    }

    async fn measure(
        &self,
        server: &Server,
        pair: &mut Pair,
        point: &PointId,
        _run: u32,
    ) -> anyhow::Result<Values> {
        match measure::measure(self, server, pair, point.x).await {
            Ok(run) => Ok(results::values(&run)),
            Err(error) => Err(pair.explain(error).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Standby {
        #[command(flatten)]
        args: StandbyArgs,
    }

    fn parse(arguments: &[&str]) -> StandbyArgs {
        Standby::parse_from(["standby"].iter().chain(arguments)).args
    }

    #[test]
    fn the_default_targets_differ_by_the_setting_alone() {
        let targets = parse(&[]).default_targets(Path::new("pg_config"));
        let [off, on] = &targets[..] else {
            panic!("{targets:?}");
        };
        assert_eq!(
            (&off.name[..], &on.name[..]),
            ("replicate-off", "replicate-on")
        );
        assert_eq!(off.settings[0].to_string(), "pinpoint.replicate = 'off'");
        assert_eq!(on.settings[0].to_string(), "pinpoint.replicate = 'on'");
        let renamed = Target {
            name: on.name.clone(),
            settings: on.settings.clone(),
            ..off.clone()
        };
        assert_eq!(renamed, *on);
    }

    #[test]
    fn every_target_needs_the_library_and_the_extension() {
        let args = parse(&[]);
        for (target, is_refused) in [
            ("a=pg_config", true),
            ("a=pg_config,preload=pg_pinpoint", true),
            (
                "a=pg_config,preload=pg_pinpoint,extension=pg_pinpoint",
                false,
            ),
        ] {
            let target: Target = target.parse().unwrap();
            assert_eq!(args.objection(&target).is_some(), is_refused, "{target:?}");
        }
    }

    #[test]
    fn nobody_else_need_write() {
        let description = parse(&["--writers=16,0"]).describe().unwrap();
        assert_eq!(description.points, [0, 16].map(PointId::at));
        assert_eq!(description.sessions, 16 + MORE_SESSIONS);
    }
}
