//! Tells when runs lie so far apart that their figures are doubtful.

use crate::results::{Axis, Better, Figure, Point, Summary};

/// Runs that lie further apart than this, as a fraction of their median, are
/// worth a warning.
const NOISE: f64 = 0.3;

/// So many examples are enough.
const EXAMPLES: usize = 3;

/// A warning if runs differ a lot, in the main figure or in another one that is
/// drawn. The longest latency of a run always does: rates tell more.
pub fn warning(axis: &Axis, figures: &[Figure], points: &[Point]) -> Option<String> {
    let telling: Vec<&Figure> = figures
        .iter()
        .enumerate()
        .filter(|(position, figure)| {
            *position == 0 || (figure.chart && figure.better == Better::Higher && !figure.is_ratio)
        })
        .map(|(_, figure)| figure)
        .collect();

    let mut noisy = Vec::new();
    for point in points {
        for series in &point.series {
            for figure in &telling {
                if let Some(summary) = series.summary.get(&figure.name)
                    && is_noisy(summary)
                {
                    noisy.push(format!(
                        "{} with {} {}, {} to {} {}",
                        series.target,
                        point.x,
                        axis.label,
                        figure.format(summary.min),
                        figure.format(summary.max),
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

fn is_noisy(summary: &Summary) -> bool {
    summary.spread() > NOISE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::example;

    fn warning_of(points: &[Point]) -> Option<String> {
        let report = example();
        warning(&report.axis, &report.figures, points)
    }

    #[test]
    fn runs_that_differ_a_lot_get_a_warning() {
        assert_eq!(
            warning_of(&example().points).unwrap(),
            "some runs differ a lot (pinpoint with 1000 idle listeners, 3500 to 6000 round trips \
             per second): stop other programs, or make more and longer runs"
        );
    }

    #[test]
    fn runs_that_agree_get_none() {
        assert_eq!(warning_of(&example().points[..1]), None);
    }

    #[test]
    fn examples_are_enough() {
        let points = vec![example().points.remove(1); 5];
        assert!(warning_of(&points).unwrap().contains("; and 2 more):"));
    }
}
