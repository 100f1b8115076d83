//! The figure of each benchmark that one looks at first.

use maud::{Markup, html};

use super::Entry;
use crate::number;
use crate::results::{Better, Figure, Point, Ratio, Report, Summary};

/// A card for each target that is compared with the baseline; where there is
/// nothing to compare, for the baseline.
pub fn cards(entry: &Entry, id: &str) -> Markup {
    let report = &entry.report;
    let Some(figure) = report.figures.first() else {
        return html! {};
    };
    html! {
        @for target in report.compared() {
            @let found = at_the_end(report, |point| {
                point.of_target(target)?.ratio.get(&figure.name).copied()
            });
            @let what = html! {
                (figure.label) ", " b { (target) } " to " (report.baseline().unwrap_or_default())
            };
            @match &found[..] {
                [] => {}
                [(point, ratio)] => (card(entry, id, verdict(figure, &[*ratio]), html! {
                    p.number { (times(figure, ratio.of_medians)) }
                    p { (what) ", " (place(report, point)) }
                    @if ratio.min < ratio.max {
                        p.range { (times(figure, ratio.min)) " to " (times(figure, ratio.max)) }
                    }
                }))
                several => {
                    @let ratios: Vec<Ratio> = several.iter().map(|(_, ratio)| *ratio).collect();
                    (card(entry, id, verdict(figure, &ratios), html! {
                        p.number.several {
                            (range(ratios.iter().map(|ratio| ratio.of_medians), |ratio| times(figure, ratio)))
                        }
                        p { (what) ", " (ratios.len()) " workloads" }
                    }))
                }
            }
        }
        @if report.compared().next().is_none() {
            @let found = at_the_end(report, |point| {
                Some(point.series.first()?.summary.get(&figure.name)?.median)
            });
            @match &found[..] {
                [] => {}
                [(point, median)] => (card(entry, id, "neither", html! {
                    p.number { (number::of_figure(figure, *median)) }
                    p { (figure.label) ", " (place(report, point)) }
                }))
                several => (card(entry, id, "neither", html! {
                    p.number.several {
                        (range(several.iter().map(|(_, median)| *median), |median| number::of_figure(figure, median)))
                    }
                    p { (figure.label) ", " (several.len()) " workloads" }
                }))
            }
        }
    }
}

/// What there is at the greatest number that was measured with each workload.
fn at_the_end<T>(report: &Report, get: impl Fn(&Point) -> Option<T>) -> Vec<(&Point, T)> {
    let workloads = report.workloads().into_iter();
    let ends = workloads.filter_map(|workload| {
        let points = report
            .points
            .iter()
            .filter(|point| point.workload == workload);
        points
            .filter_map(|point| Some((point, get(point)?)))
            .max_by_key(|(point, _)| point.x)
    });
    ends.collect()
}

fn place(report: &Report, point: &Point) -> String {
    let count = number::whole(point.x as f64);
    format!("{count} {}", report.axis.label)
}

/// From the least to the greatest.
fn range(values: impl Iterator<Item = f64>, format: impl Fn(f64) -> String) -> String {
    let Some(Summary { min, max, .. }) = Summary::of(values) else {
        return String::new();
    };
    let (least, greatest) = (format(min), format(max));
    if least == greatest {
        least
    } else {
        format!("{least} to {greatest}")
    }
}

fn card(entry: &Entry, id: &str, verdict: &str, content: Markup) -> Markup {
    html! {
        li class={ "card " (verdict) } {
            p.title {
                a href={ "#" (id) } { (entry.title()) }
                @if !entry.report.complete { " " span.incomplete { "incomplete" } }
            }
            (content)
        }
    }
}

/// A multiple, or where less is better a part.
fn times(figure: &Figure, ratio: f64) -> String {
    match figure.better {
        Better::Lower if ratio > 0.0 && ratio < 1.0 => {
            format!("÷ {}", number::significant(1.0 / ratio))
        }
        _ => format!("× {}", number::significant(ratio)),
    }
}

/// Was every run better than the baseline's, or every one worse? A single run is
/// no reason to say so.
fn verdict(figure: &Figure, ratios: &[Ratio]) -> &'static str {
    let several_runs = ratios.iter().all(|ratio| ratio.min < ratio.max);
    let more = several_runs && ratios.iter().all(|ratio| ratio.min > 1.0);
    let less = several_runs && ratios.iter().all(|ratio| ratio.max < 1.0);
    match (figure.better, more, less) {
        (Better::Higher, true, _) | (Better::Lower, _, true) => "better",
        (Better::Higher, _, true) | (Better::Lower, true, _) => "worse",
        _ => "neither",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn ratio(min: f64, of_medians: f64, max: f64) -> Ratio {
        Ratio {
            of_medians,
            min,
            max,
        }
    }

    #[test]
    fn less_is_a_part_where_it_is_better() {
        let (more, less) = (
            &samples::pingpong().figures[0],
            &samples::listen().figures[0],
        );
        assert_eq!(times(more, 324.2), "× 324");
        assert_eq!(times(more, 0.5), "× 0.500");
        assert_eq!(times(less, 0.064), "÷ 15.6");
        assert_eq!(times(less, 2.0), "× 2.00");
        assert_eq!(times(less, 0.0), "× 0");
    }

    #[test]
    fn a_verdict_is_that_of_all_runs() {
        let (more, less) = (
            &samples::pingpong().figures[0],
            &samples::listen().figures[0],
        );
        let (above, below) = (ratio(1.1, 2.0, 3.0), ratio(0.5, 0.6, 0.9));
        let (both, single) = (ratio(0.9, 2.0, 3.0), ratio(2.0, 2.0, 2.0));
        assert_eq!(verdict(more, &[above, above]), "better");
        assert_eq!(verdict(more, &[below]), "worse");
        assert_eq!(verdict(less, &[below]), "better");
        assert_eq!(verdict(less, &[above]), "worse");
        for unclear in [both, single] {
            assert_eq!(verdict(more, &[unclear]), "neither");
            assert_eq!(verdict(less, &[unclear]), "neither");
        }
        assert_eq!(verdict(more, &[above, below]), "neither");
    }
}
