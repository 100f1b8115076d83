use roxmltree::{Document, Node};

use super::*;
use crate::report::number_format;
use crate::report::results::{Point, Series, Values};
use crate::report::sample_reports;

fn texts<'a>(svg: &'a Document) -> Vec<&'a str> {
    svg.descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect()
}

/// The corners of a line or an area.
fn corners(node: Node) -> Vec<(f64, f64)> {
    let number = |text: &str| text.parse().expect("a coordinate is a number");
    let attribute = |name| number(node.attribute(name).unwrap_or_default());
    match node.tag_name().name() {
        "line" => vec![
            (attribute("x1"), attribute("y1")),
            (attribute("x2"), attribute("y2")),
        ],
        "polyline" | "polygon" => node
            .attribute("points")
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|corner| corner.split_once(','))
            .map(|(x, y)| (number(x), number(y)))
            .collect(),
        _ => Vec::new(),
    }
}

/// What is drawn in a colour.
fn drawn(svg: &Document, attribute: &str, colour: palette::Colour) -> Vec<Vec<(f64, f64)>> {
    let colour = palette::hex(colour.light);
    svg.descendants()
        .filter(|node| node.attribute(attribute) == Some(&colour))
        .map(corners)
        .filter(|corners| !corners.is_empty())
        .collect()
}

#[test]
fn every_point_is_drawn_between_the_axes() {
    for report in sample_reports::all() {
        for chart in of_report(&report) {
            let image = chart.svg().unwrap();
            let svg = Document::parse(&image).unwrap();
            let axes = drawn(&svg, "stroke", palette::AXIS).concat();
            let least = |of: fn(&(f64, f64)) -> f64| axes.iter().map(of).fold(f64::MAX, f64::min);
            let greatest = |of: fn(&(f64, f64)) -> f64| axes.iter().map(of).fold(0.0, f64::max);
            let (left, right) = (least(|at| at.0), greatest(|at| at.0));
            let (top, bottom) = (least(|at| at.1), greatest(|at| at.1));

            for curve in &chart.curves {
                let colour = palette::CURVES[curve.position];
                let (ends, lines): (Vec<_>, Vec<_>) = drawn(&svg, "stroke", colour)
                    .into_iter()
                    .partition(|line| line.iter().all(|at| at.0 > right));
                // It leads to the name.
                assert_eq!(ends.len(), 1, "{}", chart.title);
                // The curve, and the range of each of its points.
                assert_eq!(lines.len(), 1 + curve.points.len(), "{}", chart.title);
                for (x, y) in lines.concat() {
                    let inside = (left..=right).contains(&x) && (top..=bottom).contains(&y);
                    assert!(inside, "{}: {x}, {y}", chart.title);
                }
                let markers = drawn(&svg, "fill", colour);
                assert_eq!(markers.len(), 1 + curve.points.len(), "{}", chart.title);
            }
        }
    }
}

#[test]
fn everything_has_its_name() {
    let report = sample_reports::pingpong();
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    assert_eq!(
        texts(&svg),
        [
            "Round trips per second",
            "pingpong, higher is better",
            "idle listeners",
            "10",
            "100",
            "1,000",
            "10,000",
            "0",
            "10",
            "100",
            "1,000",
            // Beside the last points.
            "pinpoint",
            "stock",
            // At the last points, the first ones, and the others; the higher one is above.
            "2,400",
            "16.3",
            "2,500",
            "1,500",
            "2,056",
            "2,987",
            "1,563",
            "161",
        ]
    );
    assert_eq!(
        svg.root_element().attribute("aria-label"),
        Some(
            "Chart, Round trips per second: pingpong, higher is better, by idle listeners, for \
             stock, pinpoint"
        )
    );
}

#[test]
fn values_do_not_cover_each_other() {
    let mut report = sample_reports::pingpong();
    for point in &mut report.points {
        point.series[1] = Series {
            target: point.series[1].target.clone(),
            ..point.series[0].clone()
        };
    }
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    // Both curves are the same: one has its values above, and the other one below.
    let values = report.points.len() * 2;
    let mut places: Vec<(&str, &str)> = svg
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter_map(|node| Some((node.attribute("x")?, node.attribute("y")?)))
        .collect();
    assert!(places.len() > values);
    places.sort_unstable();
    assert!(
        places.windows(2).all(|pair| pair[0] != pair[1]),
        "{places:?}"
    );
}

/// With as many points as the record of `commit`, at which the last server differs from the
/// others by this factor.
fn writers(factor: f64) -> Report {
    let mut report = sample_reports::pingpong();
    let point = report.points[0].clone();
    report.targets.push(report.targets[1].clone());
    report.targets[2].name = "third".to_owned();
    let points = (0..7).map(|power: i32| {
        let mut point = point.clone();
        point.x = 1 << power;
        let series = |(at, target): (usize, &str)| {
            let factor = [1.0, 0.98, factor][at];
            let value = factor * (2000.0 + 100.0 * f64::from(power));
            let run = Values::from([(report.figures[0].name.clone(), value)]);
            Series::of(target.to_owned(), vec![run], None)
        };
        let targets = ["stock", "pinpoint", "third"].into_iter().enumerate();
        point.series = targets.map(series).collect();
        point
    });
    report.points = points.collect();
    report
}

