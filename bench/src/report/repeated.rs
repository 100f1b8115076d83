//! Whether two measurements of the same benchmark agree, from one day or machine to the next.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::interval::{Confidence, Interval};
use super::results::{Kind, Ratio, Report};

/// So many of the intervals of ratios that both measurements have overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    overlapping: usize,
    compared: usize,
}

impl Agreement {
    /// Of all figures at all points that both have, for each target of ours and the stock server of the same
    /// version. `None` if they have no interval in common.
    pub fn of(first: &Report, second: &Report) -> Option<Self> {
        let (first, second) = (intervals(first), intervals(second));
        let overlaps: Vec<bool> = first
            .iter()
            .filter_map(|(place, interval)| Some(interval.overlaps(second.get(place)?)))
            .collect();
        (!overlaps.is_empty()).then(|| Self {
            overlapping: overlaps.iter().filter(|overlap| **overlap).count(),
            compared: overlaps.len(),
        })
    }
}

impl Display for Agreement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.overlapping, self.compared)
    }
}

/// Workload, X, target and figure.
type Place<'a> = (&'a str, u64, &'a str, &'a str);

fn intervals(report: &Report) -> BTreeMap<Place<'_>, Interval> {
    let mut intervals = BTreeMap::new();
    for point in &report.points {
        for (target, base) in report.compared() {
            let (Some(series), Some(base)) = (point.of_target(target), point.of_target(&base))
            else {
                continue;
            };
            // There is no interval of what is counted.
            let figures = report.figures.iter();
            for figure in figures.filter(|figure| figure.kind != Kind::Count) {
                let ratio = Ratio::of(&figure.name, series, base, Confidence::Usual);
                if let Some(interval) = ratio.and_then(|ratio| ratio.interval) {
                    let place = (
                        point.workload.as_str(),
                        point.x,
                        target,
                        figure.name.as_str(),
                    );
                    intervals.insert(place, interval);
                }
            }
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    fn text(first: &Report, second: &Report) -> Option<String> {
        Agreement::of(first, second).map(|agreement| agreement.to_string())
    }

    #[test]
    fn a_measurement_agrees_with_itself() {
        let report = sample_reports::pingpong();
        assert_eq!(text(&report, &report).as_deref(), Some("8 of 8"));
    }

    #[test]
    fn what_lies_beside_an_interval_does_not_agree() {
        let report = sample_reports::pingpong();
        let mut other = report.clone();
        // A thousand times as much of one figure at one point.
        let figure = report.figures[0].name.as_str();
        for run in &mut other.points[0].series[1].runs {
            *run.get_mut(figure).unwrap() *= 1000.0;
        }
        // Points that only one of them has do not count.
        other.points.pop();
        assert_eq!(text(&report, &other).as_deref(), Some("5 of 6"));
    }

    #[test]
    fn without_intervals_there_is_no_agreement() {
        let mut counted = sample_reports::pingpong();
        for figure in &mut counted.figures {
            figure.kind = Kind::Count;
        }
        assert_eq!(text(&counted, &counted), None);
        let drift = sample_reports::drift();
        assert_eq!(text(&drift, &drift), None);
        assert_eq!(text(&sample_reports::pingpong(), &drift), None);
    }
}
