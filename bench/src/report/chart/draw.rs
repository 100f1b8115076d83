//! Drawing a chart: its heading, the curves, and their names and values.

mod labels;

use std::f64::consts::TAU;
use std::io;
use std::ops::Add;
use std::sync::LazyLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{RGBColor, register_font};

use super::direction::{self, Direction};
use super::palette::{AXIS, BACKGROUND, CURVES, FAINT_TEXT, GRID, TEXT};
use super::{Chart, Curve, PIXEL, SIZE};

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
