//! `report --markdown`: the figures, tables and charts of Markdown files, from records.
//!
//! A comment says what stands between it and `<!-- end -->`:
//!
//! ```text
//! <!-- figure pingpong@1000: pinpoint-15/stock-15 -->146<!-- end --> times as fast
//!
//! <!-- table
//! Round trips with 1,000 idle listeners = pingpong@1000: stock-15 pinpoint-15 pinpoint-15/stock-15
//! commit.notify_tps: stock-15 pinpoint-15 pinpoint-15/stock-15
//! -->
//! | | stock 15 | pg_pinpoint | ratio |
//! | --- | ---: | ---: | ---: |
//! <!-- end -->
//!
//! <!-- chart pingpong: stock-15 pinpoint-15 -->
//! <img src="docs/images/pingpong.svg" width="480" alt="...">
//! <!-- end -->
//! ```
//!
//! [`source`](super::source) tells how a source is written. A line of
//! a table with @X makes one row of medians; one without makes a row for each point, which
//! begins with X and has the ranges of the runs. A ratio has its interval everywhere. The label
//! before the = is the next cell. The two lines of a table's heading are written by hand. The
//! file of a chart is that which the image names.
//!
//! `<!-- check -->` is the result of the check of the method, in which servers are compared with
//! themselves.
//!
//! `<!-- repeated pingpong repeated/pingpong-1 -->` is how many intervals of these two records overlap.
//!
//! `headline` and `headlines` are a figure and a table whose intervals have more confidence,
//! for what people read alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::chart;
use super::comment::{CLOSE, Comment, Kind, OPEN};
use super::interval::Confidence;
use super::number_format;
use super::repeated::Agreement;
use super::results::{CHECK, Point, Records};
use super::slower;
use super::source::{self, At, EMPTY, Source};
use super::table::{Cell, row};
use super::verdict::Differences;

const END: &str = "<!-- end -->";

/// A page with the figures of the records, and its charts: the path that the page has for
/// each, and the SVG.
#[derive(Debug, PartialEq)]
pub struct Filled {
    pub text: String,
    pub charts: Vec<(String, String)>,
}

/// Brings the figures of these files, and their charts, up to date. It is an error if one of
/// them lists where pg_pinpoint is slower, and does not list all of it.
pub fn update(records: &Records, files: &[impl AsRef<Path>]) -> anyhow::Result<()> {
    let mut pages = Vec::new();
    for file in files {
        let file = file.as_ref();
        let cannot = |what| format!("could not {what} \"{}\"", file.display());
        let text = fs::read_to_string(file).with_context(|| cannot("read"))?;
        let filled = fill(&text, records).with_context(|| format!("in {}", file.display()))?;
        if filled.text != text {
            fs::write(file, &filled.text).with_context(|| cannot("write"))?;
            println!("{}", file.display());
        }
        for (path, svg) in filled.charts {
            let path = file.with_file_name(path);
            fs::write(&path, svg).with_context(|| format!("could not write {}", path.display()))?;
        }
        pages.push(filled.text);
    }
    let missing = slower::missing(records, &pages)?;
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    ensure!(
        missing.is_empty(),
        "\"Where it is slower\" does not list\n{}",
        missing.join("\n")
    );
    Ok(())
}

/// A page with everything between its comments made anew.
pub fn fill(page: &str, records: &Records) -> anyhow::Result<Filled> {
    let mut text = String::new();
    let mut charts = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(OPEN) {
        let length = rest[at..].find(CLOSE).context("a comment has no end")? + CLOSE.len();
        let (done, after) = rest.split_at(at + length);
        text.push_str(done);
        rest = after;
        let content = &done[at + OPEN.len()..done.len() - CLOSE.len()];
        let Some(comment) = Comment::parse(content) else {
            continue;
        };
        let place = || format!("\"{}\"", content.trim());
        let end = rest.find(END).filter(|end| {
            let next = rest.find(OPEN);
            next.is_none_or(|next| next >= *end)
        });
        let (old, after) = rest.split_at(end.with_context(|| format!("{} has no end", place()))?);
        match comment.kind {
            Kind::Figure => text.push_str(&figure(comment, records).with_context(place)?),
            Kind::Table => text.push_str(&table(comment, old, records).with_context(place)?),
            Kind::Check => text.push_str(&check(records)),
            Kind::Repeated => text.push_str(&repeated(comment, records).with_context(place)?),
            Kind::Chart => {
                charts.push(image(comment.text, old, records).with_context(place)?);
                text.push_str(old);
            }
        }
        text.push_str(END);
        rest = &after[END.len()..];
    }
    text.push_str(rest);
    Ok(Filled { text, charts })
}

