//! Tables of figures.

use maud::{Markup, html};

use crate::chart::better;
use crate::number;
use crate::results::{Figure, Ratio, Report, Summary};

/// One figure with one workload: a row for each point, a column for each target,
/// and one for each ratio.
pub fn render(report: &Report, figure: &Figure, workload: &str) -> Markup {
    let baseline = report.baseline().unwrap_or_default();
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Table: " (figure.label) } {
            table {
                caption { (figure.label) ", " (better(figure)) " " code { (figure.name) } }
                thead {
                    tr {
                        th scope="col" { (report.axis.label) }
                        @for target in &report.targets { th scope="col" { (target.name) } }
                        @for target in report.compared() {
                            th scope="col" { (target) " to " (baseline) }
                        }
                    }
                }
                tbody {
                    @for point in report.points_of(workload) {
                        tr {
                            th scope="row" { (number::whole(point.x as f64)) }
                            @for target in &report.targets {
                                @let series = point.of_target(&target.name);
                                td {
                                    @match series.and_then(|series| series.summary.get(&figure.name)) {
                                        Some(summary) => (self::summary(figure, *summary)),
                                        None => (missing()),
                                    }
                                }
                            }
                            @for target in report.compared() {
                                @let series = point.of_target(target);
                                td.ratio {
                                    @match series.and_then(|series| series.ratio.get(&figure.name)) {
                                        Some(ratio) => (self::ratio(*ratio)),
                                        None => (missing()),
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn summary(figure: &Figure, summary: Summary) -> Markup {
    with_range(summary.median, summary.min, summary.max, |value| {
        number::of_figure(figure, value)
    })
}

fn ratio(ratio: Ratio) -> Markup {
    with_range(ratio.of_medians, ratio.min, ratio.max, number::significant)
}

/// The range is left out where it says nothing more: after a single run.
fn with_range(value: f64, min: f64, max: f64, format: impl Fn(f64) -> String) -> Markup {
    html! {
        (format(value))
        @if min < max { " " span.range { "(" (format(min)) "–" (format(max)) ")" } }
    }
}

fn missing() -> Markup {
    html! { span.range { "not measured" } }
}
