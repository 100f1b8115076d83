//! Drawing a chart: its heading, the curves, and their names and values.

use std::f64::consts::TAU;
use std::io;
use std::ops::{Add, Range};
use std::sync::LazyLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{RGBColor, register_font};

use super::direction::{self, Direction};
use super::palette::{AXIS, BACKGROUND, CURVES, FAINT_TEXT, GRID, TEXT};
use super::{Chart, Curve, PIXEL, SIZE};
use crate::report::number_format;
use crate::report::results::Summary;

// All lengths are tenths of a pixel.
const BORDER: i32 = 120;
const TITLE_HEIGHT: i32 = 200;
const LINE_HEIGHT: i32 = 170;
const X_LABELS_HEIGHT: i32 = 420;
/// Above the plot half of the uppermost label, and below what stands there.
const MARGIN_TOP: i32 = 140;
const MARGIN_BOTTOM: i32 = 60;
const TITLE_SIZE: f64 = 180.0;
const TEXT_SIZE: f64 = 155.0;
const VALUE_SIZE: f64 = 148.0;
/// From the middle of a point to its value, and the height of the value.
const VALUE_DISTANCE: i32 = 70;
const VALUE_HEIGHT: i32 = 140;
/// So many values may stand above a point, and below it: of the ends of a curve, and of the
/// others.
const VALUE_ROWS: [i32; 2] = [6, 2];
const LINE_WIDTH: u32 = 20;
/// A line that is below others is so much wider for each of them, to be seen beside them.
const LINE_BELOW: u32 = 12;
const THIN_LINE_WIDTH: u32 = 10;
/// Corners, radius, and the part of a turn from which the first corner is on top:
/// what looks like a circle, a square, a triangle, a diamond.
const MARKERS: [(u8, f64, f64); 4] = [
    (24, 40.0, 0.0),
    (4, 50.0, 0.125),
    (3, 55.0, 0.0),
    (4, 55.0, 0.0),
];
/// The line and marker before a curve's name.
const KEY_LENGTH: i32 = 260;
/// From the plot to a name at the end of a curve, and the most that a name takes.
const NAME_DISTANCE: i32 = 230;
const NAME_WIDTH: i32 = 1300;

/// The font that a reader of an SVG has may be wider than that which is measured here.
const TEXT_ALLOWANCE: f64 = 1.15;

type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<io::Error>>;

/// A form at a place of a chart.
type Marker<'a, C> = <EmptyElement<C, SVGBackend<'a>> as Add<Polygon<(i32, i32)>>>::Output;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The part of a chart between the axes.
type Plot<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<Direction, Direction>>;

/// Draws on an area that is SIZE large.
pub fn draw(chart: &Chart, area: &Area) -> Drawn {
    LazyLock::force(&FONTS);
    let page = Page { area };
    area.fill(&BACKGROUND.light)?;
    let bottom = page.heading(chart)?;
    let names = page.names(
        chart,
        SIZE.1 as i32 - bottom - X_LABELS_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM,
    )?;
    let bottom = match names {
        Some(_) => bottom,
        None => page.legend(chart, bottom)?,
    };
    page.curves(chart, bottom, names.as_deref())
}

/// Those that are installed are not used: there may be none, and every chart
/// should look the same.
static FONTS: LazyLock<()> = LazyLock::new(|| {
    for (style, font) in [
        (FontStyle::Normal, notosans::REGULAR_TTF),
        (FontStyle::Bold, notosans::BOLD_TTF),
    ] {
        assert!(
            register_font("sans-serif", style, font).is_ok(),
            "the font of the program is one"
        );
    }
});

/// Where a chart is drawn.
struct Page<'a, 'b> {
    area: &'a Area<'b>,
}