/// How often servers differ from themselves.
fn check(records: &Records) -> String {
    let reports = records.iter().filter(|(name, _)| name.starts_with(CHECK));
    match Differences::of(reports.map(|(_, report)| report)) {
        Some(differences) => differences.to_string(),
        None => "not measured".to_owned(),
    }
}

/// How many intervals of two records overlap.
fn repeated(comment: Comment, records: &Records) -> anyhow::Result<String> {
    let names: Vec<&str> = comment.text.split_whitespace().collect();
    let &[first, second] = &names[..] else {
        bail!("a comparison has the names of two records");
    };
    let record = |name| source::record(name, records);
    let agreement = Agreement::of(record(first)?, record(second)?);
    Ok(agreement
        .context("they have no interval in common")?
        .to_string())
}

/// One number.
fn figure(comment: Comment, records: &Records) -> anyhow::Result<String> {
    let source = Source::parse(comment.text, records)?;
    let &[column] = &source.columns[..] else {
        bail!("a figure has one target");
    };
    let confidence = confidence(comment);
    let cell = match source.at {
        At::Each => bail!("a figure has one @X, or @*"),
        At::One(x) => source.cell(source.part().point(x)?, column, confidence)?,
        At::Pooled => Cell::with_verdict(&source.pooled(column, confidence)?, confidence),
    };
    Ok(cell.alone)
}

fn confidence(comment: Comment) -> Confidence {
    match comment.is_headline {
        true => Confidence::Headline,
        false => Confidence::Usual,
    }
}

/// The heading as it is, and a row for each place.
fn table(comment: Comment, old: &str, records: &Records) -> anyhow::Result<String> {
    let heading: Vec<&str> = old
        .lines()
        .filter(|line| !line.is_empty())
        .take(2)
        .collect();
    ensure!(
        heading.len() == 2 && heading.iter().all(|line| line.starts_with('|')),
        "the two lines of the heading are missing"
    );
    let mut lines: Vec<String> = heading.into_iter().map(str::to_owned).collect();
    for (label, source) in comment.lines() {
        let source = Source::parse(source, records)?;
        for (x, cells) in rows(&source, confidence(comment))? {
            let label = label.map(str::to_owned);
            lines.push(row(x.into_iter().chain(label).chain(cells)));
        }
    }
    Ok(format!("\n{}\n", lines.join("\n")))
}

/// Of each row of a table, X if there are several of them, and the cells of the columns.
fn rows(
    source: &Source,
    confidence: Confidence,
) -> anyhow::Result<Vec<(Option<String>, Vec<String>)>> {
    let cells = |cell: &dyn Fn(&str) -> anyhow::Result<String>| {
        let columns = source.columns.iter();
        let cells = columns.map(|&column| match column {
            EMPTY => Ok(String::new()),
            column => cell(column),
        });
        cells.collect::<anyhow::Result<Vec<String>>>()
    };
    match source.at {
        At::Pooled => {
            let pooled = |column: &str| {
                let ratio = source.pooled(column, confidence)?;
                Ok(Cell::with_verdict(&ratio, confidence).alone)
            };
            Ok(vec![(None, cells(&pooled)?)])
        }
        At::One(x) => {
            let point = source.part().point(x)?;
            let alone = |column: &str| Ok(source.cell(point, column, confidence)?.alone);
            Ok(vec![(None, cells(&alone)?)])
        }
        At::Each => {
            let part = source.part();
            let row = |point: &Point| {
                let cell = |column: &str| Ok(source.cell(point, column, confidence)?.with_range);
                let x = number_format::whole(point.x as f64);
                Ok((Some(x), cells(&cell)?))
            };
            part.report.points_of(part.workload).map(row).collect()
        }
    }
}

