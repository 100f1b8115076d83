//! Reports about operations, whose places are not on an axis: all operations are in one
//! table.

use super::number_format;
use super::results::{Point, Report};
use super::table::Table;

/// The benchmark with such reports.
pub const BENCHMARK: &str = "instructions";

pub const INSTRUCTIONS: &str = "instructions";
pub const LIBRARY: &str = "library_instructions";
pub const SYSTEM_CALLS: &str = "system_calls";
pub const WAL_BYTES: &str = "wal_bytes";
pub const FIGURES: [&str; 4] = [INSTRUCTIONS, LIBRARY, SYSTEM_CALLS, WAL_BYTES];

/// Where nothing was measured.
const NOTHING: &str = "-";

pub fn tables(report: &Report) -> Vec<Table> {
    let table = |caption: &str, columns: &[Column]| {
        let mut header = vec!["operation".to_owned()];
        header.extend(columns.iter().map(|column| column.header.clone()));
        let rows = report.points.iter().map(|point| {
            let cells = columns.iter().map(|column| column.cell(point));
            [operation(point)].into_iter().chain(cells).collect()
        });
        Table::new(caption.to_owned(), header, rows.collect())
    };
    let targets: Vec<&str> = report.targets.iter().map(|t| t.name.as_str()).collect();
    let Some((baseline, compared)) = targets.split_first() else {
        return Vec::new();
    };
    let of = |figure, ending: &str| {
        let columns = targets.iter().map(|&target| {
            let header = format!("{target}{ending}");
            Column::new(header, target, figure, false)
        });
        columns.collect::<Vec<_>>()
    };
    let mut instructions = of(INSTRUCTIONS, "");
    for &target in compared {
        let header = format!("{target} / {baseline}");
        instructions.push(Column::new(header, target, INSTRUCTIONS, true));
        let header = format!("{target}, in the library");
        instructions.push(Column::new(header, target, LIBRARY, false));
    }
    let mut others = of(SYSTEM_CALLS, ", system calls");
    others.extend(of(WAL_BYTES, ", bytes of WAL"));
    vec![
        table("instructions of an operation", &instructions),
        table("system calls and WAL of an operation", &others),
    ]
}

fn operation(point: &Point) -> String {
    match point.x {
        0 => point.workload.clone(),
        x => format!("{} {}", point.workload, number_format::whole(x as f64)),
    }
}

/// The medians of a figure, or their ratios to the baseline.
struct Column<'a> {
    header: String,
    target: &'a str,
    figure: &'static str,
    is_ratio: bool,
}

impl<'a> Column<'a> {
    fn new(header: String, target: &'a str, figure: &'static str, is_ratio: bool) -> Self {
        Self {
            header,
            target,
            figure,
            is_ratio,
        }
    }

    fn cell(&self, point: &Point) -> String {
        let series = point.of_target(self.target);
        let cell = series.and_then(|series| match self.is_ratio {
            true => {
                let ratio = series.ratio.get(self.figure)?;
                Some(format!("{:.3}", ratio.median))
            }
            false => {
                let summary = series.summary.get(self.figure)?;
                Some(number_format::significant(summary.median))
            }
        });
        cell.unwrap_or_else(|| NOTHING.to_owned())
    }
}
