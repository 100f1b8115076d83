//! Drawing a chart: its heading, the names of its curves, and the curves.

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
const TITLE_SIZE: f64 = 180.0;
const TEXT_SIZE: f64 = 155.0;
const VALUE_SIZE: f64 = 145.0;
/// From the middle of a point to its value, and the height of the value.
const VALUE_DISTANCE: i32 = 70;
const VALUE_HEIGHT: i32 = 140;
const LINE_WIDTH: u32 = 20;
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
    let bottom = page.legend(chart, bottom)?;
    page.curves(chart, bottom)
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
        for line in self.lines(&chart.title, &title)? {
            self.area.draw_text(&line, &title, (BORDER, y))?;
            y += TITLE_HEIGHT;
        }
        for line in self.lines(&chart.subtitle, &text())? {
            self.area.draw_text(&line, &text(), (BORDER, y))?;
            y += LINE_HEIGHT;
        }
        Ok(y)
    }

    /// Divided between words so that it fits.
    fn lines(&self, text: &str, style: &TextStyle) -> Drawn<Vec<String>> {
        let room = SIZE.0 as i32 - 2 * BORDER;
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

    /// The names of the curves, in as many lines as they take. Returns where they end.
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

    fn curves(&self, chart: &Chart, top: i32) -> Drawn {
        let vertical = vertical(chart);
        let mut label_width = 0;
        for &tick in vertical.ticks() {
            label_width = label_width.max(self.width(&direction::label(tick), &text())?);
        }
        let label_width = label_width + 80;
        let length = SIZE.0 as i32 - label_width - 2 * BORDER;
        let horizontal = horizontal(chart, |label| {
            let width = self.width(label, &text()).unwrap_or(length);
            f64::from(width + 60) / f64::from(length)
        });

        let (_, below) = self.area.split_vertically(top + 60);
        let (x_ticks, y_ticks) = (horizontal.ticks().len(), vertical.ticks().len());
        let mut context = ChartBuilder::on(&below)
            .margin_left(BORDER)
            .margin_right(BORDER)
            .margin_bottom(60)
            // Half of the uppermost label.
            .margin_top(80)
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

        // The baseline last, as it is what the others are compared with.
        for curve in chart.curves.iter().rev() {
            let medians = curve.points.iter().map(|(x, y)| (*x, y.median));
            let ranges = curve.points.iter().map(|(x, y)| [(*x, y.min), (*x, y.max)]);
            let line = colour(curve).stroke_width(LINE_WIDTH);
            let range = colour(curve).stroke_width(THIN_LINE_WIDTH);
            context.draw_series(ranges.map(|range_ends| PathElement::new(range_ends, range)))?;
            context.draw_series(LineSeries::new(medians.clone(), line))?;
            context.draw_series(medians.map(|at| marker(curve, at)))?;
        }
        self.values(chart, context.plotting_area())
    }

    /// The medians above or below their points: of the last points, the first ones and then the
    /// others, those for which there is room. The uppermost one may stand above the plot.
    fn values(&self, chart: &Chart, plot: &Plot) -> Drawn {
        let (columns, rows) = plot.get_pixel_range();
        let mut labels = Vec::new();
        let mut taken = Vec::new();
        for curve in &chart.curves {
            let last = curve.points.len() - 1;
            for (number, &(x, Summary { median, .. })) in curve.points.iter().enumerate() {
                let rank = [last, 0].iter().position(|&first| first == number);
                let (x, y) = plot.map_coordinate(&(x, median));
                labels.push((rank.unwrap_or(2), curve, median, (x, y)));
                let radius = VALUE_DISTANCE - 10;
                taken.push((x - radius..x + radius, y - radius..y + radius));
            }
        }
        labels.sort_by_key(|(rank, ..)| *rank);

        for (_, curve, median, (x, y)) in labels {
            let style = font(VALUE_SIZE, FontStyle::Normal, colour(curve));
            let text = number_format::of_figure(chart.figure, median);
            let width = self.width(&text, &style)?;
            let left =
                (x - width / 2).clamp(columns.start, (columns.end - width).max(columns.start));
            let place = [
                y - VALUE_DISTANCE - VALUE_HEIGHT,
                y + VALUE_DISTANCE,
                y - 2 * VALUE_DISTANCE - VALUE_HEIGHT,
            ]
            .map(|top| (left..left + width, top..top + VALUE_HEIGHT))
            .into_iter()
            .find(|(across, down)| {
                down.start >= rows.start - VALUE_HEIGHT - 60
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

fn font(size: f64, style: FontStyle, colour: RGBColor) -> TextStyle<'static> {
    FontDesc::new(FontFamily::SansSerif, size, style).color(&colour)
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
