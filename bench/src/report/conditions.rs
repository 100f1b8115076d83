//! `report --assert`: conditions that results have to meet, such as
//! `pingpong.ratio@1000>=100`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};

use super::number_format;
use super::results::Report;

const FORM: &str = "write a condition as \
    BENCHMARK[/WORKLOAD].WHAT[:TARGET]@X>=NUMBER, where WHAT is FIGURE.STATISTIC, STATISTIC or \
    FIGURE, such as pingpong.ratio@1000>=100";

const STATISTICS: [&str; 4] = ["ratio", "median", "min", "max"];

/// A sign, and what it says of a value and a bound.
type Operator = (&'static str, fn(f64, f64) -> bool);

const OPERATORS: [Operator; 4] = [
    (">=", |value, bound| value >= bound),
    ("<=", |value, bound| value <= bound),
    (">", |value, bound| value > bound),
    ("<", |value, bound| value < bound),
];

/// A condition.
#[derive(Debug, Clone)]
pub struct Condition {
    /// As it was written, up to the operator, without blanks.
    subject: String,
    benchmark: String,
    /// Empty if there is none.
    workload: String,
    /// The benchmark's first one, if there is none.
    figure: Option<String>,
    statistic: &'static str,
    /// The second one, or the only one, if there is none.
    target: Option<String>,
    x: u64,
    operator: Operator,
    bound: f64,
}

impl FromStr for Condition {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let text: String = text.split_whitespace().collect();
        let at = text.find(['<', '>']);
        let (subject, rest) =
            text.split_at(at.with_context(|| format!("it has none of >=, <=, > and <: {FORM}"))?);
        let operator = OPERATORS
            .into_iter()
            .find(|(sign, _)| rest.starts_with(sign));
        let operator = operator.context(FORM)?;
        let bound = &rest[operator.0.len()..];
        let number = bound.parse().ok().filter(|number: &f64| number.is_finite());
        let number = number.with_context(|| format!("\"{bound}\" is not a number"))?;

        let (what, x) = subject
            .rsplit_once('@')
            .with_context(|| format!("there is no @ before the {}: {FORM}", operator.0))?;
        let x = x
            .parse()
            .with_context(|| format!("\"{x}\" after the @ is not a whole number"))?;
        let (what, target) = optional(what, ':')?;
        let (benchmark, what) = what.split_once('.').context(FORM)?;
        let (benchmark, workload) = optional(benchmark, '/')?;
        let statistic = |name: &str| STATISTICS.into_iter().find(|known| *known == name);
        let (figure, statistic) = match what.split_once('.') {
            Some((figure, name)) => {
                let known = statistic(name);
                let known = known
                    .with_context(|| format!("\"{name}\" is none of ratio, median, min and max"))?;
                (Some(figure), known)
            }
            None => match statistic(what) {
                Some(known) => (None, known),
                None => (Some(what), "median"),
            },
        };
        ensure!(!benchmark.is_empty() && figure != Some(""), FORM);
        Ok(Self {
            subject: subject.to_owned(),
            benchmark: benchmark.to_owned(),
            workload: workload.unwrap_or_default().to_owned(),
            figure: figure.map(str::to_owned),
            statistic,
            target: target.map(str::to_owned),
            x,
            operator,
            bound: number,
        })
    }
}

/// Something, and what may stand after a sign.
fn optional(text: &str, sign: char) -> anyhow::Result<(&str, Option<&str>)> {
    match text.split_once(sign) {
        Some((_, "")) => bail!("the name after the {sign} is missing: {FORM}"),
        Some((before, after)) => Ok((before, Some(after))),
        None => Ok((text, None)),
    }
}

impl Condition {
    pub fn benchmark(&self) -> &str {
        &self.benchmark
    }

    /// Is it met? An error if it is about something that is not measured at all.
    /// What a report does not have that was stopped before its end does not meet it.
    pub fn judge(&self, report: &Report) -> anyhow::Result<Verdict> {
        let value = self
            .value(report)
            .with_context(|| format!("--assert '{self}'"))?;
        let (_, holds) = self.operator;
        Ok(Verdict {
            text: self.clone(),
            value,
            passed: value.is_some_and(|value| holds(value, self.bound)),
        })
    }

