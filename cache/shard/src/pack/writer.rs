//! Writing one shard after the other.
//!
//! Its rule: a file under its final name is a whole archive: it is written beside it, synced, and
//! linked into place, and a file that is already there is never replaced.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
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
    measure: bool,
    open: Option<Open>,
    done: Vec<Packed>,
}

struct Open {
    builder: Builder<Output>,
    path: PathBuf,
    samples: u64,
    payload: u64,
}

/// Where a shard's bytes go.
enum Output {
    File(BufWriter<File>, Partial),
    /// Nowhere: they are counted.
    Measure(u64),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file, _) => file.write(bytes),
            Self::Measure(count) => {
                *count += bytes.len() as u64;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file, _) => file.flush(),
            Self::Measure(_) => Ok(()),
        }
    }
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
        let pattern = Pattern::parse(pattern)?;
        Ok(Self { pattern, limits, measure: false, open: None, done: Vec::new() })
    }

    /// A writer that goes through the same motions, reads no payload and writes nothing.
    pub(super) fn that_only_measures(pattern: &str, limits: Limits) -> Result<Self> {
        Ok(Self { measure: true, ..Self::new(pattern, limits)? })
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
            None => Open::create(self.pattern.path(self.done.len() as u64), self.measure)?,
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
        let mut zeros = io::repeat(0);
        let data: &mut dyn Read = if self.measure { &mut zeros } else { data };
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
    fn create(path: PathBuf, measure: bool) -> Result<Self> {
        let output = match measure {
            true if path.exists() => return Err(at(&path)(taken())),
            true => Output::Measure(0),
            false => create(&path)?,
        };
        let mut builder = Builder::new(output);
        builder.sparse(false);
        Ok(Self { builder, path, samples: 0, payload: 0 })
    }

    fn finish(self) -> Result<Packed> {
        let Self { builder, path, samples, .. } = self;
        let output = builder.into_inner().doing("end the archive");
        let bytes = output.and_then(|output| output.close(&path)).map_err(at(&path))?;
        Ok(Packed { path, samples, bytes })
    }
}

/// A new file beside `path`.
fn create(path: &Path) -> Result<Output> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).doing("create the shards' folder").map_err(at(path))?;
    }
    let mut name = path.to_owned().into_os_string();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let file = File::create(&partial).doing("create the shard").map_err(at(path))?;
    Ok(Output::File(BufWriter::new(file), Partial(partial)))
}

impl Output {
    /// Puts a whole shard into place; its length.
    fn close(self, path: &Path) -> Result<u64> {
        let (mut buffer, partial) = match self {
            Self::File(buffer, partial) => (buffer, partial),
            Self::Measure(count) => return Ok(count),
        };
        buffer.flush().doing("write the shard")?;
        let file = buffer.get_ref();
        file.sync_all().doing("sync the shard")?;
        let bytes = file.metadata().doing("measure the shard")?.len();
        // A link, unlike a rename, fails where the name is taken.
        fs::hard_link(&partial.0, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => taken(),
            _ => Error::from_io("put the shard into place", &error),
        })?;
        Ok(bytes)
    }
}

fn taken() -> Error {
    Error::new(ErrorKind::Invalid, "a file with the shard's name exists already")
        .advise("choose another name, or remove the old shards first")
}

fn at(path: &Path) -> impl Fn(Error) -> Error + '_ {
    move |error| error.at("path", path.display())
}
