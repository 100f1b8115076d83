//! Tells what makes figures doubtful: too few runs, a backlog, a busy host.

use std::time::Duration;

use super::number_format;
use super::results::{Axis, BACKLOG_USEC, Figure, Kind, Point, Summary};
use super::verdict::LEAST_PAIRS;

/// A warning if there are too few runs, a sentence with the remedy.
pub fn too_few_runs(figures: &[Figure], points: &[Point]) -> Option<String> {
    let runs = points.iter().flat_map(|point| &point.series);
    let least = runs.map(|series| series.runs.len()).min().unwrap_or(0);
    let is_count = figures.first().is_some_and(|f| f.kind == Kind::Count);
    match least {
        // There is no verdict on it.
        _ if is_count => None,
        0 | LEAST_PAIRS.. => None,
        1 => Some("a single run says little: make six or more (--runs)".to_owned()),
        few => Some(format!(
            "{few} runs are too few for a verdict: make six or more (--runs)"
        )),
    }
}

/// A warning if a listener was still reading for longer than `limit` after a load.
pub fn backlog(axis: &Axis, points: &[Point], limit: Duration) -> Option<String> {
    let behind: Vec<String> = measured(axis, points, BACKLOG_USEC)
        .map(|(place, backlog)| (place, Duration::from_micros(backlog.max as u64)))
        .filter(|(_, backlog)| *backlog > limit)
        .map(|(place, backlog)| format!("{place}, {:.1} s", backlog.as_secs_f64()))
        .collect();
    (!behind.is_empty()).then(|| {
        format!(
            "a listener could not keep up, and was still reading after the load ({}): \
             the latencies are those of a growing backlog",
            behind.join("; ")
        )
    })
}

/// A warning if the host took more than `limit` of the processor time of a run that counts.
pub fn stolen(points: &[Point], limit: f64) -> Option<String> {
    let series = points.iter().flat_map(|point| &point.series);
    let runs = series.flat_map(|series| &series.stolen);
    let disturbed = runs.filter(|stolen| **stolen > limit).count();
    (disturbed > 0).then(|| {
        format!(
            "the host took more than {:.0} % of the processor time during {disturbed} runs, also \
             when they were repeated: measure when it is less busy",
            100.0 * limit
        )
    })
}

/// What was measured of a figure, and where: `stock with 16 writers`.
fn measured(
    axis: &Axis,
    points: &[Point],
    figure: &str,
) -> impl Iterator<Item = (String, Summary)> {
    let series = points
        .iter()
        .flat_map(|point| point.series.iter().map(move |series| (point.x, series)));
    series.filter_map(move |(x, series)| {
        let x = number_format::whole(x as f64);
        let place = format!("{} with {x} {}", series.target, axis.label);
        Some((place, *series.summary.get(figure)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::{Scale, Series, Values};
    use crate::report::sample_reports;

    #[test]
    fn too_few_runs_get_a_warning() {
        let report = sample_reports::pingpong();
        let warning = |points: &[Point]| super::too_few_runs(&report.figures, points);
        assert_eq!(warning(&report.points), None);
        assert_eq!(warning(&[]), None);
        let mut few = report.points.clone();
        few[0].series[0].runs.truncate(5);
        assert!(warning(&few).unwrap().starts_with("5 runs are too few"));
        few[1].series[1].runs.truncate(1);
        assert!(
            warning(&few)
                .unwrap()
                .starts_with("a single run says little")
        );
    }

    #[test]
    fn stolen_time_gets_a_warning() {
        let mut points = sample_reports::pingpong().points;
        assert_eq!(stolen(&points, 0.02), None);
        points[1].series[0].stolen = vec![0.01, 0.05, 0.02, 0.03];
        let warning = stolen(&points, 0.02).unwrap();
        assert!(warning.starts_with("the host took more than 2 % of the processor time during 2"));
    }

    #[test]
    fn a_backlog_gets_a_warning() {
        let axis = Axis::new("senders", "senders", Scale::Logarithmic);
        let warning = |backlog| {
            let run = Values::from([(BACKLOG_USEC.to_owned(), backlog)]);
            let point = Point {
                workload: String::new(),
                x: 64,
                series: vec![Series::of("stock".to_owned(), vec![run], None)],
            };
            super::backlog(&axis, &[point], Duration::from_millis(100))
        };
        assert_eq!(
            warning(125_000.0).unwrap(),
            "a listener could not keep up, and was still reading after the load (stock with \
             64 senders, 0.1 s): the latencies are those of a growing backlog"
        );
        assert_eq!(warning(99_000.0), None);
    }
}
