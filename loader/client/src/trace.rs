//! Batches followed from their origin to their tensor, as a file for Perfetto
//! (<https://ui.perfetto.dev>).
//!
//! ```text
//!   consumer, receiving thread ──Told, bounded──▶ fb-trace ── Picture ──▶ File
//!                                                             picture.rs  file.rs
//! ```
//! A trainer never waits for the trace; only closing a loader does. Events that do not fit the
//! queue, or the file, is left out, and the file says how much that was.

mod file;
mod picture;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::clock::now_ns;
use forebay_wire::fork::Generation;
use forebay_wire::message::{Bytes, Came, Stage};
use serde::Serialize;

use file::File;
use picture::Picture;

/// Environment variable with the path of a job's trace.
pub const TRACE: &str = "FOREBAY_TRACE";

/// Events waiting for the writing thread: some hundred bytes each, and seconds of the fastest
/// consumers.
const WAITING: usize = 4096;

/// Events in one file. An event is some 150 bytes, and viewers read a few hundred megabytes of
/// them; a batch makes about twenty, so this follows some 50,000.
pub const EVENTS_MAX: u64 = 1 << 20;

/// Bytes that are written at once, at most, while more is told.
const WRITE: usize = 1 << 20;

/// History of a batch.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) epoch: u64,
    /// The run it belongs to, and its number there.
    pub(crate) run: u64,
    pub(crate) index: u64,
    pub(crate) samples: usize,
    pub(crate) bytes: Bytes,
    /// Shards of its samples, and the byte range in each.
    pub(crate) shards: Vec<(u32, u64, u64)>,
    /// Stages in the daemon.
    pub(crate) stages: Vec<Stage>,
    /// Arrival of its message,
    pub(crate) arrived_ns: u64,
    /// and how long it was decoded.
    pub(crate) decode: Stage,
    /// During which of that its bytes were brought to a GPU.
    pub(crate) brought: Vec<Range<u64>>,
}

/// Delivery of a batch to the consumer.
#[derive(Debug)]
pub(crate) struct Handed {
    /// From when it asked to when it had it,
    pub(crate) wait: Range<u64>,
    /// cause by cause, as it was booked.
    pub(crate) parts: Vec<Stage>,
}

enum Told {
    /// Something came in of one of the job's shards, which is called so where that may be shown.
    Came(Came, Option<String>),
    /// The consumer asks for a batch, and so is done with the one before.
    Asked(u64),
    /// It got one.
    Handed(Box<Followed>, Handed),
    /// Somebody waits until what was told before is written.
    Settle(Sender<()>),
    /// Nothing follows.
    End,
}

/// Owner of a trace.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Heading {
    /// The job's name.
    pub(crate) job: String,
    /// The trainer's process.
    pub(crate) pid: u32,
    /// Zero of its times, on `CLOCK_MONOTONIC`, in nanoseconds.
    pub(crate) begin_ns: u64,
}

/// Result of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Traced {
    /// File.
    pub path: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Dropped events: beyond [`EVENTS_MAX`], and batches and fetches faster than they could be
    /// written.
    pub left_out: u64,
}

/// A trace being written. Clones are one and the same.
#[derive(Debug, Clone)]
pub struct Trace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    told: Sender<Told>,
    left_out: Arc<AtomicU64>,
    writing: Mutex<Option<JoinHandle<Result<Traced>>>>,
    path: PathBuf,
    made_in: Generation,
}

impl Trace {
    /// Begins the trace of a job. If another loader writes to `path`, it is `path` with a number:
    /// `out-1.json` beside `out.json`, so that each rank and each loader has a file of its own.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(path: &Path, job: &str) -> Result<Self> {
        let heading = Heading { job: job.to_owned(), pid: std::process::id(), begin_ns: now_ns() };
        let (file, path) = File::create(path, &heading)?;
        let (sender, told) = bounded(WAITING);
        let left_out = Arc::<AtomicU64>::default();
        let writing = Writing {
            picture: Picture::new(&heading),
            file,
            left_out: left_out.clone(),
            settling: Vec::new(),
            path: path.clone(),
        };
        let writing = std::thread::Builder::new()
            .name("fb-trace".into())
            .spawn(move || writing.run(&told))
            .doing("start the thread that writes a trace")?;
        tracing::info!(path = %path.display(), "tracing batches");
        Ok(Self(Arc::new(Inner {
            told: sender,
            left_out,
            writing: Mutex::new(Some(writing)),
            path,
            made_in: Generation::now(),
        })))
    }

    /// Returns the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Writes what was told, and ends it; what is told afterwards is left out.
    ///
    /// # Errors
    /// If it could not be written; `Closed` if it was finished before.
    pub fn finish(&self) -> Result<Traced> {
        self.0
            .finish()
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Closed, "the trace is already finished")))
    }

    /// Waits until what was told so far is in the file. It goes on after it.
    pub(crate) fn settle(&self) {
        self.0.settle();
    }

    pub(crate) fn came(&self, came: Came, url: Option<String>) {
        self.0.tell(Told::Came(came, url));
    }

    pub(crate) fn asked(&self, asked_ns: u64) {
        self.0.tell(Told::Asked(asked_ns));
    }

    pub(crate) fn handed(&self, followed: Box<Followed>, handed: Handed) {
        self.0.tell(Told::Handed(followed, handed));
    }
}

