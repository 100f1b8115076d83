//! `--assert`: conditions that a measurement has to meet, such as
//! `pingpong.ratio@1000>=100`.

mod syntax;

use std::fmt;

use thiserror::Error;

use crate::benchmark::PointId;
use crate::number;
use crate::results::{Figure, Report, three_digits};

/// Why a condition cannot be one on this measurement.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("--assert '{condition}': {reason}")]
pub struct UnknownError {
    condition: String,
    reason: Reason,
}

/// What is named and not there, and what is there instead.
#[derive(Debug, Error, PartialEq, Eq)]
enum Reason {
    #[error("the benchmark is not \"{0}\" here, but {1}")]
    Benchmark(String, String),
    #[error("there is no workload \"{0}\": name one of {1}")]
    Workload(String, String),
    #[error("there is only one workload, so leave \"/{0}\" out")]
    OneWorkload(String),
    #[error("there are several workloads: name one of {0}, with a slash after the benchmark")]
    AnyWorkload(String),
    #[error("there is no figure \"{0}\": name one of {1}")]
    Figure(String, String),
    #[error("there is no target \"{0}\": name one of {1}")]
    Target(String, String),
    #[error("a ratio is to the first target, which is \"{0}\": name another one")]
    Baseline(String),
    #[error("there is only one target, so there is no ratio: look at the median")]
    OneTarget,
    #[error("{0} is not measured: name one of {1}")]
    Point(u64, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    AtLeast,
    AtMost,
    More,
    Less,
}

impl Operator {
    fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::AtLeast => value >= bound,
            Self::AtMost => value <= bound,
            Self::More => value > bound,
            Self::Less => value < bound,
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeast => ">=",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::Less => "<",
        })
    }
}

/// What is looked at of all runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Statistic {
    /// Of the medians, as a multiple of the first target's.
    Ratio,
    Median,
    Min,
    Max,
}

impl Statistic {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ratio" => Self::Ratio,
            "median" => Self::Median,
            "min" => Self::Min,
            "max" => Self::Max,
            _ => return None,
        })
    }
}

/// A condition. Displayed as it was written, without blanks.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// All that is before the operator.
    subject: String,
    benchmark: String,
    workload: Option<String>,
    /// The benchmark's first one, if there is none.
    figure: Option<String>,
    statistic: Statistic,
    /// The second one, or the only one, if there is none.
    target: Option<String>,
    x: u64,
    operator: Operator,
    bound: f64,
}

// A bound is a number, which is equal to itself.
impl Eq for Condition {}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.subject, self.operator, self.bound)
    }
}

/// What a measurement consists of; known before it begins.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    pub benchmark: &'a str,
    pub figures: &'a [Figure],
    pub points: &'a [PointId],
    /// Their names, the baseline first.
    pub targets: &'a [String],
}

impl Condition {
    pub fn benchmark(&self) -> &str {
        &self.benchmark
    }

    /// Finds out before a measurement whether the condition can be one on it.
    pub fn check(&self, scope: Scope) -> Result<(), UnknownError> {
        self.check_benchmark(&[scope.benchmark])?;
        self.check_names(scope.figures, scope.targets)
            .and_then(|()| self.check_point(scope.points))
            .map_err(|reason| self.unknown(reason))
    }

    /// The same after it. If it was stopped before its end, nobody knows which
    /// points it was to have.
    pub fn check_report(&self, report: &Report) -> Result<(), UnknownError> {
        self.check_benchmark(&[&report.benchmark])?;
        let names = report.targets.iter().map(|target| target.name.clone());
        let mut checked = self.check_names(&report.figures, &names.collect::<Vec<_>>());
        if report.complete {
            let points = report.points.iter();
            let points = points.map(|point| PointId::of_workload(&point.workload, point.x));
            checked = checked.and_then(|()| self.check_point(&points.collect::<Vec<_>>()));
        }
        checked.map_err(|reason| self.unknown(reason))
    }

