//! Charts: one figure against the axis of its benchmark, a curve for each target.

mod direction;
mod draw;
mod palette;
#[cfg(test)]
mod tests;

use anyhow::{Context, anyhow};
use maud::{PreEscaped, html};
use plotters::prelude::{IntoDrawingArea, SVGBackend};

use super::results::{Figure, Kind, Report, Scale, Summary};

/// Of all charts, in tenths of a pixel. Small, so that they can be read at the width of a
/// phone, to which they shrink only a little.
const SIZE: (u32, u32) = (4400, 3100);

/// A pixel of the page. What is drawn is placed at whole units, which are smaller.
const PIXEL: u32 = 10;

/// What there is to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart<'a> {
    pub figure: &'a Figure,
    /// Empty if the benchmark has one workload.
    pub workload: &'a str,
    /// The figure.
    title: String,
    /// The benchmark, the workload if it has several, and which way is better.
    subtitle: String,
    x_label: &'a str,
    x_scale: Scale,
    /// A share or a multiple: 1 is to be seen.
    is_ratio: bool,
    curves: Vec<Curve<'a>>,
}

/// What one target made of it.
#[derive(Debug, Clone, PartialEq)]
struct Curve<'a> {
    target: &'a str,
    /// Which one of the report's targets this is: it has the same colour in all charts.
    position: usize,
    points: Vec<(f64, Summary)>,
}

/// All charts of a report: one for each figure that is drawn, for each workload with which
/// it was measured.
pub fn of_report(report: &Report) -> Vec<Chart<'_>> {
    let workloads = report.workloads();
    let charts = workloads.iter().flat_map(|workload| {
        let drawn = report.figures.iter().filter(|figure| figure.chart);
        drawn.filter_map(|figure| Chart::of(report, figure, workload))
    });
    charts.collect()
}

impl<'a> Chart<'a> {
    /// `None` if nothing was measured.
    fn of(report: &'a Report, figure: &'a Figure, workload: &'a str) -> Option<Self> {
        let curves: Vec<Curve> = report
            .targets
            .iter()
            .enumerate()
            .map(|(position, target)| {
                let points = report.points_of(workload).filter_map(|point| {
                    let summary = point.of_target(&target.name)?.summary.get(&figure.name)?;
                    Some((point.x as f64, *summary))
                });
                let mut points: Vec<_> = points.collect();
                points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
                Curve {
                    target: &target.name,
                    position,
                    points,
                }
            })
            .filter(|curve| !curve.points.is_empty())
            .collect();
        if curves.is_empty() {
            return None;
        }
        Some(Self {
            figure,
            workload,
            title: capitalized(&figure.label),
            subtitle: [&report.benchmark, workload, figure.kind.better()]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(", "),
            x_label: &report.axis.label,
            x_scale: report.axis.scale,
            is_ratio: figure.kind == Kind::Share,
            curves,
        })
    }

    /// An image that follows the reader's preference for light or dark pages.
    pub fn svg(&self) -> anyhow::Result<String> {
        let (width, height) = SIZE;
        let mut image = String::new();
        let area = SVGBackend::with_string(&mut image, SIZE).into_drawing_area();
        draw::draw(self, &area).map_err(|error| anyhow!("{error}"))?;
        drop(area);

        let content = image
            .split_once("<svg ")
            .and_then(|(_, rest)| rest.split_once('>'))
            .and_then(|(_, rest)| rest.rsplit_once("</svg>"))
            .map(|(content, _)| content)
            .context("plotters has not drawn an SVG image")?;
        let svg = html! {
            svg class="chart" xmlns="http://www.w3.org/2000/svg" width=(width / PIXEL) height=(height / PIXEL)
                viewBox={ "0 0 " (width) " " (height) }
                role="img" aria-label=(self.description()) {
                style { (PreEscaped(palette::style_sheet())) }
                (PreEscaped(content))
            }
        };
        Ok(svg.into_string())
    }

    /// For those who do not see it.
    fn description(&self) -> String {
        let targets: Vec<&str> = self.curves.iter().map(|curve| curve.target).collect();
        format!(
            "Chart, {}: {}, by {}, for {}",
            self.title,
            self.subtitle,
            self.x_label,
            targets.join(", ")
        )
    }
}

fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next()
        .map(|first| first.to_uppercase().chain(rest).collect())
        .unwrap_or_default()
}
