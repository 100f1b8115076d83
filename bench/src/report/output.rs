//! Standard output and files for results.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use console::Term;

use super::export;
use super::results::Report;
use super::table::table;

/// Where the results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Also print the figures that have no chart (files always contain them)
    #[arg(long)]
    pub details: bool,

    /// Also write each run to FILE, as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Also write the report to FILE, as JSON: runs, settings, servers and machine
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Where results go. The files are opened before the measurement.
#[derive(Debug)]
pub struct Outputs {
    details: bool,
    csv: Option<OutputFile>,
    json: Option<OutputFile>,
}

impl Outputs {
    pub fn open(args: &OutputArgs) -> anyhow::Result<Self> {
        let csv = args.csv.as_deref().map(OutputFile::open).transpose()?;
        let json = args.json.as_deref().map(OutputFile::open).transpose()?;
        if let (Some(csv), Some(json)) = (&csv, &json) {
            ensure!(
                !csv.is_same(json)?,
                "--csv and --json both name \"{}\": name two files",
                json.path.display()
            );
        }
        Ok(Self {
            details: args.details,
            csv,
            json,
        })
    }

    /// What cannot be written to one place may still be to the others. The first
    /// error is returned.
    pub fn publish(self, report: &Report) -> anyhow::Result<()> {
        let printed = print(report, self.details).context("could not write to standard output");
        let csv = self
            .csv
            .map(|file| file.write(|out| export::write_csv(report, out)));
        let json = self
            .json
            .map(|file| file.write(|out| export::write_json(report, out)));
        for warning in &report.warnings {
            eprintln!("warning: {warning}");
        }
        printed?;
        csv.transpose()?;
        json.transpose()?;
        Ok(())
    }
}

fn print(report: &Report, details: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let width = Term::stdout().size_checked().map(|(_, columns)| columns);
    stdout.write_all(table(report, width, details).as_bytes())?;
    stdout.flush()
}

/// A file that is opened before the measurement, so that a path that cannot be
/// written is found out at once. What was in it before stays until there is
/// something to write, and a file that was not there goes away again if that
/// never comes.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    remove_on_drop: bool,
}

impl OutputFile {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let is_new = !path.exists();
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| cannot_write(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            remove_on_drop: is_new,
        })
    }

    /// Would the one replace what the other has written? Devices and pipes take both.
    fn is_same(&self, other: &Self) -> anyhow::Result<bool> {
        let identity = |file: &Self| -> anyhow::Result<_> {
            let metadata = file
                .file
                .metadata()
                .with_context(|| cannot_write(&file.path))?;
            Ok(metadata
                .is_file()
                .then_some((metadata.dev(), metadata.ino())))
        };
        let identity_of_self = identity(self)?;
        Ok(identity_of_self.is_some() && identity_of_self == identity(other)?)
    }

    /// Replaces the content of the file.
    pub fn write<E: Into<io::Error>>(
        mut self,
        content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> anyhow::Result<()> {
        self.replace(content)
            .with_context(|| cannot_write(&self.path))?;
        self.remove_on_drop = false;
        Ok(())
    }

    fn replace<E: Into<io::Error>>(
        &self,
        content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        let mut writer = BufWriter::new(&self.file);
        content(&mut writer).map_err(Into::into)?;
        writer.flush()
    }
}

fn cannot_write(path: &Path) -> String {
    format!(
        "could not write to \"{}\": name a file that can be written",
        path.display()
    )
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.remove_on_drop {
            // Nothing is lost if this fails: the file is empty.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &str) {
        OutputFile::open(path)
            .unwrap()
            .write(|out| out.write_all(content.as_bytes()))
            .unwrap();
    }

    #[test]
    fn the_content_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        write(&path, "long and old");
        write(&path, "new");
        assert_eq!(fs::read_to_string(path).unwrap(), "new");
    }

    #[test]
    fn without_a_result_nothing_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        fs::write(&old, "content").unwrap();
        drop(OutputFile::open(&new).unwrap());
        drop(OutputFile::open(&old).unwrap());
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(old).unwrap(), "content");
    }

    #[test]
    fn two_forms_do_not_go_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        let open = |csv, json| {
            Outputs::open(&OutputArgs {
                details: false,
                csv,
                json,
            })
        };
        let error = open(path("a"), path("./a")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "--csv and --json both name \"{}\": name two files",
                path("./a").unwrap().display()
            )
        );
        assert!(!path("a").unwrap().exists());
        open(path("a"), path("b")).unwrap();
        open(Some("/dev/null".into()), Some("/dev/null".into())).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_found_out_at_once() {
        let error = OutputFile::open(Path::new("/nowhere/results")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not write to \"/nowhere/results\": name a file that can be written"
        );
    }

    #[test]
    fn a_full_disk_is_reported() {
        let output = OutputFile::open(Path::new("/dev/full")).unwrap();
        let error = output.write(|out| out.write_all(b"x")).unwrap_err();
        let source = error.downcast_ref::<io::Error>().unwrap();
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        assert!(Path::new("/dev/full").exists());
    }
}
