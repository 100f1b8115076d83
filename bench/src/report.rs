//! The subcommand `report`: reads the reports in a folder, and adds the page and
//! the charts that show them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::assert::Condition;
use crate::chart::Chart;
use crate::cli::ConditionArgs;
use crate::page::{self, Entry};
use crate::results::{Report, SCHEMA_VERSION};

/// Shows results as one HTML page
///
/// Reads all files DIR/*.json that --json has written, and writes
/// DIR/index.html, which needs nothing else to be read, and each of its charts
/// as an SVG and a PNG file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder with the results, to which the page is added
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,

    #[command(flatten)]
    pub conditions: ConditionArgs,
}

/// Writes the page and the charts of all reports in a folder, prints which
/// conditions these meet, and returns whether they meet all.
pub fn run(folder: &Path, conditions: &[Condition]) -> anyhow::Result<bool> {
    let contents = Contents::read(folder)?;
    for condition in conditions {
        contents.check(condition)?;
    }
    for warning in &contents.warnings {
        eprintln!("warning: {warning}");
    }
    println!("{}", contents.write(folder)?.display());

    // All are judged, whatever comes of the first one.
    let unmet = conditions
        .iter()
        .filter(|condition| !contents.judge(condition));
    Ok(unmet.count() == 0)
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

    /// What a condition is about, which may be several reports of one benchmark.
    fn of_benchmark(&self, benchmark: &str) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.report.benchmark == benchmark)
    }

    fn check(&self, condition: &Condition) -> anyhow::Result<()> {
        let reports = self.entries.iter().map(|entry| &entry.report);
        let benchmarks: Vec<&str> = reports.map(|report| report.benchmark.as_str()).collect();
        condition.check_benchmark(&benchmarks)?;
        for Entry { name, report } in self.of_benchmark(condition.benchmark()) {
            condition
                .check_report(report)
                .with_context(|| format!("in {name}.json"))?;
        }
        Ok(())
    }

    /// Prints whether each report that the condition is about meets it, and returns
    /// whether all do.
    fn judge(&self, condition: &Condition) -> bool {
        let mut met = true;
        let several = self.of_benchmark(condition.benchmark()).count() > 1;
        for Entry { name, report } in self.of_benchmark(condition.benchmark()) {
            let verdict = condition.judge(report);
            if several {
                eprintln!("{verdict} in {name}.json");
            } else {
                eprintln!("{verdict}");
            }
            met &= verdict.passed;
        }
        met
    }

    /// Writes `index.html`, and an SVG and a PNG file for each chart. Returns the page's path.
    fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        for Entry { name, report } in &self.entries {
            for workload in report.workloads() {
                for figure in report.figures.iter().filter(|figure| figure.chart) {
                    let Some(chart) = Chart::of(report, figure, workload) else {
                        continue;
                    };
                    let file = chart_name(name, workload, &figure.name);
                    write_file(&folder.join(format!("{file}.svg")), &chart.svg()?)?;
                    let png = folder.join(format!("{file}.png"));
                    chart.write_png(&png).with_context(|| cannot_write(&png))?;
                }
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
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
            && path.is_file()
        {
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
    use crate::samples;

    fn json(report: &Report) -> String {
        serde_json::to_string(report).unwrap()
    }

    fn condition(text: &str) -> Condition {
        text.parse().unwrap()
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for report in samples::all() {
            assert_eq!(parse(json(&report).as_bytes()), Ok(report));
        }
    }

    #[test]
    fn what_is_no_report_is_told() {
        let mut newer = samples::pingpong();
        newer.schema_version += 1;
        let damaged = r#"{"schema_version": 1, "benchmark": "pingpong"}"#;
        let reasons = ["{", "{}", "[1]", &json(&newer), damaged]
            .map(|content| parse(content.as_bytes()).unwrap_err());
        insta::assert_snapshot!(reasons.join("\n"));
    }

    #[test]
    fn the_page_and_the_charts_are_written_beside_the_results() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut early = samples::notify();
        early.date = "2025-01-01T00:00:00Z".to_owned();
        fs::write(path("later.json"), json(&samples::pingpong())).unwrap();
        fs::write(path("now.json"), json(&early)).unwrap();
        fs::write(path("other.json"), "{}").unwrap();
        fs::write(path("other.txt"), "{").unwrap();

        let contents = Contents::read(folder.path()).unwrap();
        assert_eq!(contents.warnings.len(), 1);
        assert!(contents.warnings[0].contains("other.json\" is left out: "));
        let conditions = ["pingpong.ratio@1000>100", "notify.ratio@128<100"].map(condition);
        assert!(run(folder.path(), &conditions).unwrap());
        let unmet = ["pingpong.ratio@1000<100", "notify.ratio@128<100"].map(condition);
        assert!(!run(folder.path(), &unmet).unwrap());

        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "index.html",
                "later-round_trips_per_sec.png",
                "later-round_trips_per_sec.svg",
                "later.json",
                "now-notify_tps.png",
                "now-notify_tps.svg",
                "now.json",
                "other.json",
                "other.txt",
            ]
        );
        let page = fs::read_to_string(path("index.html")).unwrap();
        let place = |heading: &str| page.find(heading).unwrap();
        assert!(place("<h2 id=\"now\">notify (now)") < place("<h2 id=\"later\">pingpong (later)"));
    }

    #[test]
    fn a_condition_is_for_all_reports_of_its_benchmark() {
        let folder = tempfile::tempdir().unwrap();
        let mut slow = samples::pingpong();
        for point in &mut slow.points {
            for ratio in point.series[1].ratio.values_mut() {
                ratio.of_medians = 1.0;
            }
        }
        fs::write(folder.path().join("a.json"), json(&samples::pingpong())).unwrap();
        fs::write(folder.path().join("b.json"), json(&slow)).unwrap();
        let contents = Contents::read(folder.path()).unwrap();
        assert!(!contents.judge(&condition("pingpong.ratio@1000>100")));
        assert!(contents.judge(&condition("pingpong.ratio@1000>=1")));

        let unknown = contents.check(&condition("commit.ratio@1>1")).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "--assert 'commit.ratio@1>1': the benchmark is not \"commit\" here, but pingpong"
        );
        let unknown = contents
            .check(&condition("pingpong.ratio@7>1"))
            .unwrap_err();
        assert_eq!(
            format!("{unknown:#}"),
            "in a.json: --assert 'pingpong.ratio@7>1': 7 is not measured: name one of 0, 10, 100, \
             1000"
        );
    }

    #[test]
    fn what_was_interrupted_does_not_meet_a_condition_on_the_rest() {
        let mut report = samples::notify();
        assert!(!report.complete);
        report.points.truncate(1);
        let later = condition("notify.ratio@128>1");
        assert_eq!(later.check_report(&report), Ok(()));
        assert!(!later.judge(&report).passed);
    }

    #[test]
    fn a_folder_without_reports_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let error = run(folder.path(), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "there is no report in \"{path}\": name a folder with files that --json has written"
            )
        );
        fs::write(folder.path().join("x.json"), "1").unwrap();
        let error = run(folder.path(), &[]).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("x.json\" is left out: it is JSON, but no report of pinpoint-bench"),
            "{error}"
        );

        let error = run(Path::new("/nowhere"), &[]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("could not read the folder \"/nowhere\": name one"),
            "{error}"
        );
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
