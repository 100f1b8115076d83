//! What one looks at first: where each target does best and where it does worst.

use maud::{Markup, html};

use super::Entry;
use crate::report::results::{Figure, Report};
use crate::report::verdict::{Place, Verdict, best_and_worst};
use crate::report::{number, words};

/// A card for each target that is compared with the baseline; where there is
/// nothing to compare, for the baseline.
pub fn cards(entry: &Entry, id: &str) -> Markup {
    let report = &entry.report;
    let Some(figure) = report.figures.first() else {
        return html! {};
    };
    html! {
        @for target in report.compared() {
            (card(entry, id, html! {
                p { (figure.label) ", " b { (target) } " and " (report.baseline().unwrap_or_default()) }
                @match best_and_worst(report, target) {
                    Some((best, worst)) => {
                        (line(report, figure, &best))
                        @if best.point != worst.point { (line(report, figure, &worst)) }
                    }
                    None => { p.number { "no ratio" } }
                }
            }))
        }
        @if report.compared().next().is_none() {
            @let last = report.points.iter().rev().find_map(|point| {
                let summary = point.series.first()?.summary.get(&figure.name)?;
                Some((point, summary.median))
            });
            @if let Some((point, median)) = last {
                (card(entry, id, html! {
                    p.number { (number::of_figure(figure, median)) }
                    p { (figure.label) ", " (words::place(report, point)) }
                }))
            }
        }
    }
}

/// The comparison at a place; without a verdict there is no figure to show.
fn line(report: &Report, figure: &Figure, place: &Place) -> Markup {
    let ratio = &place.series.ratio[&figure.name];
    let at = words::place(report, place.point);
    html! {
        @match place.verdict {
            Verdict::Better | Verdict::Worse => {
                p class={ "number " (class(place.verdict)) } { (words::times(figure, ratio.median)) }
                p { "with " (at) ": " span.range { (words::range(figure, ratio)) } }
            }
            Verdict::TooFew(pairs) => {
                p.number.unclear { "no verdict" }
                p { "with " (at) ": " span.range { "only " (pairs) @if pairs == 1 { " pair" } @else { " pairs" } } }
            }
            Verdict::Unclear | Verdict::NoRatio => {
                p.number.unclear { "no clear difference" }
                p { "with " (at) ": " span.range { (ratio.pairs) " pairs" } }
            }
        }
    }
}

/// That of a style: only a clear difference has a colour.
pub fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        _ => "unclear",
    }
}

fn card(entry: &Entry, id: &str, content: Markup) -> Markup {
    html! {
        li.card {
            p.title {
                a href={ "#" (id) } { (entry.title()) }
                @if !entry.report.complete { " " span.incomplete { "incomplete" } }
            }
            (content)
        }
    }
}
