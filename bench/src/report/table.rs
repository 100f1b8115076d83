//! Tables of a figure: a row for each point, a column for each target, and one for each
//! comparison with the baseline.

use maud::{Markup, html};

use super::interval::Confidence;
use super::number_format;
use super::results::{Figure, Ratio, Report, Series};
use super::verdict;

/// A number as it is shown.
pub struct Cell {
    /// The median.
    pub alone: String,
    /// The same with the least and the greatest run. A ratio always has its interval instead.
    pub with_range: String,
    /// How many runs, or pairs of runs, it is from.
    pub runs: usize,
}

impl Cell {
    /// `None` if the figure was not measured.
    pub fn of_target(figure: &Figure, series: &Series) -> Option<Self> {
        let summary = series.summary.get(&figure.name)?;
        let runs = series
            .runs
            .iter()
            .filter(|run| run.contains_key(&figure.name))
            .count();
        let [median, min, max] = [summary.median, summary.min, summary.max]
            .map(|value| number_format::of_figure(figure, value));
        let with_range = match runs {
            1 => median.clone(),
            _ => format!("{median} ({min}-{max})"),
        };
        Some(Self {
            alone: median,
            with_range,
            runs,
        })
    }

    /// `None` if there is no ratio.
    pub fn of_ratio(figure: &Figure, series: &Series) -> Option<Self> {
        let ratio = series.ratio.get(&figure.name)?;
        Some(Self::with_verdict(ratio, Confidence::Usual))
    }

    pub fn with_verdict(ratio: &Ratio, confidence: Confidence) -> Self {
        Self::of_pairs(ratio, verdict::of(ratio, confidence))
    }

    /// A ratio of counts: they vary so little that they need no interval.
    pub fn of_counts(ratio: &Ratio) -> Self {
        Self::of_pairs(ratio, format!("{:.3}", ratio.median))
    }

    fn of_pairs(ratio: &Ratio, text: String) -> Self {
        Self {
            alone: text.clone(),
            with_range: text,
            runs: ratio.pairs,
        }
    }
}

pub struct Table {
    caption: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(caption: String, header: Vec<String>, rows: Vec<Vec<String>>) -> Self {
        Self {
            caption,
            header,
            rows,
        }
    }

    /// `None` if the figure was not measured with this workload.
    pub fn of(report: &Report, figure: &Figure, workload: &str) -> Option<Self> {
        if !report.has(figure, workload) {
            return None;
        }
        let targets: Vec<&str> = report.targets.iter().map(|t| t.name.as_str()).collect();
        let (&baseline, compared) = targets.split_first()?;
        let mut header = vec![report.axis.label.clone()];
        header.extend(targets.iter().map(|&target| target.to_owned()));
        header.extend(
            compared
                .iter()
                .map(|target| format!("{target} / {baseline}")),
        );
        let rows = report.points_of(workload).map(|point| {
            let value = |target| Cell::of_target(figure, point.of_target(target)?);
            let ratio = |target| Cell::of_ratio(figure, point.of_target(target)?);
            let values = targets.iter().map(|target| value(target));
            let cells = values.chain(compared.iter().map(|target| ratio(target)));
            let mut row = vec![number_format::whole(point.x as f64)];
            row.extend(cells.map(|cell| cell.map_or("-".to_owned(), |cell| cell.with_range)));
            row
        });
        let parts = [workload, &figure.label, figure.kind.better()];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Some(Self {
            caption: parts.join(", "),
            header,
            rows: rows.collect(),
        })
    }

    /// For a terminal, too.
    pub fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| lines().map(|cells| cells[column].chars().count()).max();
        let widths: Vec<usize> = (0..self.header.len()).filter_map(width).collect();
        let line = |cells: &Vec<String>| {
            let cells = cells.iter().zip(&widths);
            row(cells.map(|(cell, &width)| format!("{cell:>width$}")))
        };
        let rule = row(widths.iter().map(|&width| format!("{:->width$}", ":")));
        let mut text = vec![format!("{}\n", self.caption), line(&self.header), rule];
        text.extend(self.rows.iter().map(line));
        text.join("\n") + "\n"
    }

    pub fn html(&self) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label={ "Table: " (self.caption) } { table {
                caption { (self.caption) }
                thead { tr { @for cell in &self.header { th scope="col" { (cell) } } } }
                tbody {
                    @for row in &self.rows {
                        tr { @for cell in row { td { (cell) } } }
                    }
                }
            } }
        }
    }
}

/// A line of a table in Markdown.
pub fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |", cells.join(" | "))
}
