//! A recorded run as a file: a line of JSON for each record, after a header.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Deserializer;

use crate::checker::record::{Header, Record};

/// Of the records that this program writes and reads.
pub const FORMAT: u32 = 2;

/// A file that is being written.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Recorder {
    pub fn create(path: &Path, header: &Header) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| cannot_write(path))?;
        let mut recorder = Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
        };
        recorder.write_line(header)?;
        Ok(recorder)
    }

    pub fn add(&mut self, record: &Record) -> anyhow::Result<()> {
        self.write_line(record)
    }

    fn write_line(&mut self, line: &impl serde::Serialize) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.file, line).with_context(|| cannot_write(&self.path))?;
        writeln!(self.file).with_context(|| cannot_write(&self.path))
    }

    pub fn finish(mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| cannot_write(&self.path))
    }
}

pub fn read(path: &Path) -> anyhow::Result<(Header, Vec<Record>)> {
    let name = path.display();
    let cannot_read =
        || format!("could not read \"{name}\": name a file that --record has written");
    let file = BufReader::new(File::open(path).with_context(cannot_read)?);
    let mut values = Deserializer::from_reader(file);
    let header = Header::deserialize(&mut values).with_context(cannot_read)?;
    ensure!(
        header.format == FORMAT,
        "\"{name}\" has format {}, and this pinpoint-bench reads {FORMAT}: use the version that \
         has written it",
        header.format
    );
    let records = values.into_iter().collect::<Result<_, _>>();
    Ok((header, records.with_context(cannot_read)?))
}

fn cannot_write(path: &Path) -> String {
    format!(
        "could not write to \"{}\": name another file",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checker::record::{Event, Moment};
    use crate::workload::Workload;

    #[test]
    fn what_was_written_is_read() {
        let folder = std::env::temp_dir().join(format!("pinpoint-record-{}", std::process::id()));
        let header = Header {
            format: FORMAT,
            workload: Workload {
                seed: 4711,
                channels: 8,
            },
            listeners: 2,
            timeout: Duration::from_secs(60),
        };
        let at = Moment::default() + Duration::from_millis(5);
        let records = vec![
            Record::Event(1, Event::Connected { pid: 7, at }),
            Record::Event(1, Event::Closed { is_complete: true }),
            Record::Round(at),
        ];
        let mut recorder = Recorder::create(&folder, &header).unwrap();
        for record in &records {
            recorder.add(record).unwrap();
        }
        recorder.finish().unwrap();
        let found = read(&folder);
        std::fs::write(&folder, "{}").unwrap();
        let damaged = read(&folder).unwrap_err();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(found.unwrap(), (header, records));
        assert!(damaged.to_string().contains("--record has written"));
    }
}
