//! Tells when there are too few runs, or when they lie so far apart that their
//! figures are doubtful.

use std::time::Duration;

use super::number_format;
use super::results::{Axis, BACKLOG_USEC, Figure, Kind, Point, Summary};
use super::verdict::LEAST_PAIRS;

/// Runs that lie further apart than this, as a fraction of their median, are
/// worth a warning.
const NOISE: f64 = 0.3;

/// So many examples are enough.
const EXAMPLES: usize = 3;

/// Warnings: sentences with the remedy.
pub fn warnings(axis: &Axis, figures: &[Figure], points: &[Point]) -> Vec<String> {
    let mut warnings = Vec::new();
    let runs = points.iter().flat_map(|point| &point.series);
    let least = runs.map(|series| series.runs.len()).min().unwrap_or(0);
    if least == 1 {
        warnings.push("a single run says little: make six or more (--runs)".to_owned());
    } else if least < LEAST_PAIRS {
        warnings.push(format!(
            "{least} runs are too few for a verdict: make six or more (--runs)"
        ));
    }
    warnings.extend(spread(axis, figures, points));
    warnings
}

/// A warning if runs differ a lot, in the main figure or in another rate that is
/// drawn. Latencies always do: rates tell more.
fn spread(axis: &Axis, figures: &[Figure], points: &[Point]) -> Option<String> {
    let telling = |(position, figure): &(usize, &Figure)| {
        *position == 0 || (figure.chart && figure.kind == Kind::Rate)
    };
    let telling = figures.iter().enumerate().filter(telling);
    let mut noisy = Vec::new();
    for (_, figure) in telling {
        for point in points {
            for series in &point.series {
                let Some(summary) = series.summary.get(&figure.name) else {
                    continue;
                };
                if summary.spread() > NOISE {
                    let Summary { min, max, .. } = *summary;
                    noisy.push(format!(
                        "{} with {} {}, {} to {} {}",
                        series.target,
                        number_format::whole(point.x as f64),
                        axis.label,
                        number_format::of_figure(figure, min),
                        number_format::of_figure(figure, max),
                        figure.label
                    ));
                }
            }
        }
    }
    let more = noisy.len().saturating_sub(EXAMPLES);
    noisy.truncate(EXAMPLES);
    if more > 0 {
        noisy.push(format!("and {more} more"));
    }
    (!noisy.is_empty()).then(|| {
        format!(
            "some runs differ a lot ({}): stop other programs, or make more and longer runs",
            noisy.join("; ")
        )
    })
}

/// A warning if a listener was still reading for longer than `limit` after a load.
pub fn backlog(axis: &Axis, points: &[Point], limit: Duration) -> Option<String> {
    let mut behind = Vec::new();
    for point in points {
        for series in &point.series {
            let Some(backlog) = series.summary.get(BACKLOG_USEC) else {
                continue;
            };
            let backlog = Duration::from_micros(backlog.max as u64);
            if backlog > limit {
                behind.push(format!(
                    "{} with {} {}, {:.1} s",
                    series.target,
                    number_format::whole(point.x as f64),
                    axis.label,
                    backlog.as_secs_f64()
                ));
            }
        }
    }
    (!behind.is_empty()).then(|| {
        format!(
            "a listener could not keep up, and was still reading after the load ({}): \
             the latencies are those of a growing backlog",
            behind.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::{Scale, Series, Values};
    use crate::report::sample_reports;

    #[test]
    fn what_makes_figures_doubtful() {
        let report = sample_reports::pingpong();
        let of = |points: &[Point]| warnings(&report.axis, &report.figures, points);
        let [noisy] = &of(&report.points)[..] else {
            panic!("{:?}", of(&report.points));
        };
        assert!(noisy.starts_with("some runs differ a lot (stock with 0 idle listeners, "));
        assert!(noisy.contains(" more): stop other programs"));

        let quiet = report.points[2..3].to_vec();
        let mut single = quiet.clone();
        for series in &mut single[0].series {
            series.runs.truncate(1);
        }
        assert!(of(&single)[0].starts_with("a single run says little"));
        let mut few = quiet;
        few[0].series[0].runs.truncate(5);
        assert!(of(&few)[0].starts_with("5 runs are too few"));
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