#[test]
fn a_server_that_is_close_to_the_others_has_its_values() {
    for factor in [0.9, 0.97, 0.99, 1.01, 1.1, 2.0] {
        let report = writers(factor);
        let image = of_report(&report)[0].svg().unwrap();
        let svg = Document::parse(&image).unwrap();
        let texts = texts(&svg);
        for point in &report.points {
            let summary = point.series[2].summary[&report.figures[0].name];
            let value = number_format::of_figure(&report.figures[0], summary.median);
            assert!(
                texts.contains(&value.as_str()),
                "{factor}: {value} in {texts:?}"
            );
        }
    }
}

#[test]
fn a_line_below_others_is_wider() {
    let report = writers(1.0);
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let curves = svg
        .descendants()
        .filter(|node| node.has_tag_name("polyline") && corners(*node).len() == 7);
    let curves: Vec<(&str, u32)> = curves
        .filter_map(|node| {
            let width = node.attribute("stroke-width")?.parse().ok()?;
            Some((node.attribute("stroke")?, width))
        })
        .collect();
    let colours: Vec<_> = curves.iter().map(|(colour, _)| *colour).collect();
    // In the order in which they are drawn, the baseline first.
    let expected = [0, 1, 2].map(|at: usize| palette::hex(palette::CURVES[at].light));
    assert_eq!(colours, expected);
    assert!(curves.is_sorted_by(|a, b| a.1 > b.1), "{curves:?}");
}

#[test]
fn names_at_the_ends_do_not_cover_each_other() {
    let mut report = writers(0.99);
    for (at, name) in ["PostgreSQL 15", "PostgreSQL 19", "pg_pinpoint on 15"]
        .iter()
        .enumerate()
    {
        report.targets[at].name = (*name).to_owned();
        for point in &mut report.points {
            point.series[at].target = (*name).to_owned();
        }
    }
    let chart = &of_report(&report)[0];
    let image = chart.svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let mut places: Vec<(i32, i32)> = svg
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter(|node| {
            node.text()
                .is_some_and(|text| text.contains('P') || text.contains("_"))
        })
        .filter_map(|node| {
            let number = |name| node.attribute(name)?.parse().ok();
            Some((number("x")?, number("y")?))
        })
        .collect();
    places.sort_by_key(|(_, y)| *y);
    assert!(places.len() >= 3, "{places:?}");
    assert!(
        places.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 160),
        "{places:?}"
    );
    assert!(places.iter().all(|(x, _)| *x == places[0].0), "{places:?}");
}

#[test]
fn long_names_are_above_the_curves() {
    let mut report = sample_reports::pingpong();
    let name = "a_name_without_a_place_to_divide_it".to_owned();
    report.targets[1].name = name.clone();
    for point in &mut report.points {
        point.series[1].target = name.clone();
    }
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let texts = texts(&svg);
    let place = |text: &str| texts.iter().position(|other| *other == text);
    assert!(
        place(&name).unwrap() < place("idle listeners").unwrap(),
        "{texts:?}"
    );
}

#[test]
fn more_listeners_are_further_right_and_more_round_trips_higher() {
    let report = sample_reports::pingpong();
    let chart = &of_report(&report)[0];
    let image = chart.svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let lines = drawn(&svg, "stroke", palette::CURVES[0]);
    let curve = lines.iter().find(|line| line.len() == 4).unwrap();
    assert!(curve.is_sorted_by(|a, b| a.0 < b.0), "{curve:?}");
    // Stock gets slower and slower, and down is where y is greater.
    assert!(curve.is_sorted_by(|a, b| a.1 < b.1), "{curve:?}");
}

#[test]
fn a_single_point_has_its_values() {
    let mut report = sample_reports::pingpong();
    report.points.truncate(1);
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let texts = texts(&svg);
    assert!(texts.ends_with(&["2,500", "1,500"]), "{texts:?}");
}

#[test]
fn names_are_data() {
    let name = "<b>&'\"]]>";
    let mut report = sample_reports::pingpong();
    report.benchmark = name.to_owned();
    report.axis.label = name.to_owned();
    report.figures[0].label = name.to_owned();
    report.targets[0].name = name.to_owned();
    for point in &mut report.points {
        point.series[0].target = name.to_owned();
    }
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let named = texts(&svg)
        .into_iter()
        .filter(|text| text.starts_with(name));
    assert_eq!(named.count(), 4);
}

#[test]
fn long_texts_take_several_lines() {
    let mut report = sample_reports::pingpong();
    report.figures[0].label = "a word ".repeat(30);
    for count in 0..8 {
        let name = format!("a_long_name_{count}");
        report.targets.push(report.targets[0].clone());
        report.targets.last_mut().unwrap().name = name.clone();
        for point in &mut report.points {
            let mut series = point.series[0].clone();
            series.target = name.clone();
            point.series.push(series);
        }
    }
    let image = of_report(&report)[0].svg().unwrap();
    let svg = Document::parse(&image).unwrap();
    let lines = texts(&svg).into_iter().filter(|text| text.contains("word"));
    assert!(lines.count() > 2);
    let ends = svg
        .descendants()
        .filter_map(|node| node.attribute("x")?.parse::<u32>().ok());
    assert!(ends.max().unwrap() < SIZE.0);
}

#[test]
fn a_target_that_was_not_measured_has_no_curve() {
    let mut report = sample_reports::pingpong();
    let only_stock = |point: &mut Point| point.series.truncate(1);
    report.points.iter_mut().for_each(only_stock);
    let chart = &of_report(&report)[0];
    let targets: Vec<_> = chart.curves.iter().map(|curve| curve.target).collect();
    assert_eq!(targets, ["stock"]);

    report.points.clear();
    assert_eq!(Chart::of(&report, &report.figures[0], ""), None);
}
