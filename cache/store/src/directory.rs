//! The directory: names, the lock, the commit, and what a start finds.
//!
//! ```text
//!   FORMAT                       "forebay 1": what may use this directory
//!   RECENCY                      in which order shards were last used; a hint
//!   LOCK                         flock held while a daemon runs; its pid inside
//!   shards/<hash>-<name>         the origin's tar, byte for byte (`+` for `-` where a newer release
//!                                holds the name)
//!   shards/<hash>-<name>.idx     its sidecar: the shard is there when this is
//!   shards/<hash>-<name>.idx.new a sidecar being written
//!   shards/<hash>-<name>.part    beside an unfinished shard: which of its blocks are here for good
//! ```
//! The rule is the order of a commit. The data is synced before a sidecar names it; the sidecar is
//! written aside and synced before the rename makes it visible; the rename is synced before anyone
//! is told. Eviction goes the other way: sidecar first, so that no sidecar outlives its data.

mod recency;
mod survey;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::{Origin, Partial, Sidecar};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

pub(crate) use survey::{Finding, Found};

/// What a sidecar's name ends with …
const SIDECAR: &str = ".idx";

/// … and while it is being written.
const SIDECAR_ASIDE: &str = ".idx.new";

/// What the record of an unfinished shard ends with …
const PARTIAL: &str = ".part";

/// … and while it is being written.
const PARTIAL_ASIDE: &str = ".part.new";

/// The format's file, while it is being written.
const FORMAT_ASIDE: &str = "FORMAT.new";

/// What `FORMAT` says for the layout this build reads and writes.
const FORMAT: &str = "forebay 1\n";

/// Hexadecimal digits of a name's 128-bit hash.
const HASH_DIGITS: usize = 32;

/// Characters of the shard's own name kept in the file name, for people who look.
const NAME_KEPT: usize = 64;

/// A shard's name on the tier: a hash of endpoint, URL and version, then the shard's own name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShardName(Arc<str>);

impl ShardName {
    /// The name for one version of one object.
    #[must_use]
    pub fn new(origin: &Origin) -> Self {
        let mut identity = Vec::new();
        for part in [&origin.endpoint, &origin.url, &origin.version] {
            identity.extend_from_slice(&(part.len() as u64).to_le_bytes());
            identity.extend_from_slice(part.as_bytes());
        }
        let path = origin.url.split(['?', '#']).next().unwrap_or_default();
        let kept: String = path
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
            .take(NAME_KEPT)
            .collect();
        // A shard that is called like a sidecar must not be taken for one.
        let endings = [SIDECAR, SIDECAR_ASIDE, PARTIAL, PARTIAL_ASIDE];
        let reserved = endings.iter().any(|end| kept.ends_with(end));
        let end = if reserved { "_" } else { "" };
        Self(format!("{:032x}-{kept}{end}", xxh3_128(&identity)).into())
    }

    /// The name of a file found on the tier.
    fn of_file(file: &str) -> Self {
        Self(file.into())
    }

    /// Whether a file's name is one that a shard or its sidecar could have.
    fn is_one(file: &str) -> bool {
        let (hash, rest) = file.split_at_checked(HASH_DIGITS).unwrap_or_default();
        let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        !hash.is_empty() && hash.bytes().all(hex) && rest.starts_with(['-', '+'])
    }

    /// The name to take where another release holds this one.
    fn beside(&self) -> Self {
        Self(self.0.replacen('-', "+", 1).into())
    }

    /// A short stand-in for the name, for tables that remember many.
    pub(crate) fn hash(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }

    /// The name as a file name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An open, locked cache directory.
#[derive(Debug)]
pub(crate) struct Directory {
    shards: PathBuf,
    root: PathBuf,
    /// Names that shards of a newer release hold.
    held: Mutex<HashSet<ShardName>>,
    _lock: File,
}

impl Directory {
    /// Opens `root`, making it if it is missing; only one process at a time can.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let at = |error: Error| error.at("directory", root.display());
        let shards = root.join("shards");
        make_private(root).doing("make the cache directory").map_err(at)?;
        let lock = lock(root).map_err(at)?;
        check_format(root).map_err(at)?;
        make_private(&shards).doing("make the shard directory").map_err(at)?;
        sync_directory(root).map_err(at)?;
        Ok(Self { shards, root: root.to_owned(), held: Mutex::default(), _lock: lock })
    }

    /// The name under which a shard rests, or would rest, here.
    pub(crate) fn name_for(&self, origin: &Origin) -> ShardName {
        let name = ShardName::new(origin);
        match self.held().contains(&name) {
            true => name.beside(),
            false => name,
        }
    }

    fn hold(&self, name: ShardName) {
        self.held().insert(name);
    }

