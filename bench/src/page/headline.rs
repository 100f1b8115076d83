//! The figure of each benchmark that one looks at first.

use maud::{Markup, html};

use super::Entry;
use crate::number;
use crate::results::{Better, Figure, Point, Ratio};

/// A card for each workload and each target that is compared with the baseline;
/// where there is nothing to compare, for each workload.
pub fn cards(entry: &Entry, id: &str) -> Markup {
    let report = &entry.report;
    let Some(figure) = report.figures.first() else {
        return html! {};
    };
    html! {
        @for workload in report.workloads() {
            @let title = title(entry, workload);
            @for target in report.compared() {
                @let greatest = report.points_of(workload).filter_map(|point| {
                    Some((point, *point.of_target(target)?.ratio.get(&figure.name)?))
                }).max_by_key(|(point, _)| point.x);
                @if let Some((point, ratio)) = greatest {
                    (card(entry, id, &title, verdict(figure, ratio), html! {
                        p.number { (times(figure, ratio.of_medians)) }
                        p { (figure.label) ", " b { (target) } " to " (report.baseline().unwrap_or_default()) ", "
                            (at(entry, point)) }
                        @if ratio.min < ratio.max {
                            p.range { (times(figure, ratio.min)) " to " (times(figure, ratio.max)) }
                        }
                    }))
                }
            }
            @if report.compared().next().is_none() {
                @let greatest = report.points_of(workload).filter_map(|point| {
                    Some((point, point.series.first()?.summary.get(&figure.name)?))
                }).max_by_key(|(point, _)| point.x);
                @if let Some((point, summary)) = greatest {
                    (card(entry, id, &title, "neither", html! {
                        p.number { (number::of_figure(figure, summary.median)) }
                        p { (figure.label) ", " (at(entry, point)) }
                    }))
                }
            }
        }
    }
}

fn title(entry: &Entry, workload: &str) -> String {
    if workload.is_empty() {
        entry.title()
    } else {
        format!("{}: {workload}", entry.title())
    }
}

fn at(entry: &Entry, point: &Point) -> String {
    let count = number::whole(point.x as f64);
    format!("{count} {}", entry.report.axis.label)
}

fn card(entry: &Entry, id: &str, title: &str, verdict: &str, content: Markup) -> Markup {
    html! {
        li class={ "card " (verdict) } {
            p.title {
                a href={ "#" (id) } { (title) }
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

/// Was every run better than the baseline's, or every one worse?
fn verdict(figure: &Figure, ratio: Ratio) -> &'static str {
    match figure.better {
        Better::Higher if ratio.min > 1.0 => "better",
        Better::Higher if ratio.max < 1.0 => "worse",
        Better::Lower if ratio.max < 1.0 => "better",
        Better::Lower if ratio.min > 1.0 => "worse",
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
        assert_eq!(verdict(more, ratio(1.1, 2.0, 3.0)), "better");
        assert_eq!(verdict(more, ratio(0.9, 2.0, 3.0)), "neither");
        assert_eq!(verdict(more, ratio(0.5, 0.6, 0.9)), "worse");
        assert_eq!(verdict(less, ratio(0.5, 0.6, 0.9)), "better");
        assert_eq!(verdict(less, ratio(1.1, 2.0, 3.0)), "worse");
    }
}
