//! Writing one shard after the other.
//!
//! Its rule: a file under its final name is a whole archive: it is written beside it, synced, and
//! linked into place, and a file that is already there is never replaced.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use tar::{Builder, Header};

use super::pattern::Pattern;

/// When a shard is full. A sample is never split, so a shard may exceed `bytes` by one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most samples in one shard.
    pub samples: u64,
    /// The most payload bytes in one shard.
    pub bytes: u64,
}

impl Default for Limits {
    /// WebDataset's own: 100 000 samples or 3 GB, whichever comes first.
    fn default() -> Self {
        Self { samples: 100_000, bytes: 3_000_000_000 }
    }
}

/// A shard that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Where it lies.
    pub path: PathBuf,
    /// How many samples it holds.
    pub samples: u64,
    /// How long the file is, in bytes.
    pub bytes: u64,
}

/// Writes samples into numbered shards.
pub struct Writer {
    pattern: Pattern,
    limits: Limits,
    open: Option<Open>,
    done: Vec<Packed>,
}

struct Open {
    builder: Builder<BufWriter<File>>,
    partial: Partial,
    path: PathBuf,
    samples: u64,
    payload: u64,
}

/// An unfinished file; it goes away unless it was put into place.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // After success the name is gone already; after a failure there is no one left to tell.
        drop(fs::remove_file(&self.0));
    }
}

impl Writer {
    /// A writer of shards named by `pattern`, such as `out-{:06d}.tar`, from number 0.
    ///
    /// # Errors
    /// `Invalid` if the pattern has no number or a limit is zero.
    pub fn new(pattern: &str, limits: Limits) -> Result<Self> {
        if limits.samples == 0 || limits.bytes == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a shard needs room for one sample"));
        }
        Ok(Self { pattern: Pattern::parse(pattern)?, limits, open: None, done: Vec::new() })
    }

    /// Starts a sample whose fields hold `bytes` of payload, in a new shard if this one is full.
    ///
    /// # Errors
    /// What the file system says; `Invalid` if the next shard's name is taken.
    pub fn start_sample(&mut self, bytes: u64) -> Result<()> {
        let full = self.open.as_ref().is_some_and(|open| {
            let payload = open.payload.saturating_add(bytes);
            open.samples >= self.limits.samples || payload > self.limits.bytes
        });
        if full {
            self.close()?;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => Open::create(self.pattern.path(self.done.len() as u64))?,
        };
        let open = self.open.insert(open);
        open.samples += 1;
        open.payload = open.payload.saturating_add(bytes);
        Ok(())
    }

    /// Adds a field of the current sample: member `name` with exactly `len` bytes from `data`.
    ///
    /// # Errors
    /// `Invalid` before the first [`Writer::start_sample`] or for a name that no tar should hold
    /// (absolute, with `..`); `Corrupt` if `data` ends early; what the file system says.
    pub fn add(&mut self, name: &str, len: u64, data: &mut dyn Read) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(Error::new(ErrorKind::Invalid, "a field was added before a sample"));
        };
        let mut header = Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        let mut data = data.take(len);
        let added = open.builder.append_data(&mut header, name, &mut data);
        added.doing("add a member to the shard").map_err(|error| error.at("member", name))?;
        if data.limit() > 0 {
            let error = Error::new(ErrorKind::Corrupt, "a file became shorter while it was packed");
            return Err(error.at("member", name).at("missing", data.limit()));
        }
        Ok(())
    }

    /// Completes the last shard and returns all of them.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(mut self) -> Result<Vec<Packed>> {
        self.close()?;
        Ok(self.done)
    }

    fn close(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            let packed = open.finish()?;
            self.done.push(packed);
        }
        Ok(())
    }
}

impl Open {
    fn create(path: PathBuf) -> Result<Self> {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).doing("create the shards' folder").map_err(at(&path))?;
        }
        let mut name = path.clone().into_os_string();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let file = File::create(&partial).doing("create the shard").map_err(at(&path))?;
        let partial = Partial(partial);
        let mut builder = Builder::new(BufWriter::new(file));
        builder.sparse(false);
        Ok(Self { builder, partial, path, samples: 0, payload: 0 })
    }

    fn finish(self) -> Result<Packed> {
        let Self { builder, partial, path, samples, .. } = self;
        let close = || -> Result<u64> {
            let mut buffer = builder.into_inner().doing("end the archive")?;
            buffer.flush().doing("write the shard")?;
            let file = buffer.get_ref();
            file.sync_all().doing("sync the shard")?;
            let bytes = file.metadata().doing("measure the shard")?.len();
            // A link, unlike a rename, fails where the name is taken.
            fs::hard_link(&partial.0, &path).map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    Error::new(ErrorKind::Invalid, "a file with the shard's name exists already")
                        .advise("choose another name, or remove the old shards first")
                }
                _ => Error::from_io("put the shard into place", &error),
            })?;
            Ok(bytes)
        };
        let bytes = close().map_err(at(&path))?;
        Ok(Packed { path, samples, bytes })
    }
}

fn at(path: &Path) -> impl Fn(Error) -> Error + '_ {
    move |error| error.at("path", path.display())
}
