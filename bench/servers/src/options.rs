//! Values of options that several command lines have.

use std::fmt;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use serde::{Serialize, Serializer};

/// PostgreSQL accepts no more connections (2^18 - 1, less its own processes).
pub const MAX_CONNECTIONS: u32 = 250_000;

/// Maximum of all timeouts.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const NO_DURATION: &str = "not a duration, such as 10, 1.5, 10s, 500ms or 2min";
const TOO_LONG: &str = "more than a day";

/// A duration, as in `10`, `1.5`, `10s`, `500ms` and `2min`: seconds if there is no unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) if seconds < 0.0 => return Err("less than 0".to_owned()),
        Ok(seconds) if seconds > LONGEST.as_secs_f64() => return Err(TOO_LONG.to_owned()),
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| NO_DURATION)?,
        Err(_) => humantime::parse_duration(text).map_err(|_| NO_DURATION)?,
    };
    if duration > LONGEST {
        return Err(TOO_LONG.to_owned());
    }
    Ok(duration)
}

/// The same, but more than none.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// How durations are recorded.
pub fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Parses a number of this range.
pub fn number(range: impl RangeBounds<u32>) -> RangedI64ValueParser<u32> {
    let bound = |bound: Bound<&u32>| bound.map(|&n| i64::from(n));
    clap::value_parser!(u32).range((bound(range.start_bound()), bound(range.end_bound())))
}

/// Numbers to measure with, ascending, each once: sessions are only ever added
/// from one to the next. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Numbers(Vec<u32>);

impl Numbers {
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    pub fn first(&self) -> u32 {
        self.0[0]
    }

    pub fn last(&self) -> u32 {
        self.0[self.0.len() - 1]
    }

    /// Whether there are several.
    pub fn vary(&self) -> bool {
        self.0.len() > 1
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Parses `1,10,100` and `0..1000/100`, which is from 0 up to 1,000 in steps of 100.
pub fn numbers(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<Numbers, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = |text: &str| {
            let number = text.trim().parse::<u32>();
            let number = number.map_err(|_| format!("'{text}' is not a whole number"))?;
            if range.contains(&number) {
                Ok(number)
            } else {
                let (least, most) = (range.start(), range.end());
                Err(format!("{number} is not in {least}..={most}"))
            }
        };
        let mut values = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => values.push(number(part)?),
                Some((first, rest)) => {
                    let (last, step) = rest.split_once('/').unwrap_or((rest, "1"));
                    let step = step.parse().ok().filter(|&step: &usize| step > 0);
                    let step = step.ok_or("the step after the / is not a number above 0")?;
                    values.extend((number(first)?..=number(last)?).step_by(step));
                }
            }
        }
        if values.is_empty() {
            return Err("there is no number in it".to_owned());
        }
        values.sort_unstable();
        values.dedup();
        Ok(Numbers(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_seconds() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("10", ms(10_000)),
            ("0.25", ms(250)),
            ("10s", ms(10_000)),
            ("500ms", ms(500)),
            ("2min", ms(120_000)),
            ("0", ms(0)),
        ] {
            assert_eq!(duration(text), Ok(expected), "{text}");
        }
        for (texts, error) in [
            (&["", "nan", "-nan", "soon", "10 x"][..], NO_DURATION),
            (&["1e12", "1.8e19", "1e300", "inf", "2d"], TOO_LONG),
            (&["-1", "-1e300", "-inf"], "less than 0"),
        ] {
            for text in texts {
                assert_eq!(duration(text), Err(error.to_owned()), "{text}");
            }
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn numbers_are_lists_and_ranges() {
        let parse = numbers(0..=1000);
        for (text, expected) in [
            ("7", &[7][..]),
            ("100,0, 100,7", &[0, 7, 100]),
            ("0..250/100", &[0, 100, 200]),
            ("1,10..12", &[1, 10, 11, 12]),
        ] {
            assert_eq!(parse(text).unwrap().0, expected, "{text}");
        }
        for text in ["", "1,,2", "-1", "1001", "5..1", "0..9/0", "0..2000"] {
            assert!(parse(text).is_err(), "{text}");
        }
        // What is shown as a default can be typed.
        let shown = parse("0..300/100").unwrap().to_string();
        assert_eq!(parse(&shown).unwrap().to_string(), "0,100,200,300");
    }
}
