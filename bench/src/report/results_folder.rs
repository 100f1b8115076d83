//! The subcommand `report`: reads the reports in a folder, and adds the page and
//! the charts that show them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use super::chart;
use super::markdown::{self, Records};
use super::page::{self, Entry};
use super::results::{Report, SCHEMA_VERSION};
use super::sentences;

/// Show results as one HTML page
///
/// Reads DIR/*.json, files that --json has written. Writes DIR/index.html, a
/// self-contained page, and each chart as SVG. Prints a summary of each benchmark.
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
    /// same name, the one in the last directory counts. Each figure, table or chart follows a
    /// comment and ends with "<!-- end -->".
    ///
    /// "<!-- figure pingpong@1000: stock -->" is one number: the median of the target "stock".
    ///
    /// "<!-- table pingpong: stock pinpoint/stock -->" is a table with a column for the target
    /// "stock" and a column for the ratio of "pinpoint" to "stock". Each line of the comment adds
    /// one row for each X, or only one row if it names X, as in "LABEL = pingpong@1000: stock".
    /// The two lines of the table's heading are kept.
    ///
    /// "<!-- chart pingpong: stock pinpoint -->" is an image. Its SVG file is written.
    ///
    /// A figure or table from fewer than six runs is an error.
    #[arg(long, value_name = "FILE")]
    pub markdown: Vec<PathBuf>,
}

impl ReportArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        if self.markdown.is_empty() {
            return run(&self.folder);
        }
        markdown::update(&records(&self.folder)?, &self.markdown)
    }
}

/// The reports in a folder, or in the folders in it, which are read in the order of their names.
pub fn records(folder: &Path) -> anyhow::Result<Records> {
    let mut folders = vec![folder.to_owned()];
    if json_files(folder)?.is_empty() {
        folders = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<Vec<PathBuf>>>()?;
        folders.retain(|path| path.is_dir());
        folders.sort();
    }
    let mut records = Records::new();
    for folder in folders {
        let contents = Contents::read(&folder)?;
        for warning in &contents.warnings {
            eprintln!("warning: {warning}");
        }
        records.extend(contents.entries.into_iter().map(|e| (e.name, e.report)));
    }
    Ok(records)
}

/// Writes the page and the charts of all reports in a folder, and prints a summary.
pub fn run(folder: &Path) -> anyhow::Result<()> {
    let contents = Contents::read(folder)?;
    for warning in &contents.warnings {
        eprintln!("warning: {warning}");
    }
    let page = contents.write(folder)?;
    for Entry { report, .. } in &contents.entries {
        for sentence in sentences::closing(report) {
            println!("{}: {sentence}", report.benchmark);
        }
    }
    println!("{}", page.display());
    Ok(())
}

/// What a folder holds.
#[derive(Debug)]
struct Contents {
    /// In the order in which they were measured.
    entries: Vec<Entry>,
    /// What was left out, and why: sentences.
    warnings: Vec<String>,
}

impl Contents {
    /// Of all files of the folder whose names end in `.json`.
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut entries = Vec::new();
        let mut warnings = Vec::new();
        for path in json_files(folder)? {
            let content = fs::read(&path)
                .with_context(|| format!("could not read \"{}\"", path.display()))?;
            match parse(&content) {
                Ok(report) => entries.push(Entry {
                    name: path
                        .file_stem()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned(),
                    report,
                }),
                Err(reason) => {
                    warnings.push(format!("\"{}\" is left out: {reason}", path.display()));
                }
            }
        }
        if entries.is_empty() {
            let reasons: String = warnings
                .iter()
                .map(|warning| format!("; {warning}"))
                .collect();
            bail!(
                "there is no report in \"{}\": name a folder with files that --json has \
                 written{reasons}",
                folder.display()
            );
        }
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.report.date.clone(), entry.name.clone());
            key(a).cmp(&key(b))
        });
        Ok(Self { entries, warnings })
    }

    /// Writes `index.html`, and an SVG file for each chart. Returns the page's path.
    fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        for Entry { name, report } in &self.entries {
            for chart in chart::of_report(report) {
                let file = chart_name(name, chart.workload, &chart.figure.name);
                write_file(&folder.join(format!("{file}.svg")), &chart.svg()?)?;
            }
        }
        let page = folder.join("index.html");
        write_file(&page, &page::render(&self.entries)?)?;
        Ok(page)
    }
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

/// Or says what it is instead of a report.
fn parse(content: &[u8]) -> Result<Report, String> {
    let json: Value =
        serde_json::from_slice(content).map_err(|error| format!("it is not JSON ({error})"))?;
    let (Some(version), Some(_)) = (json.get("schema_version"), json.get("benchmark")) else {
        return Err("it is JSON, but no report of pinpoint-bench".to_owned());
    };
    if *version != SCHEMA_VERSION {
        return Err(format!(
            "its schema_version is {version}, and this pinpoint-bench reads {SCHEMA_VERSION}: \
             measure again, or use the version that has written it"
        ));
    }
    serde_json::from_value(json)
        .map_err(|error| format!("it says that it is a report of pinpoint-bench, but {error}"))
}

/// Without its extension. Of what stands in a report only letters, digits and a
/// few signs can be part of it, as a name must not lead out of the folder.
fn chart_name(entry: &str, workload: &str, figure: &str) -> String {
    let fit = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let parts = [workload, figure]
        .into_iter()
        .filter(|part| !part.is_empty());
    let suffix: String = parts.map(|part| format!("-{part}")).collect();
    entry.to_owned() + &suffix.replace(|c| !fit(c), "_")
}

fn cannot_write(path: &Path) -> String {
    format!(
        "could not write to \"{}\": name a folder that can be written to",
        path.display()
    )
}

fn write_file(path: &Path, content: &str) -> anyhow::Result<()> {
    fs::write(path, content).with_context(|| cannot_write(path))
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
            .map(|content| parse(content.as_bytes()).unwrap_err());
        insta::assert_snapshot!(reasons.join("\n"));
    }

    #[test]
    fn the_page_and_the_charts_are_written_beside_the_results() {
        let mut early = sample_reports::drift();
        early.date = "2025-01-01T00:00:00Z".to_owned();
        let folder = folder_with(&[
            ("later.json", &sample_reports::pingpong()),
            ("now.json", &early),
        ]);
        let path = |name: &str| folder.path().join(name);
        fs::write(path("other.json"), "{}").unwrap();

        run(folder.path()).unwrap();

        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "index.html",
                "later-p99_latency_usec.svg",
                "later-round_trips_per_sec.svg",
                "later.json",
                "now-listen_unique-transactions_per_sec.svg",
                "now.json",
                "other.json",
            ]
        );
        let page = fs::read_to_string(path("index.html")).unwrap();
        let place = |heading: &str| page.find(heading).unwrap();
        assert!(place("<h2 id=\"now\">drift (now)") < place("<h2 id=\"later\">pingpong (later)"));
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
        let records = records(folder.path()).unwrap();
        assert_eq!(records["pingpong"], sample_reports::pingpong());
        assert_eq!(records["commit"], sample_reports::commit());
        assert_eq!(records.len(), 2);
    }

    #[test]
    fn a_folder_without_reports_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.json"), "1").unwrap();
        let error = run(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("there is no report in \""), "{error}");
        assert!(error.ends_with("it is JSON, but no report of pinpoint-bench"));
        let error = run(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("could not read the folder \"/nowhere\": name one"));
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        assert_eq!(
            chart_name("pg18", "../../etc/x", "tps"),
            "pg18-.._.._etc_x-tps"
        );
        assert_eq!(chart_name("pingpong", "", "rate"), "pingpong-rate");
    }
}
