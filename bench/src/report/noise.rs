//! Tells when there are too few runs, or when they lie so far apart that their
//! figures are doubtful.

use super::number;
use super::results::{Axis, Figure, Kind, Point, Summary};
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
                        number::whole(point.x as f64),
                        axis.label,
                        number::of_figure(figure, min),
                        number::of_figure(figure, max),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn what_makes_figures_doubtful() {
        let report = samples::pingpong();
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
}
