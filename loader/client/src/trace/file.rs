//! A trace's file: events in the Trace Event Format, one a line.
//!
//! The file is whole whenever nobody writes to it. Each write puts events and the document's end
//! behind them, in one call, over the end that was there; so a job that is killed leaves a trace
//! that opens.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::Heading;
use super::picture::Event;

/// Files that are tried where others are being written: more loaders than run on one node.
const BESIDE: u32 = 1024;

/// Start of the file.
const BEGIN: &str = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

/// A file being written.
#[derive(Debug)]
pub(super) struct File {
    file: std::fs::File,
    /// Events that are not written yet, and where they begin.
    waiting: Vec<u8>,
    at: u64,
    events: u64,
    heading: serde_json::Value,
}

impl File {
    /// Makes a file at `path`, or beside it if that is being written by another; and which it is.
    pub(super) fn create(path: &Path, heading: &Heading) -> Result<(Self, PathBuf)> {
        let (file, path) = claim(path)?;
        let heading = serde_json::to_value(heading).expect("strings and numbers always encode");
        let (waiting, at) = (BEGIN.as_bytes().to_vec(), 0);
        let mut made = Self { file, waiting, at, events: 0, heading };
        made.flush(0)?;
        Ok((made, path))
    }

    /// Adds an event, to be written with the next [`File::flush`].
    pub(super) fn put(&mut self, event: &Event<'_>) {
        if self.events > 0 {
            self.waiting.extend(b",\n");
        }
        serde_json::to_writer(&mut self.waiting, event).expect("strings and numbers always encode");
        self.events += 1;
    }

    /// Bytes that are not written yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Events so far.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Writes what waits, and the document's end, which says how much was left out.
    pub(super) fn flush(&mut self, left_out: u64) -> Result<()> {
        let kept = self.waiting.len();
        let mut other = self.heading.clone();
        other["left_out"] = left_out.into();
        // It never gets shorter: its numbers only grow.
        self.waiting.extend(format!("\n],\"otherData\":{other}}}\n").as_bytes());
        self.file.write_all_at(&self.waiting, self.at).doing("write a trace")?;
        self.at += kept as u64;
        self.waiting.clear();
        Ok(())
    }
}

/// The first of `out.json`, `out-1.json`, … that nobody writes to, emptied.
fn claim(path: &Path) -> Result<(std::fs::File, PathBuf)> {
    for number in 0..BESIDE {
        let path = match number {
            0 => path.to_owned(),
            _ => beside(path, number),
        };
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file =
            opened.doing("make a trace").map_err(|error| error.at("path", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                file.set_len(0).doing("empty an old trace")?;
                return Ok((file, path));
            }
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => {
                let locked: std::io::Result<()> = Err(error.into());
                locked.doing("lock a trace").map_err(|error| error.at("path", path.display()))?;
            }
        }
    }
    Err(Error::new(ErrorKind::Full, "too many traces are written at the same time")
        .at("path", path.display())
        .advise("name another file"))
}

fn beside(path: &Path, number: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{number}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{number}"),
    };
    path.with_file_name(name)
}
