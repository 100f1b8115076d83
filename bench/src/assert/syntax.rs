//! How a condition is written.

use std::str::FromStr;

use thiserror::Error;

use super::{Condition, Operator, Statistic};

/// Why a text is not a condition.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SyntaxError {
    #[error("it has none of >=, <=, > and <: {FORM}")]
    Operator,
    #[error("\"{0}\" after the {1} is not a number")]
    Number(String, Operator),
    #[error("there is no @ before the {0}: {FORM}")]
    Place(Operator),
    #[error("\"{0}\" after the @ is not a whole number")]
    X(String),
    #[error("there is nothing to look at after \"{0}\": {FORM}")]
    Figure(String),
    #[error("\"{0}\" is none of ratio, median, min and max")]
    Statistic(String),
    #[error("the name of the {0} is missing: {FORM}")]
    Empty(&'static str),
}

const FORM: &str = "write a condition as \
    BENCHMARK[/WORKLOAD][.FIGURE].STATISTIC[:TARGET]@X>=NUMBER, such as \
    pingpong.ratio@1000>=100";

impl FromStr for Condition {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        let text: String = text.split_whitespace().collect();
        let (subject, operator, bound) = split_operator(&text).ok_or(SyntaxError::Operator)?;
        let number = bound.parse().ok().filter(|number: &f64| number.is_finite());
        let number = number.ok_or_else(|| SyntaxError::Number(bound.to_owned(), operator))?;

        let (what, x) = subject
            .rsplit_once('@')
            .ok_or(SyntaxError::Place(operator))?;
        let x = x.parse().map_err(|_| SyntaxError::X(x.to_owned()))?;
        let (what, target) = optional(what, ':', "target")?;
        let (benchmark, figure) = what
            .split_once('.')
            .ok_or_else(|| SyntaxError::Figure(what.to_owned()))?;
        let (benchmark, workload) = optional(benchmark, '/', "workload")?;
        let (figure, statistic) = match figure.split_once('.') {
            Some((figure, statistic)) => {
                let known = Statistic::parse(statistic);
                let statistic =
                    known.ok_or_else(|| SyntaxError::Statistic(statistic.to_owned()))?;
                (Some(figure), statistic)
            }
            None => match Statistic::parse(figure) {
                Some(statistic) => (None, statistic),
                None => (Some(figure), Statistic::Median),
            },
        };
        for (name, text) in [("benchmark", Some(benchmark)), ("figure", figure)] {
            if text == Some("") {
                return Err(SyntaxError::Empty(name));
            }
        }
        Ok(Self {
            subject: subject.to_owned(),
            benchmark: benchmark.to_owned(),
            workload: workload.map(str::to_owned),
            figure: figure.map(str::to_owned),
            statistic,
            target: target.map(str::to_owned),
            x,
            operator,
            bound: number,
        })
    }
}

fn split_operator(text: &str) -> Option<(&str, Operator, &str)> {
    let at = text.find(['<', '>'])?;
    let (subject, rest) = text.split_at(at);
    [
        (">=", Operator::AtLeast),
        ("<=", Operator::AtMost),
        (">", Operator::More),
        ("<", Operator::Less),
    ]
    .into_iter()
    .find_map(|(sign, operator)| Some((subject, operator, rest.strip_prefix(sign)?)))
}

/// Something and what may stand after a sign.
fn optional<'a>(
    text: &'a str,
    sign: char,
    name: &'static str,
) -> Result<(&'a str, Option<&'a str>), SyntaxError> {
    match text.split_once(sign) {
        Some((_, "")) => Err(SyntaxError::Empty(name)),
        Some((before, after)) => Ok((before, Some(after))),
        None => Ok((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
