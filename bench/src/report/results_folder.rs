//! The subcommand `report`: reads the reports in a folder, and makes the page that shows
//! them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::markdown;
use super::page;
use super::results::{CHECK, Point, REPEATED, Records, Report, SCHEMA_VERSION};
use super::verdict::Differences;

/// Show results as one HTML page
///
/// Reads DIR/*.json, files that --json has written. Writes DIR/index.html, a
/// self-contained page with charts, and prints its path. If servers were compared with
/// themselves (--aa), it also prints how often they differ.
///
/// Example: pinpoint-bench report results
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Directory with the results; the page is written to it
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,

    /// Update the figures, tables and charts in this Markdown file, instead of writing the page
    /// (repeatable)
    ///
    /// Reads DIR/*.json, or DIR/*/*.json if DIR contains no such file. Of several files with the
    /// same name, the one in the last directory counts. The last directory DIR/*/aa has servers
    /// that are compared with themselves, and DIR/*/repeated has measurements that were made again. Each figure, table or chart follows a
    /// comment and ends with "<!-- end -->".
    ///
    /// "<!-- figure pingpong@1000: stock -->" is one number: the median of the target "stock".
    ///
    /// "<!-- figure pingpong@*: pinpoint/stock -->" is a ratio that is pooled over all X. It can
    /// be pooled over several workloads: "listen/listen_unique+listen/listen_common@*".
    ///
    /// "<!-- table pingpong: stock pinpoint/stock -->" is a table with a column for the target
    /// "stock" and a column for the ratio of "pinpoint" to "stock". Each line of the comment adds
    /// one row for each X, or only one row if it names X, as in "LABEL = pingpong@1000: stock".
    /// The two lines of the table's heading are kept. The cells of a column "-" are empty.
    ///
    /// "<!-- check -->" is how often servers differ from themselves.
    ///
    /// "<!-- repeated pingpong repeated/pingpong-1 -->" is how many of the intervals of ratios overlap
    /// in two records.
    ///
    /// "headline" and "headlines" are a figure and a table with 99 % intervals instead of 95 %.
    ///
    /// "<!-- chart pingpong: stock pinpoint -->" is an image. Its SVG file is written.
    ///
    /// A figure or table from fewer than six runs is an error. So is a pooled ratio that says that
    /// pg_pinpoint is slower, if a section "Where it is slower" does not list it.
    #[arg(long, value_name = "FILE")]
    pub markdown: Vec<PathBuf>,
}

impl ReportArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        if self.markdown.is_empty() {
            return write_page(&self.folder);
        }
        markdown::update(&records(&self.folder)?, &self.markdown)
    }
}

/// The reports in a folder, or in the folders in it, which are read in the order of their names.
pub fn records(folder: &Path) -> anyhow::Result<Records> {
    if !json_files(folder)?.is_empty() {
        return read(folder);
    }
    let mut folders = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<PathBuf>>>()?;
    folders.retain(|path| path.is_dir());
    folders.sort();
    let mut records = Records::new();
    for folder in &folders {
        records.extend(read(folder)?);
    }
    // Those of one folder belong together.
    for name in [CHECK, REPEATED] {
        let mut folders = folders.iter().rev().map(|folder| folder.join(name));
        if let Some(folder) = folders.find(|folder| folder.is_dir()) {
            let named = read(&folder)?.into_iter();
            records.extend(named.map(|(file, report)| (format!("{name}{file}"), report)));
        }
    }
    Ok(records)
}

/// Writes the page of all reports in a folder.
pub fn write_page(folder: &Path) -> anyhow::Result<()> {
    let records = read(folder)?;
    let page = page::render(&records)?;
    let path = folder.join("index.html");
    fs::write(&path, page).with_context(|| format!("could not write \"{}\"", path.display()))?;
    if let Some(differences) = Differences::of(records.values()) {
        println!("{differences}");
    }
    println!("{}", path.display());
    Ok(())
}

/// All files of a folder whose names end in `.json`. There is a warning for each that is no
/// report.
fn read(folder: &Path) -> anyhow::Result<Records> {
    let mut records = Records::new();
    for path in json_files(folder)? {
        let content =
            fs::read(&path).with_context(|| format!("could not read \"{}\"", path.display()))?;
        match parse(&content) {
            Ok(report) => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                records.insert(name.into_owned(), report);
            }
            Err(reason) => eprintln!("warning: \"{}\" is left out: {reason:#}", path.display()),
        }
    }
    ensure!(
        !records.is_empty(),
        "there is no report in \"{}\": name a folder with files that --json has written",
        folder.display()
    );
    Ok(records)
}

