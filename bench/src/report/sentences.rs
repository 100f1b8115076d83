//! Comparisons in words.

use super::number_format;
use super::results::{Figure, Kind, Point, Ratio, Report, Series};
use super::verdict::{Place, Verdict, best_and_worst};

/// `180 times faster`, `1.03 times slower`; of shares, `3.4 times`.
pub fn times(figure: &Figure, ratio: f64) -> String {
    if ratio <= 0.0 {
        return format!("{} times", number_format::ratio(ratio));
    }
    let (multiple, word) = match figure.kind {
        Kind::Share | Kind::Count => return format!("{} times", number_format::ratio(ratio)),
        Kind::Rate if ratio < 1.0 => (1.0 / ratio, "slower"),
        Kind::Rate => (ratio, "faster"),
        Kind::Time if ratio > 1.0 => (ratio, "slower"),
        Kind::Time => (1.0 / ratio, "faster"),
    };
    format!("{} times {word}", number_format::ratio(multiple))
}

/// From the least to the greatest pair: `146 to 324 times in 7 pairs`.
pub fn range(figure: &Figure, ratio: &Ratio) -> String {
    let [least, greatest] = ends(figure, ratio);
    format!("{least} to {greatest} times in {} pairs", ratio.pairs)
}

/// The least and the greatest ratio, the other way round where `times` has them so.
pub fn ends(figure: &Figure, ratio: &Ratio) -> [String; 2] {
    let Ratio { min, max, .. } = *ratio;
    let is_turned = matches!(figure.kind, Kind::Rate | Kind::Time) && min > 0.0 && max < 1.0;
    let ends = if is_turned {
        [1.0 / max, 1.0 / min]
    } else {
        [min, max]
    };
    ends.map(number_format::ratio)
}

/// Where that is: `1,000 idle listeners`.
pub fn place(report: &Report, point: &Point) -> String {
    let count = number_format::whole(point.x as f64);
    let mut label = report.axis.label.clone();
    if point.x == 1 {
        // The first plural is that of the noun.
        let words = label.split(' ');
        let end = words.scan(0, |end, word| {
            *end += word.len() + 1;
            Some((word.ends_with('s'), *end - 2))
        });
        let plural = end.filter(|(is_plural, _)| *is_plural).map(|(_, s)| s);
        if let Some(s) = plural.into_iter().next() {
            label.remove(s);
        }
    }
    let place = format!("{count} {label}");
    if point.workload.is_empty() {
        place
    } else {
        format!("{place} ({})", point.workload)
    }
}

/// What was found for each target that is compared: a sentence about the place
/// where it does best, and one about that where it does worst.
pub fn closing(report: &Report) -> Vec<String> {
    let Some(figure) = report.figures.first() else {
        return Vec::new();
    };
    let mut sentences = Vec::new();
    for target in report.compared() {
        let baseline = report.baseline().unwrap_or_default();
        let Some((best, worst)) = best_and_worst(report, target) else {
            sentences.push(format!(
                "{target} cannot be compared with {baseline}: no ratio."
            ));
            continue;
        };
        let mut text = sentence(report, figure, &best, target, baseline);
        // What is not enough at one place is so at all of them.
        let is_other = best.verdict.is_clear() || best.verdict != worst.verdict;
        if best.point != worst.point && is_other {
            text.push(' ');
            text.push_str(&sentence(report, figure, &worst, target, baseline));
        }
        sentences.push(text);
    }
    sentences
}

fn sentence(
    report: &Report,
    figure: &Figure,
    place: &Place,
    target: &str,
    baseline: &str,
) -> String {
    let with = format!("With {}", self::place(report, place.point));
    match place.verdict {
        Verdict::Better | Verdict::Worse => {
            let ratio = &place.series.ratio[&figure.name];
            let value = |series: &Series| {
                let median = series.summary[&figure.name].median;
                number_format::of_figure(figure, median)
            };
            format!(
                "{with}, {target} is {} than {baseline}: {} against {} {} ({}).",
                times(figure, ratio.median),
                value(place.series),
                value(place.base),
                figure.label,
                range(figure, ratio)
            )
        }
        Verdict::TooFew(pairs) => format!(
            "{with}, {pairs} {} too few to tell {target} from {baseline}.",
            if pairs == 1 { "pair is" } else { "pairs are" }
        ),
        Verdict::Unclear => {
            let pairs = place.series.ratio[&figure.name].pairs;
            format!(
                "{with}, {pairs} pairs show no clear difference between {target} and {baseline}."
            )
        }
        Verdict::NoRatio => format!("{with}, there is no ratio of {target} to {baseline}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    #[test]
    fn faster_and_slower() {
        let figure = |kind| Figure::new("x", "x", kind);
        let texts = [
            (Kind::Rate, 180.4),
            (Kind::Rate, 0.97),
            (Kind::Time, 0.5),
            (Kind::Time, 1.72),
            (Kind::Share, 3.4),
            (Kind::Time, -0.3),
        ]
        .map(|(kind, ratio)| times(&figure(kind), ratio));
        assert_eq!(
            texts,
            [
                "180 times faster",
                "1.03 times slower",
                "2.00 times faster",
                "1.72 times slower",
                "3.40 times",
                "-0.30 times"
            ]
        );
    }

    #[test]
    fn closing_sentences() {
        let mut all = Vec::new();
        for report in sample_reports::all() {
            all.extend(closing(&report));
        }
        insta::assert_snapshot!(all.join("\n"));
    }
}