    /// Is it about one of these?
    pub fn check_benchmark(&self, benchmarks: &[&str]) -> Result<(), UnknownError> {
        if benchmarks.contains(&self.benchmark.as_str()) {
            return Ok(());
        }
        let known = list(benchmarks.iter().copied());
        Err(self.unknown(Reason::Benchmark(self.benchmark.clone(), known)))
    }

    fn unknown(&self, reason: Reason) -> UnknownError {
        UnknownError {
            condition: self.to_string(),
            reason,
        }
    }

    fn check_names(&self, figures: &[Figure], targets: &[String]) -> Result<(), Reason> {
        let known = || figures.iter().map(|known| known.name.as_str());
        if let Some(figure) = &self.figure
            && !known().any(|known| known == figure)
        {
            return Err(Reason::Figure(figure.clone(), list(known())));
        }
        let is_ratio = self.statistic == Statistic::Ratio;
        match &self.target {
            Some(target) if !targets.contains(target) => {
                let known = list(targets.iter().map(String::as_str));
                Err(Reason::Target(target.clone(), known))
            }
            _ if is_ratio && targets.len() < 2 => Err(Reason::OneTarget),
            Some(target) if is_ratio && *target == targets[0] => {
                Err(Reason::Baseline(target.clone()))
            }
            _ => Ok(()),
        }
    }

    fn check_point(&self, points: &[PointId]) -> Result<(), Reason> {
        let workload = self.workload.as_deref().unwrap_or_default();
        let mut places = points.iter().filter(|known| known.workload == workload);
        if places.any(|known| known.x == self.x) {
            return Ok(());
        }
        let places: Vec<String> = points
            .iter()
            .filter(|known| known.workload == workload)
            .map(|known| known.x.to_string())
            .collect();
        if !places.is_empty() {
            let known = list(places.iter().map(String::as_str));
            return Err(Reason::Point(self.x, known));
        }
        let known = list(points.iter().map(|point| point.workload.as_str()));
        Err(match &self.workload {
            Some(workload) if known.is_empty() => Reason::OneWorkload(workload.clone()),
            Some(workload) => Reason::Workload(workload.clone(), known),
            None => Reason::AnyWorkload(known),
        })
    }

    /// Is it met? The report must be one that it can be about.
    pub fn judge(&self, report: &Report) -> Verdict {
        let value = self.value(report);
        Verdict {
            condition: self.clone(),
            value,
            passed: value.is_some_and(|value| self.operator.holds(value, self.bound)),
        }
    }

    fn value(&self, report: &Report) -> Option<f64> {
        let figure = match &self.figure {
            Some(figure) => figure,
            None => &report.figures.first()?.name,
        };
        let target = match &self.target {
            Some(target) => target,
            None => report.compared().next().or(report.baseline())?,
        };
        let workload = self.workload.as_deref().unwrap_or_default();
        let point = report.points_of(workload).find(|point| point.x == self.x)?;
        let series = point.of_target(target)?;
        let summary = || series.summary.get(figure);
        match self.statistic {
            Statistic::Ratio => series.ratio.get(figure).map(|ratio| ratio.of_medians),
            Statistic::Median => summary().map(|summary| summary.median),
            Statistic::Min => summary().map(|summary| summary.min),
            Statistic::Max => summary().map(|summary| summary.max),
        }
    }
}

/// Prints whether the report meets each condition. Returns whether it meets all.
pub fn judge(conditions: &[Condition], report: &Report) -> bool {
    let mut met = true;
    for condition in conditions {
        let verdict = condition.judge(report);
        eprintln!("{verdict}");
        met &= verdict.passed;
    }
    met
}

/// Each once, in their order.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all.join(", ")
}

/// Whether a condition was met. Displayed as a line for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    condition: Condition,
    /// `None` if it was not measured.
    value: Option<f64>,
    pub passed: bool,
}