impl Inner {
    fn tell(&self, told: Told) {
        if self.told.try_send(told).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn settle(&self) {
        // A forked child has no thread that writes.
        if !self.made_in.is_now() {
            return;
        }
        let (settled, written) = bounded(0);
        // Nothing is ever sent through it: the thread drops its end once it has written, and so
        // does a thread that failed, or a queue that nobody reads any more.
        let _ = self.told.send(Told::Settle(settled));
        let _ = written.recv();
    }

    fn finish(&self) -> Option<Result<Traced>> {
        // A forked child has no such thread; its parent's goes on.
        if !self.made_in.is_now() {
            return None;
        }
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // If it is gone, it says why.
        let _ = self.told.send(Told::End);
        Some(writing.join().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Closed, "the thread that writes a trace died"))
        }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.finish() {
            tracing::warn!(%error, "failed to write a trace");
        }
    }
}

/// The writing thread's belongings.
struct Writing {
    picture: Picture,
    file: File,
    left_out: Arc<AtomicU64>,
    /// Callers waiting until everything is written: dropping a sender releases its caller.
    settling: Vec<Sender<()>>,
    path: PathBuf,
}

impl Writing {
    fn run(mut self, told: &Receiver<Told>) -> Result<Traced> {
        let mut is_over = false;
        while !is_over {
            let Ok(first) = told.recv() else { break };
            let mut next = Some(first);
            while let Some(told_now) = next {
                is_over = matches!(told_now, Told::End);
                self.draw(told_now);
                let more = !is_over && self.file.waiting() < WRITE;
                next = if more { told.try_recv().ok() } else { None };
            }
            self.file.flush(self.left_out.load(Ordering::Relaxed))?;
            self.settling.clear();
        }
        let (events, left_out) = (self.file.events(), self.left_out.load(Ordering::Relaxed));
        Ok(Traced { path: self.path, events, left_out })
    }

    fn draw(&mut self, told: Told) {
        let (file, left_out) = (&mut self.file, &self.left_out);
        let mut missed = 0;
        let mut put = |event: &picture::Event| match file.events() < EVENTS_MAX {
            true => file.put(event),
            false => missed += 1,
        };
        match told {
            Told::Came(came, url) => {
                left_out.fetch_add(came.missed, Ordering::Relaxed);
                self.picture.came(&came, url.as_deref(), &mut put);
            }
            Told::Asked(asked_ns) => self.picture.asked(asked_ns, &mut put),
            Told::Handed(followed, handed) => self.picture.handed(&followed, &handed, &mut put),
            Told::Settle(settled) => self.settling.push(settled),
            Told::End => {}
        }
        left_out.fetch_add(missed, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]
mod tests {
    use forebay_wire::message::Work;

    use super::*;

    const PIECES: u64 = 1000;

    #[test]
    fn settled_trace_holds_all_events() {
        let folder = tempfile::tempdir().unwrap();
        let trace = Trace::create(&folder.path().join("out.json"), "job").unwrap();
        for round in 1..=3 {
            for piece in 0..PIECES {
                let work = Work::Fetched { from: piece, until: piece + 1 };
                let now = now_ns();
                trace.came(Came { shard: 0, work, start_ns: now, end_ns: now, missed: 0 }, None);
            }
            trace.settle();
            let text = std::fs::read_to_string(trace.path()).unwrap();
            let document: serde_json::Value = serde_json::from_str(&text).unwrap();
            let events = document["traceEvents"].as_array().unwrap();
            let slices = events.iter().filter(|event| event["ph"] == "X").count() as u64;
            assert_eq!(slices, round * PIECES);
        }
        trace.finish().unwrap();
        // Nobody writes any more, and nobody waits for it.
        trace.settle();
    }
}
