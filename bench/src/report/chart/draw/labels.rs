//! What stands beside curves: their names, and the values of their points.

use std::ops::Range;

use plotters::prelude::*;

use super::super::{Chart, Curve};
use super::{
    Drawn, LINE_HEIGHT, MARGIN_TOP, NAME_DISTANCE, Page, Plot, THIN_LINE_WIDTH, colour, font,
    marker, name,
};
use crate::report::number_format;
use crate::report::results::Summary;

const VALUE_SIZE: f64 = 148.0;
/// From the middle of a point to its value, and the height of the value.
const VALUE_DISTANCE: i32 = 70;
const VALUE_HEIGHT: i32 = 140;
/// So many values may stand above a point, and as many below it: of the ends of a curve, and of
/// the others.
const ROWS_OF_ENDS: i32 = 6;
const ROWS_OF_OTHERS: i32 = 2;
/// The rank of points that are no end of a curve.
const OTHERS: usize = 2;

impl Page<'_, '_> {
    /// The names of the curves at their ends, each at the height of its last point or, if there is
    /// no room, as close to it as possible.
    pub fn ends(&self, chart: &Chart, plot: &Plot, names: &[Vec<String>]) -> Drawn {
        let (columns, rows) = plot.get_pixel_range();
        let mut ends: Vec<End> = chart
            .curves
            .iter()
            .zip(names)
            .filter_map(|(curve, lines)| {
                let (x, Summary { median, .. }) = curve.points.last()?;
                let (_, y) = plot.map_coordinate(&(*x, *median));
                let height = lines.len() as i32 * LINE_HEIGHT;
                let top = y - height / 2;
                Some(End {
                    curve,
                    lines,
                    y,
                    top,
                    height,
                })
            })
            .collect();
        spread(&mut ends, &rows);

        for end in ends {
            let middle = end.top + LINE_HEIGHT / 2;
            let from = (columns.end + 20, end.y);
            let to = (columns.end + NAME_DISTANCE - 90, middle);
            let line = colour(end.curve).stroke_width(THIN_LINE_WIDTH);
            self.area.draw(&PathElement::new([from, to], line))?;
            self.area.draw(&marker(end.curve, to))?;
            let mut y = end.top + 20;
            for line in end.lines {
                let at = (columns.end + NAME_DISTANCE, y);
                self.area.draw_text(line, &name(end.curve), at)?;
                y += LINE_HEIGHT;
            }
        }
        Ok(())
    }

    /// The medians above or below their points: of the last points, the first ones and then the
    /// others, those for which there is room. The uppermost ones may stand above the plot.
    pub fn values(&self, chart: &Chart, plot: &Plot) -> Drawn {
        let (columns, rows) = plot.get_pixel_range();
        let mut values = values(chart, plot);
        let mut taken: Vec<_> = values.iter().map(|value| around(value.at)).collect();
        // Those that stand above first, so that others are below.
        values.sort_by_key(|value| (value.rank, !value.is_highest));

        for value in values {
            let style = font(VALUE_SIZE, FontStyle::Normal, colour(value.curve));
            let text = number_format::of_figure(chart.figure, value.median);
            let width = self.width(&text, &style)?;
            // Not on the axis.
            let first = columns.start + 30;
            let left = value.at.0 - width / 2;
            let left = left.clamp(first, (columns.end - width).max(first));
            let is_free = |(across, down): &Place| {
                down.start >= rows.start - MARGIN_TOP
                    && down.end <= rows.end
                    && !taken
                        .iter()
                        .any(|(x, y)| overlap(across, x) && overlap(down, y))
            };
            let place = value
                .tops()
                .map(|top| (left..left + width, top..top + VALUE_HEIGHT))
                .find(is_free);
            if let Some(place) = place {
                let at = (place.0.start, place.1.start);
                self.area.draw_text(&text, &style, at)?;
                taken.push(place);
            }
        }
        Ok(())
    }
}

/// From left to right, and from top to bottom.
type Place = (Range<i32>, Range<i32>);

/// The value of a point.
struct Value<'a> {
    curve: &'a Curve<'a>,
    median: f64,
    at: (i32, i32),
    /// Those of the last points come first, then those of the first ones.
    rank: usize,
    /// Is no other curve above?
    is_highest: bool,
}

impl Value<'_> {
    /// Where it may begin, the best place first.
    fn tops(&self) -> impl Iterator<Item = i32> {
        let (_, y) = self.at;
        let above_first = self.is_highest;
        let rows = match self.rank {
            OTHERS => ROWS_OF_OTHERS,
            _ => ROWS_OF_ENDS,
        };
        (0..rows).flat_map(move |row| {
            let above = y - VALUE_DISTANCE - (row + 1) * VALUE_HEIGHT;
            let below = y + VALUE_DISTANCE + row * VALUE_HEIGHT;
            match above_first {
                true => [above, below],
                false => [below, above],
            }
        })
    }
}

/// Of all points, those of the baseline last.
fn values<'a>(chart: &'a Chart, plot: &Plot) -> Vec<Value<'a>> {
    let of_curve = |curve: &'a Curve<'a>| {
        let last = curve.points.len() - 1;
        let points = curve.points.iter().enumerate();
        points.map(move |(number, &(x, Summary { median, .. }))| {
            let rank = [last, 0].iter().position(|&first| first == number);
            Value {
                curve,
                median,
                at: plot.map_coordinate(&(x, median)),
                rank: rank.unwrap_or(OTHERS),
                is_highest: is_highest(chart, x, median),
            }
        })
    };
    chart.curves.iter().rev().flat_map(of_curve).collect()
}

fn is_highest(chart: &Chart, x: f64, median: f64) -> bool {
    let mut points = chart.curves.iter().flat_map(|curve| &curve.points);
    points.all(|(at, there)| *at != x || there.median <= median)
}

/// What a marker takes.
fn around((x, y): (i32, i32)) -> Place {
    let radius = VALUE_DISTANCE - 10;
    (x - radius..x + radius, y - radius..y + radius)
}

/// A name at the end of a curve.
struct End<'a> {
    curve: &'a Curve<'a>,
    lines: &'a [String],
    /// Of the last point.
    y: i32,
    top: i32,
    height: i32,
}

/// Moves names so that they do not cover each other. All of them have room.
fn spread(ends: &mut [End], rows: &Range<i32>) {
    ends.sort_by_key(|end| end.top);
    let mut free_from = rows.start;
    for end in ends.iter_mut() {
        end.top = end.top.max(free_from);
        free_from = end.top + end.height;
    }
    let mut free_until = rows.end;
    for end in ends.iter_mut().rev() {
        end.top = end.top.min(free_until - end.height);
        free_until = end.top;
    }
}

fn overlap(a: &Range<i32>, b: &Range<i32>) -> bool {
    a.start < b.end && b.start < a.end
}
