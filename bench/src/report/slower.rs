//! The pooled ratios that say that pg_pinpoint is slower. One section of the documentation lists
//! all of them.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use super::comment;
use super::interval::Confidence;
use super::results::{Kind, OURS, REPEATED, Ratio, Records, Report};
use super::source::{At, Source};
use super::verdict::{self, LEAST_PAIRS};

/// The heading of the section.
const HEADING: &str = "\n## Where it is slower\n";

/// What one pooled ratio is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pool {
    /// Records and workloads.
    parts: BTreeSet<(String, String)>,
    figure: String,
    column: String,
}

impl Pool {
    fn covers(&self, other: &Self) -> bool {
        (&self.figure, &self.column) == (&other.figure, &other.column)
            && other.parts.is_subset(&self.parts)
    }
}

impl Display for Pool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part = |(record, workload): &(String, String)| match workload.as_str() {
            "" => record.clone(),
            workload => format!("{record}/{workload}"),
        };
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        write!(f, "{}.{}@*: {}", parts.join("+"), self.figure, self.column)
    }
}

/// Those that are not listed where they should be: of all figures, at all points of a workload, and
/// all that pages state. Nothing if no page has the section.
pub fn missing(records: &Records, pages: &[String]) -> anyhow::Result<Vec<Pool>> {
    let Some(section) = pages.iter().find_map(|page| section(page)) else {
        return Ok(Vec::new());
    };
    let mut slower: BTreeSet<Pool> = records
        .iter()
        .filter(|(name, report)| report.complete && !name.starts_with(REPEATED))
        .flat_map(|(name, report)| of_record(name, report))
        .collect();
    for page in pages {
        let stated = of_page(page, records)?.into_iter();
        slower.extend(stated.filter(|(_, slower)| *slower).map(|(pool, _)| pool));
    }
    let listed = of_page(section, records)?;
    slower.retain(|pool| !listed.iter().any(|(listed, _)| listed.covers(pool)));
    Ok(slower.into_iter().collect())
}

fn section(page: &str) -> Option<&str> {
    let (_, section) = page.split_once(HEADING)?;
    Some(section.split("\n## ").next().unwrap_or_default())
}

/// Those of a record whose interval lies on the wrong side.
fn of_record(name: &str, report: &Report) -> Vec<Pool> {
    let mut slower = Vec::new();
    for workload in report.workloads() {
        let points: Vec<_> = report.points_of(workload).collect();
        for (target, base) in report.compared() {
            let series = points
                .iter()
                .filter_map(|point| Some((point.of_target(target)?, point.of_target(&base)?)));
            let series: Vec<_> = series.collect();
            for figure in &report.figures {
                let ratio = Ratio::pooled(&figure.name, &series, Confidence::Usual);
                if ratio.is_some_and(|ratio| is_slower(figure.kind, &ratio)) {
                    slower.push(Pool {
                        parts: BTreeSet::from([(name.to_owned(), workload.to_owned())]),
                        figure: figure.name.clone(),
                        column: format!("{target}/{base}"),
                    });
                }
            }
        }
    }
    slower
}

fn is_slower(kind: Kind, ratio: &Ratio) -> bool {
    ratio.pairs >= LEAST_PAIRS && verdict::is_better(kind, ratio) == Some(false)
}

/// Those that a page states, and whether they are slower.
fn of_page(page: &str, records: &Records) -> anyhow::Result<Vec<(Pool, bool)>> {
    let mut pools = Vec::new();
    for text in comment::sources(page) {
        let source = Source::parse(text, records)?;
        if source.at != At::Pooled {
            continue;
        }
        for column in source
            .columns
            .iter()
            .filter(|column| column.starts_with(OURS))
        {
            let ratio = source.pooled(column, Confidence::Usual)?;
            let parts = source.parts().iter();
            let pool = Pool {
                parts: parts
                    .map(|part| (part.record.to_owned(), part.workload.to_owned()))
                    .collect(),
                figure: source.figure.name.clone(),
                column: (*column).to_owned(),
            };
            pools.push((pool, is_slower(source.figure.kind, &ratio)));
        }
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    /// With a server of ours that is slower by a fifth at all points.
    fn records() -> Records {
        let mut report = sample_reports::pingpong();
        for point in &mut report.points {
            let mut runs = point.series[0].runs.clone();
            for run in &mut runs {
                run.values_mut().for_each(|value| *value *= 0.8);
            }
            point.series[1].runs = runs;
        }
        Records::from([("pingpong".to_owned(), report)])
    }

    fn missing(pages: &[&str]) -> Vec<String> {
        let pages: Vec<String> = pages.iter().map(|&page| page.to_owned()).collect();
        let missing = super::missing(&records(), &pages).unwrap();
        missing.iter().map(Pool::to_string).collect()
    }

    #[test]
    fn every_slower_pool_is_to_be_listed() {
        const SLOWER: &str = "pingpong.round_trips_per_sec@*: pinpoint/stock";
        let other = "# A\n\n## Other\n\n";
        let listed =
            format!("## Where it is slower\n\n| <!-- figure {SLOWER} -->1<!-- end --> |\n");
        assert_eq!(missing(&[other]), [""; 0]);
        assert_eq!(missing(&[&format!("# A\n\n{listed}")]), [""; 0]);
        // It is slower, so its latencies are shorter by the same factor.
        assert_eq!(
            missing(&["# A\n\n## Where it is slower\n\n## B\n"]),
            [SLOWER]
        );
        assert_eq!(
            missing(&[&format!(
                "# A\n\n## Where it is slower\n\n## B\n<!-- figure {SLOWER} -->1<!-- end -->\n"
            )]),
            [SLOWER]
        );
        assert_eq!(
            missing(&[&format!("# A\n\n{}", listed.replace("@*", "@1000"))]),
            [SLOWER]
        );
    }

    #[test]
    fn a_figure_that_is_not_drawn_counts_also_at_a_single_point() {
        let mut records = records();
        let report = records.get_mut("pingpong").unwrap();
        report.points.truncate(1);
        report.figures.reverse();
        report
            .figures
            .iter_mut()
            .for_each(|figure| figure.chart = false);
        let page = "# A\n\n## Where it is slower\n".to_owned();
        let missing = super::missing(&records, &[page]).unwrap();
        let missing: Vec<String> = missing.iter().map(Pool::to_string).collect();
        assert_eq!(missing, ["pingpong.round_trips_per_sec@*: pinpoint/stock"]);
    }

    #[test]
    fn a_pool_of_more_workloads_covers_one_of_them() {
        let pool = |parts: &[&str], column: &str| Pool {
            parts: parts
                .iter()
                .map(|&part| ("listen".to_owned(), part.to_owned()))
                .collect(),
            figure: "tps".to_owned(),
            column: column.to_owned(),
        };
        let both = pool(&["a", "b"], "pinpoint-15/stock-15");
        assert!(both.covers(&pool(&["a"], "pinpoint-15/stock-15")));
        assert!(both.covers(&both));
        assert!(!both.covers(&pool(&["a"], "pinpoint-19/stock-19")));
        assert!(!pool(&["a"], "pinpoint-15/stock-15").covers(&both));
    }
}
