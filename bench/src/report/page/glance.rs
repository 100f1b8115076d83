//! "At a glance": one ratio of each measurement, that of its main figure at its last point.

use maud::{Markup, html};

use crate::report::interval::Confidence;
use crate::report::number_format;
use crate::report::operations;
use crate::report::results::{Point, Ratio, Report};
use crate::report::verdict;

/// A ratio that people read alone.
struct Headline {
    /// `pingpong, 1,000 idle listeners`
    place: String,
    /// `round trips per second, higher is better`
    figure: String,
    /// `stock 16.3`
    values: [String; 2],
    ratio: String,
    /// `None` if no difference was found.
    is_better: Option<bool>,
}

/// Nothing if nothing was compared.
pub fn section(reports: &[(&String, &Report)]) -> Markup {
    let headlines: Vec<Headline> = reports
        .iter()
        .flat_map(|(name, report)| headlines(name, report))
        .collect();
    html! {
        @if !headlines.is_empty() {
            h2 { "At a glance" }
            div.scroll tabindex="0" role="region" aria-label="Table: at a glance" { table.glance {
                thead { tr {
                    @for cell in ["measurement", "figure", "baseline", "compared", "ratio"] {
                        th scope="col" { (cell) }
                    }
                } }
                tbody {
                    @for headline in &headlines { (row(headline)) }
                }
            } }
            p.method {
                "Each ratio is the median of the ratios of paired runs, at the last point of its chart, with an "
                "interval that contains the true median with a probability of at least 99 %, or with the one that "
                "is stated. It is in colour if there is a difference: green if the figure is better, and red if it "
                "is worse."
            }
        }
    }
}

fn row(headline: &Headline) -> Markup {
    let class = match headline.is_better {
        Some(true) => "better",
        Some(false) => "worse",
        None => "unclear",
    };
    html! {
        tr {
            td { (headline.place) }
            td { (headline.figure) }
            @for value in &headline.values { td { (value) } }
            td class=(class) { (headline.ratio) }
        }
    }
}

fn headlines(name: &str, report: &Report) -> Vec<Headline> {
    // Its places are not on an axis.
    if report.benchmark == operations::BENCHMARK {
        return Vec::new();
    }
    let workloads = report.workloads().into_iter();
    let last = workloads.filter_map(|workload| report.points_of(workload).max_by_key(|p| p.x));
    last.flat_map(|point| at_point(name, report, point))
        .collect()
}

/// Of each target that is compared with the baseline.
fn at_point(name: &str, report: &Report, point: &Point) -> Vec<Headline> {
    let (Some(figure), Some((base, compared))) =
        (report.figures.first(), point.series.split_first())
    else {
        return Vec::new();
    };
    let place = [name.to_owned(), point.workload.clone()];
    let place = place.into_iter().filter(|part| !part.is_empty());
    let x = number_format::whole(point.x as f64);
    let place = place.chain([format!("{x} {}", report.axis.label)]);
    let place = place.collect::<Vec<_>>().join(", ");
    let label = match figure.kind.better() {
        "" => figure.label.clone(),
        better => format!("{}, {better}", figure.label),
    };
    let of_target = |series| -> Option<Headline> {
        let ratio = Ratio::of(&figure.name, series, base, Confidence::Headline)?;
        let values = [base, series].map(|series| {
            let median = series
                .summary
                .get(&figure.name)
                .map(|summary| summary.median);
            let median = median.map(|median| number_format::of_figure(figure, median));
            format!("{} {}", series.target, median.unwrap_or_default())
        });
        Some(Headline {
            place: place.clone(),
            figure: label.clone(),
            values,
            ratio: verdict::of(&ratio, Confidence::Headline),
            is_better: verdict::is_better(figure.kind, &ratio),
        })
    };
    compared.iter().filter_map(of_target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::Kind;
    use crate::report::sample_reports;

    fn page(report: &Report) -> String {
        section(&[(&"record".to_owned(), report)]).into_string()
    }

    #[test]
    fn only_a_difference_is_in_colour() {
        let mut report = sample_reports::pingpong();
        let cell = "<td class=\"better\">148 [134-160, 98.4 %]</td>";
        assert!(page(&report).contains(cell), "{}", page(&report));
        report.figures[0].kind = Kind::Time;
        assert!(page(&report).contains(&cell.replace("better", "worse")));

        let mut same = sample_reports::pingpong();
        for point in &mut same.points {
            point.series[1].runs = point.series[0].runs.clone();
        }
        let unclear = "<td class=\"unclear\">1.00 [1.00-1.00, 98.4 %], no difference found</td>";
        assert!(page(&same).contains(unclear), "{}", page(&same));
    }

    #[test]
    fn twelve_pairs_have_the_confidence() {
        let mut report = sample_reports::pingpong();
        for series in report.points.iter_mut().flat_map(|point| &mut point.series) {
            series.runs.extend(series.runs.clone());
            series.runs.truncate(12);
        }
        assert!(!page(&report).contains(" %]"), "{}", page(&report));
    }

    #[test]
    fn what_has_no_ratio_is_not_there() {
        assert_eq!(page(&sample_reports::alone()), "");
        let mut report = sample_reports::pingpong();
        report.points.clear();
        assert_eq!(page(&report), "");
        let few = page(&sample_reports::drift());
        assert!(
            few.contains("too few pairs") && !few.contains("better\">"),
            "{few}"
        );
    }
}