    fn value(&self, report: &Report) -> anyhow::Result<Option<f64>> {
        let figures: Vec<&str> = report.figures.iter().map(|f| f.name.as_str()).collect();
        let figure = known("figure", self.figure.as_deref(), figures.first(), &figures)?;
        let targets: Vec<&str> = report.targets.iter().map(|t| t.name.as_str()).collect();
        let default = targets.get(1).or(targets.first());
        let target = known("target", self.target.as_deref(), default, &targets)?;
        let is_ratio = self.statistic == "ratio";
        ensure!(
            !is_ratio || Some(&target) != targets.first(),
            "a ratio is to the first target, which is \"{target}\": name another one, or look at \
             the median"
        );

        let places: Vec<String> = report
            .points
            .iter()
            .filter(|point| point.workload == self.workload)
            .map(|point| point.x.to_string())
            .collect();
        if places.is_empty() && report.complete {
            let workloads = report.workloads().join(", ");
            ensure!(
                !workloads.is_empty(),
                "there is only one workload: leave \"/{}\" out",
                self.workload
            );
            bail!(
                "there is no workload \"{}\": name one of {workloads}",
                self.workload
            );
        }
        let mut points = report.points_of(&self.workload);
        let Some(point) = points.find(|point| point.x == self.x) else {
            ensure!(
                !report.complete,
                "{} is not measured: name one of {}",
                self.x,
                places.join(", ")
            );
            return Ok(None);
        };
        let series = point.of_target(target);
        let summary = series.and_then(|series| series.summary.get(figure));
        let ratio = series.and_then(|series| series.ratio.get(figure));
        Ok(match self.statistic {
            "ratio" => ratio.map(|ratio| ratio.median),
            "min" => summary.map(|summary| summary.min),
            "max" => summary.map(|summary| summary.max),
            _ => summary.map(|summary| summary.median),
        })
    }
}

/// A name that must be one of these.
fn known<'a>(
    what: &str,
    name: Option<&'a str>,
    default: Option<&&'a str>,
    known: &[&str],
) -> anyhow::Result<&'a str> {
    let name = name.or(default.copied()).unwrap_or_default();
    ensure!(
        known.contains(&name),
        "there is no {what} \"{name}\": name one of {}",
        known.join(", ")
    );
    Ok(name)
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.subject, self.operator.0, self.bound)
    }
}

/// Whether a condition was met. Displayed as a line for people.
#[derive(Debug)]
pub struct Verdict {
    text: Condition,
    /// `None` if it was not measured.
    value: Option<f64>,
    pub passed: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Condition {
            subject,
            operator: (sign, holds),
            bound,
            ..
        } = &self.text;
        f.write_str(if self.passed { "pass  " } else { "FAIL  " })?;
        match self.value {
            Some(value) => {
                let shown = number_format::significant(value);
                // Rounded, unless it would then look as if it had gone the other way.
                let rounded = shown.replace(',', "").parse().unwrap_or(value);
                if holds(rounded, *bound) == self.passed {
                    write!(f, "{subject} = {shown}")?;
                } else {
                    write!(f, "{subject} = {value}")?;
                }
            }
            None => write!(f, "{subject} was not measured")?,
        }
        write!(f, " ({sign} {bound})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    fn judge(text: &str, report: &Report) -> String {
        let condition: Condition = text.parse().unwrap();
        match condition.judge(report) {
            Ok(verdict) => verdict.to_string(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn verdicts() {
        let (pingpong, commit, decode) = (
            sample_reports::pingpong(),
            sample_reports::commit(),
            sample_reports::decode(),
        );
        let mut stopped = sample_reports::pingpong();
        stopped.complete = false;
        stopped.points.truncate(1);
        let lines = [
            judge("pingpong.ratio@1000 >= 100", &pingpong),
            judge("pingpong.ratio@1000<100", &pingpong),
            judge("pingpong.min:stock@1000<=16.8", &pingpong),
            judge("pingpong.p99_latency_usec.max@10<=15000", &pingpong),
            judge("commit.notify_to_plain@16>0.5", &commit),
            judge("decode/single_transaction.ratio@1000<1", &decode),
            judge("pingpong.ratio@1000>1", &stopped),
            judge("pingpong.tps.ratio@1000>=100", &pingpong),
            judge("pingpong.ratio@500>=100", &pingpong),
            judge("pingpong.ratio:other@1000>=100", &pingpong),
            judge("pingpong.ratio:stock@1000>=100", &pingpong),
            judge("pingpong.ratio@1000>=100", &sample_reports::alone()),
            judge("pingpong/one.ratio@1000>=100", &pingpong),
            judge("decode.ratio@1000<1", &decode),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn what_is_no_condition() {
        let errors = [
            "",
            "pingpong.ratio@1000=100",
            "pingpong.ratio@1000>=many",
            "pingpong.ratio@1000>=inf",
            "pingpong.ratio>=100",
            "pingpong.ratio@1,000>=100",
            "pingpong@1000>=100",
            "pingpong.rate.mean@1000>=100",
            ".ratio@1000>=100",
            "pingpong.@1000>=100",
            "listen/.ratio@1000>=100",
            "pingpong.ratio:@1000>=100",
        ]
        .map(|text| format!("{text}: {}", text.parse::<Condition>().unwrap_err()));
        insta::assert_snapshot!(errors.join("\n"));
    }
}