/// The path that an image names, and what it shows.
fn image(source: &str, old: &str, records: &Records) -> anyhow::Result<(String, String)> {
    let path = [("src=\"", '"'), ("](", ')')]
        .into_iter()
        .find_map(|(before, after)| old.split_once(before)?.1.split_once(after))
        .context("there is no image")?
        .0;
    let source = Source::parse(source, records)?;
    let part = source.part();
    let mut shown = part.report.clone();
    shown
        .targets
        .retain(|target| source.columns.contains(&target.name.as_str()));
    ensure!(
        shown.targets.len() == source.columns.len(),
        "the targets are {}",
        part.targets()
    );
    let series = shown.points.iter_mut().flat_map(|point| &mut point.series);
    let names = series.map(|series| &mut series.target);
    for name in names.chain(shown.targets.iter_mut().map(|target| &mut target.name)) {
        *name = name_in_image(name);
    }
    let charts = chart::of_report(&shown);
    let chart = charts
        .iter()
        .find(|chart| chart.figure.name == source.figure.name && chart.workload == part.workload)
        .context("no chart shows this figure")?;
    Ok((path.to_owned(), chart.svg()?))
}

/// As the tables call it.
fn name_in_image(target: &str) -> String {
    match target.split_once('-') {
        Some(("stock", version)) => format!("PostgreSQL {version}"),
        Some(("pinpoint", version)) => format!("pg_pinpoint on {version}"),
        Some((name, version)) => format!("{name} on {version}"),
        None => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::report::results::{Kind as FigureKind, REPEATED};
    use crate::report::{results_folder, sample_reports};

    fn records() -> Records {
        Records::from([
            ("pingpong".to_owned(), sample_reports::pingpong()),
            ("decode".to_owned(), sample_reports::decode()),
            ("drift".to_owned(), sample_reports::drift()),
        ])
    }

    #[test]
    fn everything_between_the_comments_is_made_anew() {
        let page = "\
It is <!-- figure pingpong@1000: pinpoint/stock -->7<!-- end --> times as fast,
<!-- figure pingpong.p99_latency_usec@1000: stock --><!-- end --> microseconds. <!-- A note -->
It is <!-- headline pingpong@1000: pinpoint/stock --><!-- end --> times as fast, and over all points
<!-- figure pingpong@*: pinpoint/stock --><!-- end --> times.

<!-- table
Round trips = pingpong@1000: stock pinpoint pinpoint/stock stock/pinpoint
pingpong: stock pinpoint pinpoint/stock
all = pingpong@*: - - pinpoint/stock
-->
| | stock | pg_pinpoint |
| --- | ---: | ---: |
| old |
<!-- end -->

<!-- chart pingpong: stock pinpoint -->
<img src=\"images/pingpong.svg\" alt=\"\">
<!-- end -->
The end.
";
        let filled = fill(page, &records()).unwrap();
        insta::assert_snapshot!(filled.text);
        let [(path, svg)] = &filled.charts[..] else {
            panic!("there is one chart");
        };
        assert_eq!(path, "images/pingpong.svg");
        assert!(svg.starts_with("<svg "));
        assert_eq!(fill(&filled.text, &records()).unwrap(), filled);
    }

    #[test]
    fn counts_need_neither_six_runs_nor_an_interval() {
        let page = "<!-- figure drift@8: stock -->1<!-- end --> \
                    <!-- figure drift@8: stock-again/stock -->1<!-- end -->";
        let mut records = records();
        assert!(fill(page, &records).is_err());
        let drift = records.get_mut("drift").unwrap();
        drift.figures[0].kind = FigureKind::Count;
        let text = fill(page, &records).unwrap().text;
        assert!(
            text.contains("-->8,800<!--") && text.contains("-->0.925<!--"),
            "{text}"
        );
    }

    #[test]
    fn the_check_of_the_method_is_of_its_own_records() {
        let page = "<!-- check -->1<!-- end -->";
        let mut records = records();
        let text = |records: &Records| fill(page, records).unwrap().text;
        assert_eq!(text(&records), "<!-- check -->not measured<!-- end -->");
        let mut report = sample_reports::pingpong();
        report.targets[1].name = "stock-again".to_owned();
        for point in &mut report.points {
            point.series[1].target = "stock-again".to_owned();
        }
        records.insert(format!("{CHECK}pingpong"), report);
        let text = text(&records);
        assert!(
            text.starts_with("<!-- check -->a server compared with itself: "),
            "{text}"
        );
    }

    #[test]
    fn a_measurement_that_was_made_again_is_compared() {
        let mut records = records();
        records.insert(format!("{REPEATED}pingpong-1"), sample_reports::pingpong());
        let page = "<!-- repeated pingpong repeated/pingpong-1 -->1<!-- end -->";
        assert_eq!(
            fill(page, &records).unwrap().text,
            page.replace(">1<", ">8 of 8<")
        );
    }

    #[test]
    fn what_no_record_has_is_told() {
        let errors = [
            "repeated pingpong -->1<!-- end -->",
            "repeated pingpong nothing -->1<!-- end -->",
            "repeated pingpong drift -->1<!-- end -->",
            "figure pingpong@7: stock -->1<!-- end -->",
            "figure pingpong@1000: nobody -->1<!-- end -->",
            "figure pingpong.nothing@1000: stock -->1<!-- end -->",
            "figure nothing@1000: stock -->1<!-- end -->",
            "figure pingpong: stock -->1<!-- end -->",
            "figure pingpong@*: stock -->1<!-- end -->",
            "figure pingpong+pingpong@1000: stock -->1<!-- end -->",
            "figure drift@8: stock -->1<!-- end -->",
            "figure decode/single_transaction@1000: stock -->1<!-- end -->",
            "figure pingpong@1000: stock -->1",
            "table pingpong: stock -->\n<!-- end -->",
            "chart pingpong: stock -->\n<!-- end -->",
        ]
        .map(|text| {
            format!(
                "{:#}",
                fill(&format!("<!-- {text}"), &records()).unwrap_err()
            )
        });
        insta::assert_snapshot!(errors.join("\n"));
    }

    /// What `script/figures` does has nothing left to do.
    #[test]
    fn the_figures_of_the_documentation_are_those_of_the_records() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = root.join("docs/results");
        let records = if folder.exists() {
            results_folder::records(&folder).unwrap()
        } else {
            Records::new()
        };
        let mut pages = vec![root.join("README.md")];
        for folder in ["docs", "docs/results", "bench"] {
            let folder = root.join(folder);
            if !folder.exists() {
                continue;
            }
            for entry in fs::read_dir(folder).unwrap() {
                pages.push(entry.unwrap().path());
            }
        }
        pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
        assert!(pages.len() > 10);
        let mut figures = 0;
        let mut texts = Vec::new();
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            let filled = fill(&text, &records);
            let filled = filled.unwrap_or_else(|error| panic!("{}: {error:#}", page.display()));
            for (here, there) in text.lines().zip(filled.text.lines()) {
                assert_eq!(here, there, "{}: run script/figures", page.display());
            }
            assert_eq!(text, filled.text, "{}: run script/figures", page.display());
            for (path, svg) in filled.charts {
                let image = fs::read_to_string(page.with_file_name(&path)).unwrap_or_default();
                assert!(image == svg, "{path} is not up to date: run script/figures");
            }
            figures += text.matches(END).count();
            texts.push(text);
        }
        // Those of README.md, which comes first, are read alone.
        assert!(!texts[0].contains("<!-- figure ") && !texts[0].contains("<!-- table"));
        let missing = slower::missing(&records, &texts).unwrap();
        assert!(missing.is_empty(), "list where it is slower: {missing:?}");
        assert!(records.is_empty() || figures > 5, "{figures}");
    }
}