    fn held(&self) -> MutexGuard<'_, HashSet<ShardName>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn data(&self, name: &ShardName) -> PathBuf {
        self.shards.join(&*name.0)
    }

    fn sidecar(&self, name: &ShardName) -> PathBuf {
        self.shards.join(format!("{}{SIDECAR}", name.0))
    }

    /// Reads a whole sidecar; any fault in it means the copy cannot be used.
    pub(crate) fn read_sidecar(&self, name: &ShardName) -> Result<Sidecar> {
        let path = self.sidecar(name);
        let bytes = fs::read(&path).doing("read a sidecar")?;
        Sidecar::decode(&bytes).map_err(|error| error.at("path", path.display()))
    }

    /// Makes a shard whose data is already synced visible.
    pub(crate) fn commit(&self, name: &ShardName, sidecar: &Sidecar) -> Result<()> {
        self.put(
            &self.sidecar(name),
            &self.shards.join(format!("{}{SIDECAR_ASIDE}", name.0)),
            &sidecar.encode()?,
        )?;
        if let Err(error) = self.remove_record(name) {
            tracing::warn!(%error, "a record outlives its fill; the next start sweeps it");
        }
        Ok(())
    }

    /// Records which blocks of an unfinished shard are here for good: their data is synced.
    pub(crate) fn record(&self, name: &ShardName, partial: &Partial) -> Result<()> {
        let aside = self.shards.join(format!("{}{PARTIAL_ASIDE}", name.0));
        self.put(&self.partial(name), &aside, &partial.encode()?)
    }

    fn partial(&self, name: &ShardName) -> PathBuf {
        self.shards.join(format!("{}{PARTIAL}", name.0))
    }

    /// Forgets how far a shard had come.
    pub(crate) fn remove_record(&self, name: &ShardName) -> Result<()> {
        remove(&self.partial(name))
    }

    /// Whether an unfinished shard has a record.
    pub(crate) fn is_recorded(&self, name: &ShardName) -> bool {
        self.partial(name).exists()
    }

    /// Removes one file of the shard directory. What is gone already is no error.
    pub(crate) fn remove_file(&self, file: &str) -> Result<()> {
        remove(&self.shards.join(file))
    }

    /// Reads the record of an unfinished shard.
    pub(crate) fn read_partial(&self, name: &ShardName) -> Result<Partial> {
        let path = self.partial(name);
        let bytes = fs::read(&path).doing("read the record of an unfinished shard")?;
        Partial::decode(&bytes).map_err(|error| error.at("path", path.display()))
    }

    /// Puts a file in its place, whole and durable or not at all.
    fn put(&self, path: &Path, aside: &Path, bytes: &[u8]) -> Result<()> {
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(aside)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(aside, path)
        })();
        if written.is_err() {
            // On a full disk every file counts; what cannot be removed either is swept at the start.
            let _ = fs::remove_file(aside);
        }
        written
            .doing("write a file of the cache's")
            .map_err(|error| error.at("path", path.display()))?;
        sync_directory(path.parent().unwrap_or(&self.root))
    }

    /// Removes a shard, sidecar first. What is gone already is no error.
    pub(crate) fn remove(&self, name: &ShardName) -> Result<()> {
        [self.sidecar(name), self.partial(name), self.data(name)]
            .iter()
            .try_for_each(|path| remove(path))
    }
}

/// Removes a file of a shard. What is gone already is no error.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.doing("remove a shard").map_err(|error| error.at("path", path.display())),
    }
}

fn make_private(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn lock(root: &Path) -> Result<File> {
    let path = root.join("LOCK");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .doing("open the cache directory's lock")?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error).doing("lock the cache directory");
        }
        let mut pid = String::new();
        // The pid only helps the reader; without it the message still stands.
        let _ = (&file).take(32).read_to_string(&mut pid);
        return Err(Error::new(ErrorKind::Invalid, "another daemon uses this cache directory")
            .at("pid", if pid.trim().is_empty() { "unknown" } else { pid.trim() })
            .advise("stop it, or give this one a directory of its own"));
    }
    file.set_len(0).doing("note the pid in the lock")?;
    writeln!(file, "{}", std::process::id()).doing("note the pid in the lock")?;
    Ok(file)
}

/// Refuses a directory that holds something else: eviction deletes files.
fn check_format(root: &Path) -> Result<()> {
    let path = root.join("FORMAT");
    match fs::read_to_string(&path) {
        Ok(text) if text == FORMAT => Ok(()),
        Ok(text) => Err(Error::new(ErrorKind::Invalid, "the cache directory has another format")
            .at("found", text.trim())
            .at("wanted", FORMAT.trim())
            .advise("use the release that wrote it, or give this one an empty directory")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut others = fs::read_dir(root).doing("list the cache directory")?;
            let foreign = others.find(|entry| {
                let ours = |name: &str| ["LOCK", FORMAT_ASIDE, "lost+found"].contains(&name);
                entry.as_ref().map_or(true, |entry| !entry.file_name().to_str().is_some_and(ours))
            });
            if foreign.is_some() {
                let message = "the directory is not empty and is no cache of ours";
                return Err(Error::new(ErrorKind::Invalid, message)
                    .advise("name an empty directory: files in a cache directory get deleted"));
            }
            // Aside and renamed: half a format would keep every later start out.
            let aside = root.join(FORMAT_ASIDE);
            fs::write(&aside, FORMAT)
                .and_then(|()| File::open(&aside)?.sync_all())
                .and_then(|()| fs::rename(&aside, &path))
                .doing("write the cache directory's format")
        }
        Err(error) => Err(error).doing("read the cache directory's format"),
    }
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .doing("sync a directory")
        .map_err(|error| error.at("path", path.display()))
}