impl Verdict {
    /// Rounded, unless it would then look as if it had gone the other way.
    fn shown(&self, value: f64) -> String {
        let Condition {
            operator, bound, ..
        } = self.condition;
        let rounded = three_digits(value).parse().unwrap_or(value);
        if operator.holds(rounded, bound) == self.passed {
            number::significant(value)
        } else {
            value.to_string()
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Condition {
            subject,
            operator,
            bound,
            ..
        } = &self.condition;
        f.write_str(if self.passed { "pass  " } else { "FAIL  " })?;
        match self.value {
            Some(value) => write!(f, "{subject} = {}", self.shown(value))?,
            None => write!(f, "{subject} was not measured")?,
        }
        write!(f, " ({operator} {bound})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn condition(text: &str) -> Condition {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn check(text: &str, report: &Report) -> Result<(), String> {
        let checked = condition(text).check_report(report);
        checked.map_err(|error| error.to_string())
    }

    fn verdict(text: &str, report: &Report) -> String {
        check(text, report).unwrap();
        condition(text).judge(report).to_string()
    }

    #[test]
    fn verdicts() {
        let (pingpong, commit, listen) =
            (samples::pingpong(), samples::commit(), samples::listen());
        let lines = [
            verdict("pingpong.ratio@1000>=100", &pingpong),
            verdict("pingpong.ratio@1000 < 300", &pingpong),
            verdict("pingpong.median@0>1202", &pingpong),
            verdict("pingpong.min:stock@1000<=16.8", &pingpong),
            verdict("pingpong.round_trips_per_sec:stock@0>=1e3", &pingpong),
            verdict("pingpong.max_latency_usec.max@10<=15000", &pingpong),
            verdict("commit.notify_to_plain.median@64>=0.95", &commit),
            verdict("commit.notify_to_plain@1>0.829", &commit),
            verdict(
                "listen/common_channel.latency_msec.ratio:development@8<0.1",
                &listen,
            ),
            verdict("listen/common_channel.ratio:development@100<0.1", &listen),
        ];
        insta::assert_snapshot!(lines.join("\n"), @r"
        pass  pingpong.ratio@1000 = 324 (>= 100)
        FAIL  pingpong.ratio@1000 = 324 (< 300)
        FAIL  pingpong.median@0 = 1,202 (> 1202)
        pass  pingpong.min:stock@1000 = 16.8 (<= 16.8)
        pass  pingpong.round_trips_per_sec:stock@0 = 1,960 (>= 1000)
        pass  pingpong.max_latency_usec.max@10 = 15,000 (<= 15000)
        pass  commit.notify_to_plain.median@64 = 1.03 (>= 0.95)
        pass  commit.notify_to_plain@1 = 0.8290960451977402 (> 0.829)
        pass  listen/common_channel.latency_msec.ratio:development@8 = 0.0800 (< 0.1)
        FAIL  listen/common_channel.ratio:development@100 was not measured (< 0.1)
        ");
    }

    #[test]
    fn what_a_measurement_does_not_have() {
        let (pingpong, listen) = (samples::pingpong(), samples::listen());
        let mut alone = samples::pingpong();
        alone.targets.truncate(1);
        let errors = [
            check("commit.ratio@1000>=100", &pingpong),
            check("pingpong.tps.ratio@1000>=100", &pingpong),
            check("pingpong.ratio@500>=100", &pingpong),
            check("pingpong.ratio:other@1000>=100", &pingpong),
            check("pingpong.ratio:stock@1000>=100", &pingpong),
            check("pingpong.ratio@1000>=100", &alone),
            check("pingpong/one.ratio@1000>=100", &pingpong),
            check("listen.ratio@100<1", &listen),
            check("listen/other.ratio@100<1", &listen),
        ]
        .map(Result::unwrap_err);
        insta::assert_snapshot!(errors.join("\n"));
    }
}