fn json_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let problem = || {
        format!(
            "could not read the folder \"{}\": name one with files that --json has written",
            folder.display()
        )
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(problem)? {
        let path = entry.with_context(problem)?.path();
        if path.extension() == Some("json".as_ref()) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn parse(content: &[u8]) -> anyhow::Result<Report> {
    let json: Value = serde_json::from_slice(content).context("it is not JSON")?;
    let version = json.get("schema_version");
    let version = version.context("it is no report of pinpoint-bench")?;
    ensure!(
        *version == SCHEMA_VERSION,
        "its schema_version is {version}, and this pinpoint-bench reads {SCHEMA_VERSION}: measure \
         again, or use the version that has written it"
    );
    let mut report: Report =
        serde_json::from_value(json).context("it is no complete report of pinpoint-bench")?;
    report.points.iter_mut().for_each(Point::compare_anew);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_reports;

    fn folder_with(reports: &[(&str, &Report)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, report) in reports {
            let json = serde_json::to_string(report).unwrap();
            fs::write(folder.path().join(name), json).unwrap();
        }
        folder
    }

    #[test]
    fn what_is_no_report_is_told() {
        let mut newer = sample_reports::pingpong();
        newer.schema_version += 1;
        let newer = serde_json::to_string(&newer).unwrap();
        let damaged = r#"{"schema_version": 2, "benchmark": "pingpong"}"#;
        let reasons = ["{", "{}", "[1]", &newer, damaged]
            .map(|content| format!("{:#}", parse(content.as_bytes()).unwrap_err()));
        insta::assert_snapshot!(reasons.join("\n"));
    }

    #[test]
    fn the_page_is_written_beside_the_results() {
        let mut early = sample_reports::drift();
        early.date = "2025-01-01T00:00:00Z".to_owned();
        let folder = folder_with(&[
            ("later.json", &sample_reports::pingpong()),
            ("now.json", &early),
        ]);
        let path = |name: &str| folder.path().join(name);
        fs::write(path("other.json"), "{}").unwrap();

        write_page(folder.path()).unwrap();

        let page = fs::read_to_string(path("index.html")).unwrap();
        let headings = page.split("<h2 ").skip(1);
        let headings: Vec<_> = headings
            .map(|rest| rest.split_once("</h2>").unwrap().0)
            .collect();
        assert_eq!(headings, ["id=\"report-0\">now", "id=\"report-1\">later"]);
    }

    #[test]
    fn a_record_without_intervals_gets_them() {
        let mut old = serde_json::to_value(sample_reports::pingpong()).unwrap();
        for point in old["points"].as_array_mut().unwrap() {
            for ratio in point["series"][1]["ratio"]
                .as_object_mut()
                .unwrap()
                .values_mut()
            {
                ratio.as_object_mut().unwrap().remove("interval").unwrap();
            }
        }
        let read = parse(old.to_string().as_bytes()).unwrap();
        assert_eq!(read, sample_reports::pingpong());
    }

    #[test]
    fn a_record_is_that_of_the_last_folder_that_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, report: &Report| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, serde_json::to_string(report).unwrap()).unwrap();
        };
        write("2026-01-01/pingpong.json", &sample_reports::alone());
        write("2026-02-01/pingpong.json", &sample_reports::pingpong());
        write("2026-01-01/commit.json", &sample_reports::commit());
        write("2026-01-01/aa/pingpong.json", &sample_reports::pingpong());
        write("2026-01-01/aa/commit.json", &sample_reports::commit());
        write("2026-02-01/aa/pingpong.json", &sample_reports::drift());
        write(
            "2026-02-01/repeated/pingpong-1.json",
            &sample_reports::pingpong(),
        );
        let records = records(folder.path()).unwrap();
        assert_eq!(records["repeated/pingpong-1"], sample_reports::pingpong());
        assert_eq!(records["pingpong"], sample_reports::pingpong());
        assert_eq!(records["aa/pingpong"], sample_reports::drift());
        assert_eq!(records["commit"], sample_reports::commit());
        assert_eq!(records.len(), 4);
    }

    #[test]
    fn a_folder_without_reports_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.json"), "1").unwrap();
        let error = write_page(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("there is no report in \""), "{error}");
        let error = write_page(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("could not read the folder \"/nowhere\": name one"));
    }
}