impl<'a> Page<'_, 'a> {
    /// How long a text is, in whole pixels.
    fn width(&self, text: &str, style: &TextStyle) -> Drawn<i32> {
        let (width, _) = self.area.estimate_text_size(text, style)?;
        let pixels = f64::from(width) / f64::from(PIXEL) * TEXT_ALLOWANCE;
        Ok(pixels.ceil() as i32 * PIXEL as i32)
    }

    /// The title, and what is measured, in as many lines as that takes. Returns where it ends.
    fn heading(&self, chart: &Chart) -> Drawn<i32> {
        let title = font(TITLE_SIZE, FontStyle::Bold, TEXT.light);
        let mut y = BORDER - 40;
        let room = SIZE.0 as i32 - 2 * BORDER;
        for line in self.lines(&chart.title, &title, room)? {
            self.area.draw_text(&line, &title, (BORDER, y))?;
            y += TITLE_HEIGHT;
        }
        for line in self.lines(&chart.subtitle, &text(), room)? {
            self.area.draw_text(&line, &text(), (BORDER, y))?;
            y += LINE_HEIGHT;
        }
        Ok(y)
    }

    /// Divided between words so that it fits.
    fn lines(&self, text: &str, style: &TextStyle, room: i32) -> Drawn<Vec<String>> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            if let Some(line) = lines.last_mut() {
                let longer = format!("{line} {word}");
                if self.width(&longer, style)? <= room {
                    *line = longer;
                    continue;
                }
            }
            lines.push(word.to_owned());
        }
        Ok(lines)
    }

    /// The lines of each curve's name, if all names have room beside a plot of this height.
    fn names(&self, chart: &Chart, height: i32) -> Drawn<Option<Vec<Vec<String>>>> {
        let mut names = Vec::new();
        for curve in &chart.curves {
            let style = name(curve);
            let lines = self.lines(curve.target, &style, NAME_WIDTH)?;
            for line in &lines {
                if self.width(line, &style)? > NAME_WIDTH {
                    return Ok(None);
                }
            }
            names.push(lines);
        }
        let lines: usize = names.iter().map(Vec::len).sum();
        Ok((lines as i32 * LINE_HEIGHT <= height).then_some(names))
    }

    /// The names of the curves above them, in as many lines as they take. Returns where they end.
    fn legend(&self, chart: &Chart, top: i32) -> Drawn<i32> {
        let text = font(TEXT_SIZE, FontStyle::Normal, TEXT.light);
        let (mut x, mut y) = (BORDER, top + 40);
        for curve in &chart.curves {
            let width = KEY_LENGTH + self.width(curve.target, &text)?;
            if x > BORDER && x + width > SIZE.0 as i32 - BORDER {
                (x, y) = (BORDER, y + LINE_HEIGHT);
            }
            let (middle, length) = (y + LINE_HEIGHT / 2 - 25, KEY_LENGTH - 60);
            let ends = [(x, middle), (x + length, middle)];
            let style = colour(curve).stroke_width(LINE_WIDTH);
            self.area.draw(&PathElement::new(ends, style))?;
            self.area.draw(&marker(curve, (x + length / 2, middle)))?;
            self.area
                .draw_text(curve.target, &text, (x + KEY_LENGTH, y))?;
            x += width + 2 * BORDER;
        }
        Ok(y + LINE_HEIGHT)
    }

    /// With the names at their ends.
    fn curves(&self, chart: &Chart, top: i32, names: Option<&[Vec<String>]>) -> Drawn {
        let vertical = vertical(chart);
        let mut label_width = 0;
        for &tick in vertical.ticks() {
            label_width = label_width.max(self.width(&direction::label(tick), &text())?);
        }
        let label_width = label_width + 80;
        let right = match names {
            Some(names) => {
                let mut width = 0;
                for (curve, lines) in chart.curves.iter().zip(names) {
                    for line in lines {
                        width = width.max(self.width(line, &name(curve))?);
                    }
                }
                NAME_DISTANCE + width
            }
            None => BORDER,
        };
        let length = SIZE.0 as i32 - label_width - BORDER - right;
        let horizontal = horizontal(chart, |label| {
            let width = self.width(label, &text()).unwrap_or(length);
            f64::from(width + 60) / f64::from(length)
        });

        let (_, below) = self.area.split_vertically(top);
        let (x_ticks, y_ticks) = (horizontal.ticks().len(), vertical.ticks().len());
        let mut context = ChartBuilder::on(&below)
            .margin_left(BORDER)
            .margin_right(right)
            .margin_bottom(MARGIN_BOTTOM)
            .margin_top(MARGIN_TOP)
            .x_label_area_size(X_LABELS_HEIGHT)
            .y_label_area_size(label_width)
            .build_cartesian_2d(horizontal, vertical)?;
        context
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID.light.stroke_width(THIN_LINE_WIDTH))
            .axis_style(AXIS.light.stroke_width(THIN_LINE_WIDTH))
            .set_all_tick_mark_size(40)
            .label_style(text())
            .x_desc(chart.x_label)
            .axis_desc_style(text())
            .x_labels(x_ticks)
            .y_labels(y_ticks)
            .draw()?;

        // The baseline first, as what is compared with it is to be seen.
        for (above, curve) in (0..chart.curves.len() as u32).rev().zip(&chart.curves) {
            let medians = curve.points.iter().map(|(x, y)| (*x, y.median));
            let ranges = curve.points.iter().map(|(x, y)| [(*x, y.min), (*x, y.max)]);
            let line = colour(curve).stroke_width(LINE_WIDTH + above * LINE_BELOW);
            let range = colour(curve).stroke_width(THIN_LINE_WIDTH);
            context.draw_series(ranges.map(|range_ends| PathElement::new(range_ends, range)))?;
            context.draw_series(LineSeries::new(medians.clone(), line))?;
            context.draw_series(medians.map(|at| marker(curve, at)))?;
        }
        if let Some(names) = names {
            self.ends(chart, context.plotting_area(), names)?;
        }
        self.values(chart, context.plotting_area())
    }

    /// The names of the curves at their ends, each at the height of its last point or, if there is
    /// no room, as close to it as possible.
    fn ends(&self, chart: &Chart, plot: &Plot, names: &[Vec<String>]) -> Drawn {
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
    fn values(&self, chart: &Chart, plot: &Plot) -> Drawn {
        let (columns, rows) = plot.get_pixel_range();
        let mut labels = Vec::new();
        let mut taken = Vec::new();
        // Those of the baseline last.
        for curve in chart.curves.iter().rev() {
            let last = curve.points.len() - 1;
            for (number, &(x, Summary { median, .. })) in curve.points.iter().enumerate() {
                let rank = [last, 0].iter().position(|&first| first == number);
                let is_highest = chart.curves.iter().all(|other| {
                    let mut points = other.points.iter();
                    points.all(|(at, there)| *at != x || there.median <= median)
                });
                let (x, y) = plot.map_coordinate(&(x, median));
                labels.push((rank.unwrap_or(2), curve, median, is_highest, (x, y)));
                let radius = VALUE_DISTANCE - 10;
                taken.push((x - radius..x + radius, y - radius..y + radius));
            }
        }
        // Those that stand above first, so that others are below.
        labels.sort_by_key(|(rank, _, _, is_highest, _)| (*rank, !is_highest));

        for (rank, curve, median, is_highest, (x, y)) in labels {
            let style = font(VALUE_SIZE, FontStyle::Normal, colour(curve));
            let text = number_format::of_figure(chart.figure, median);
            let width = self.width(&text, &style)?;
            // Not on the axis.
            let first = columns.start + 30;
            let left = (x - width / 2).clamp(first, (columns.end - width).max(first));
            let place = places(y, is_highest, VALUE_ROWS[usize::from(rank == 2)])
                .map(|top| (left..left + width, top..top + VALUE_HEIGHT))
                .find(|(across, down)| {
                    down.start >= rows.start - MARGIN_TOP
                        && down.end <= rows.end
                        && !taken
                            .iter()
                            .any(|(x, y)| overlap(across, x) && overlap(down, y))
                });
            if let Some((across, down)) = place {
                let at = (across.start, down.start);
                self.area.draw_text(&text, &style, at)?;
                taken.push((across, down));
            }
        }
        Ok(())
    }
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

/// Where the value of a point may begin, the best place first.
fn places(y: i32, above_first: bool, rows: i32) -> impl Iterator<Item = i32> {
    (0..rows).flat_map(move |row| {
        let above = y - VALUE_DISTANCE - (row + 1) * VALUE_HEIGHT;
        let below = y + VALUE_DISTANCE + row * VALUE_HEIGHT;
        match above_first {
            true => [above, below],
            false => [below, above],
        }
    })
}

fn font(size: f64, style: FontStyle, colour: RGBColor) -> TextStyle<'static> {
    FontDesc::new(FontFamily::SansSerif, size, style).color(&colour)
}

