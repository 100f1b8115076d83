//! Standard output, and the file for the results.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::json::json;
use super::results::Report;
use super::text::text;

/// Prints a report, and writes it to a file. What cannot be printed may still be written.
pub fn publish(report: &Report, file: Option<OutputFile>) -> anyhow::Result<()> {
    let printed = writeln!(io::stdout(), "{}", text(report));
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    if let Some(file) = file {
        file.write(&json(report)?)?;
    }
    printed.context("could not write to standard output")
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

    /// Replaces the content of the file.
    pub fn write(mut self, content: &str) -> anyhow::Result<()> {
        self.replace(content)
            .with_context(|| cannot_write(&self.path))?;
        self.remove_on_drop = false;
        Ok(())
    }

    fn replace(&mut self, content: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(content.as_bytes())
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

    #[test]
    fn the_content_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        for content in ["long and old", "new"] {
            OutputFile::open(&path).unwrap().write(content).unwrap();
        }
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
    fn a_full_disk_is_reported() {
        let output = OutputFile::open(Path::new("/dev/full")).unwrap();
        let error = output.write("x").unwrap_err();
        let source = error.downcast_ref::<io::Error>().unwrap();
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        assert!(Path::new("/dev/full").exists());
    }
}
