//! Tables of figures.

use maud::{Markup, html};

use super::headline::class;
use crate::report::chart::better;
use crate::report::results::{Figure, Point, Ratio, Report, Summary};
use crate::report::verdict::Verdict;
use crate::report::{number, words};

/// One figure of one workload: a row for each point, a column for each target,
/// and one for each comparison. On a phone the cells of a row are below each other,
/// each with the heading of its column.
pub fn render(report: &Report, figure: &Figure, workload: &str) -> Markup {
    let baseline = report.baseline().unwrap_or_default();
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Table: " (figure.label) } { table.stack {
            caption { (figure.label) @if let Some(better) = better(figure) { ", " (better) } " " code { (figure.name) } }
            thead {
                tr {
                    th scope="col" { (report.axis.label) }
                    @for target in &report.targets { th scope="col" { (target.name) } }
                    @for target in report.compared() { th scope="col" { (target) " and " (baseline) } }
                }
            }
            tbody {
                @for point in report.points_of(workload) {
                    tr {
                        th scope="row" data-label=(report.axis.label) { (number::whole(point.x as f64)) }
                        @for target in &report.targets {
                            td data-label=(target.name) { (value(figure, point, &target.name)) }
                        }
                        @for target in report.compared() {
                            (comparison(figure, point, target, baseline))
                        }
                    }
                }
            }
        } }
    }
}

fn value(figure: &Figure, point: &Point, target: &str) -> Markup {
    let series = point.of_target(target);
    match series.and_then(|series| series.summary.get(&figure.name)) {
        Some(Summary { median, min, max }) => with_range(
            number::of_figure(figure, *median),
            [*min, *max].map(|value| number::of_figure(figure, value)),
        ),
        None => html! { span.range { "not measured" } },
    }
}

/// In words if it is clear, else as a number.
fn comparison(figure: &Figure, point: &Point, target: &str, baseline: &str) -> Markup {
    let label = format!("{target} and {baseline}");
    let (series, base) = (point.of_target(target), point.of_target(baseline));
    let (Some(series), Some(base)) = (series, base) else {
        return html! { td.ratio data-label=(label) { span.range { "not measured" } } };
    };
    let verdict = Verdict::of(figure, series, base);
    let content = match series.ratio.get(&figure.name) {
        None => html! { span.range { "no ratio" } },
        Some(ratio) if verdict.is_clear() => with_range(
            words::times(figure, ratio.median),
            words::ends(figure, ratio),
        ),
        Some(Ratio {
            median, min, max, ..
        }) => with_range(
            format!("× {}", number::ratio(*median)),
            [*min, *max].map(number::ratio),
        ),
    };
    html! { td class={ "ratio " (class(verdict)) } data-label=(label) { (content) } }
}

/// The range is left out where it says nothing more: after a single run.
fn with_range(value: String, [min, max]: [String; 2]) -> Markup {
    html! {
        span {
            (value)
            @if min != max { " " span.range { "(" (min) "–" (max) ")" } }
        }
    }
}