fn name(curve: &Curve) -> TextStyle<'static> {
    font(TEXT_SIZE, FontStyle::Normal, colour(curve))
}

fn text() -> TextStyle<'static> {
    font(TEXT_SIZE, FontStyle::Normal, FAINT_TEXT.light)
}

/// Curves also differ in the form of their points.
fn marker<'a, C>(curve: &Curve, at: C) -> Marker<'a, C> {
    let (count, radius, turn) = MARKERS[curve.position % MARKERS.len()];
    let corner = |corner| {
        let angle = TAU * (f64::from(corner) / f64::from(count) + turn);
        let at = [radius * angle.sin(), -radius * angle.cos()];
        at.map(|length| length.round() as i32).into()
    };
    let corners: Vec<(i32, i32)> = (0..count).map(corner).collect();
    EmptyElement::at(at) + Polygon::new(corners, colour(curve).filled())
}

fn overlap(a: &Range<i32>, b: &Range<i32>) -> bool {
    a.start < b.end && b.start < a.end
}

fn colour(curve: &Curve) -> RGBColor {
    CURVES[curve.position % CURVES.len()].light
}

fn horizontal(chart: &Chart, room: impl Fn(&str) -> f64) -> Direction {
    let points = chart.curves.iter().flat_map(|curve| &curve.points);
    let values: Vec<f64> = points.map(|(x, _)| *x).collect();
    Direction::of_choices(chart.x_scale, &values, room)
}

fn vertical(chart: &Chart) -> Direction {
    let points = chart.curves.iter().flat_map(|curve| &curve.points);
    let mut values: Vec<f64> = points.flat_map(|(_, y)| [y.min, y.median, y.max]).collect();
    if chart.is_ratio {
        values.push(1.0);
    }
    Direction::of_measurements(chart.figure.scale, &values)
}
