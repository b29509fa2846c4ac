//! Cache directory of a tier: names, the lock, the commit, and recovery at a start.
//!
//! ```text
//!   FORMAT                       "forebay 1": the layout of this directory; "forebay 1 encrypted"
//!   KEY                          salt and check value of an encrypted directory's key (`key.rs`)
//!   PINS                         pins set by admins at run time
//!   RECENCY                      order in which shards were last used; a hint
//!   WEAR                         rest of the daily write allowance; a hint
//!   indexes/<hash>-<name>.idx    index of a shard that is read where it is; a hint
//!   checkpoints/                 files of checkpoints on their way to a store (`staged.rs`)
//!   LOCK                         flock held while a daemon runs; its pid inside
//!   shards/<hash>-<name>         the origin's tar, byte for byte, not compressed
//!                                (`+` for `-` if a newer release holds the name)
//!   shards/<hash>-<name>.idx     its sidecar: the shard is there when this is
//!   shards/<hash>-<name>.idx.new a sidecar being written
//!   shards/<hash>-<name>.part    record of an unfinished shard: its synced blocks
//! ```
//! A commit keeps this order. The data is synced before a sidecar names it. The sidecar is
//! written aside and synced before the rename makes it visible. The rename is synced before the
//! shard is announced; shards that are committed together share this last sync. Eviction removes
//! the sidecar first, so that no sidecar outlives its data.

mod indexes;
mod key;
mod pins;
mod recency;
mod shared_sync;
mod staged;
mod survey;
mod wear;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

pub(crate) use forebay_cluster::ObjectKey;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::{Origin, Partial, Sidecar};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::encryption::TierCipher;
use crate::excerpt_source::is_excerpt;
use crate::files::{Extent, Files};

pub(crate) use key::Keys;
use key::{KEY, KEY_ASIDE};
use shared_sync::{Coming, SharedSync};
pub(crate) use staged::{FoundStaged, check_staged_id};
pub(crate) use survey::{Finding, Found};

/// Time for which a check before a fill counts for others. Small shards begin a thousand times a
/// second. A disk that is unmounted meanwhile is noticed at the commit.
const CHECK_AGE: Duration = Duration::from_millis(10);

/// Ending of a sidecar's name,
const SIDECAR: &str = ".idx";

/// and while it is being written.
const SIDECAR_ASIDE: &str = ".idx.new";

/// Ending of the name of an unfinished shard's record,
const PARTIAL: &str = ".part";

/// and while it is being written.
const PARTIAL_ASIDE: &str = ".part.new";

/// Name of the format file while it is being written.
const FORMAT_ASIDE: &str = "FORMAT.new";

/// Content of `FORMAT` for the layout this build reads and writes.
const FORMAT: &str = "forebay 1\n";

/// The same, with encrypted files. Releases that know no encryption reject it: they would take the
/// files for damaged ones, and remove them.
const FORMAT_ENCRYPTED: &str = "forebay 1 encrypted\n";

/// Hexadecimal digits of a name's 128-bit hash.
const HASH_DIGITS: usize = 32;

/// Characters of the shard's own name kept in the file name, for people.
const NAME_KEPT: usize = 64;

/// Ending of an excerpt's name, for people and reports.
const EXCERPT: &str = ".excerpt";

/// Name of a shard on the tier: a hash of endpoint, URL and version, then the shard's own name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShardName(Arc<str>);

/// Returns the key of a shard's object. An excerpt is an object of its own: whoever wants the shard
/// does not have it by that.
pub(crate) fn object_key(origin: &Origin) -> ObjectKey {
    match is_excerpt(&origin.version) {
        false => ObjectKey::new(&origin.endpoint, &origin.url),
        true => ObjectKey::new(&origin.endpoint, &format!("{} {}", origin.url, origin.version)),
    }
}

/// Concatenates texts with their lengths, so that different lists never give the same bytes.
fn joined<const N: usize>(parts: [&str; N]) -> Vec<u8> {
    let len = parts.iter().map(|part| size_of::<u64>() + part.len()).sum();
    let mut all = Vec::with_capacity(len);
    for part in parts {
        all.extend_from_slice(&(part.len() as u64).to_le_bytes());
        all.extend_from_slice(part.as_bytes());
    }
    all
}

impl ShardName {
    /// Returns the name of one version of one object.
    #[must_use]
    pub fn new(origin: &Origin) -> Self {
        let identity = joined([&origin.endpoint, &origin.url, &origin.version]);
        let shown = forebay_error::shown(&origin.url);
        let path = shown.bytes().position(|byte| byte == b'?' || byte == b'#');
        let path = path.map_or(&*shown, |end| &shown[..end]);
        let kept = path.rsplit('/').next().unwrap_or_default().chars().take(NAME_KEPT);
        // Several are made for each read of a shard: without a search or an allocation per step.
        let mut name = String::with_capacity(HASH_DIGITS + 1 + NAME_KEPT + 1);
        write!(name, "{:032x}-", xxh3_128(&identity)).expect("a string takes what is written");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        name.extend(kept.map(|c| if is_plain(c) { c } else { '_' }));
        // A shard with the name of a sidecar or an excerpt must not be taken for one.
        let endings = [SIDECAR, SIDECAR_ASIDE, PARTIAL, PARTIAL_ASIDE, EXCERPT];
        if endings.iter().any(|end| name.ends_with(end)) {
            name.push('_');
        }
        if is_excerpt(&origin.version) {
            name.push_str(EXCERPT);
        }
        Self(name.into())
    }

    /// Returns the name of a file found on the tier.
    fn from_file(file: &str) -> Self {
        Self(file.into())
    }

    /// Returns true if the name is one of a shard or a sidecar.
    fn is_shard_file(file: &str) -> bool {
        let (hash, rest) = file.split_at_checked(HASH_DIGITS).unwrap_or_default();
        let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        !hash.is_empty() && hash.bytes().all(hex) && rest.starts_with(['-', '+'])
    }

    /// Returns true if the file has some members of a shard only.
    pub(crate) fn is_excerpt(&self) -> bool {
        self.0.ends_with(EXCERPT)
    }

    /// Alternative name, for use if a newer release holds this one.
    fn alternate(&self) -> Self {
        Self(self.0.replacen('-', "+", 1).into())
    }

    /// Short hash of the name, for tables that remember many.
    pub(crate) fn hash(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }

    /// Short hash of the shard's own name, which all its versions and excerpts share.
    pub(crate) fn label(&self) -> u64 {
        // Skips the hash and the separator.
        let own = self.0.get(HASH_DIGITS + 1..).unwrap_or_default();
        xxh3_64(own.strip_suffix(EXCERPT).unwrap_or(own).as_bytes())
    }

    /// Returns the name as a file name.
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
    /// Names held by shards of a newer release.
    newer: Mutex<HashSet<ShardName>>,
    files: Arc<dyn Files>,
    /// Device and inode, to detect another directory in its place.
    identity: (u64, u64),
    /// Syncs of the directory of shards.
    syncs: SharedSync,
    /// End of the last check before a fill, if it succeeded.
    checked: Mutex<Option<Instant>>,
    /// Bytes of the indexes of shards that are not stored here, or more; none before the first.
    index_bytes: Mutex<Option<u64>>,
    /// Ciphers of its files, if they are encrypted.
    ciphers: Option<TierCipher>,
    _lock: File,
}

impl Directory {
    /// Opens `root`, and creates it if missing. Only one process at a time can hold it.
    pub(crate) fn open(root: &Path, files: Arc<dyn Files>, keys: &Keys) -> Result<Self> {
        let at = |error: Error| error.at("directory", root.display());
        let shards = root.join("shards");
        make_private(root).doing("create the cache directory").map_err(at)?;
        // Before the lock: a rejected directory is left as it was.
        occupant(root).map_err(at)?;
        let lock = lock(root).map_err(at)?;
        let ciphers = key::unlock(root, &*files, keys).map_err(at)?;
        check_format(root, &*files, ciphers.is_some()).map_err(at)?;
        make_private(&shards).doing("create the shard directory").map_err(at)?;
        files.sync_directory(root).doing("sync a directory").map_err(at)?;
        let identity = files.identity(&shards).doing("stat the shard directory").map_err(at)?;
        let (root, newer, syncs) = (root.to_owned(), Mutex::default(), SharedSync::default());
        let (checked, index_bytes) = (Mutex::default(), Mutex::default());
        Ok(Self {
            shards,
            root,
            newer,
            files,
            identity,
            syncs,
            checked,
            index_bytes,
            ciphers,
            _lock: lock,
        })
    }

    /// Rejects a directory that is not the opened one: the disk was unmounted, or another directory
    /// took its place. Forebay must not write there.
    pub(crate) fn check_identity(&self) -> Result<()> {
        let at = |error: Error| error.at("directory", self.root.display());
        let now = self.files.identity(&self.shards).doing("stat the shard directory");
        match now.map_err(at)? == self.identity {
            true => Ok(()),
            false => Err(at(Error::new(
                ErrorKind::Unavailable,
                "another directory lies where the cache directory was",
            ))
            .at("reason", "replaced")
            .advise("mount the device again, or run `forebay tier disable` and `enable`")),
        }
    }

    /// Returns true if a fill may begin without another check: one succeeded within [`CHECK_AGE`].
    pub(crate) fn is_checked(&self) -> bool {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.is_some_and(|ended| ended.elapsed() < CHECK_AGE)
    }

    /// Notes a successful check.
    pub(crate) fn note_check(&self) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        *checked = Some(Instant::now());
    }

    /// Path of the file that names the cache's format.
    pub(crate) fn format(&self) -> PathBuf {
        self.root.join("FORMAT")
    }

    /// Size and free space of the file system.
    pub(crate) fn extent(&self) -> Result<Extent> {
        let extent = self.files.extent(&self.shards).doing("read the free space of a disk");
        extent.map_err(|error| error.at("directory", self.root.display()))
    }

    /// Cuts off the padding that O_DIRECT needs after a shard's last byte. Whole blocks stay of an
    /// encrypted shard.
    pub(crate) fn trim(&self, name: &ShardName, len: u64) -> Result<()> {
        let (path, len) = (self.data(name), self.stored_len(len));
        let cut = self.files.truncate(&path, len).doing("truncate a shard to its length");
        cut.map_err(|error| error.at("path", path.display()))
    }

    /// Name under which a shard is stored here.
    pub(crate) fn name_for(&self, name: &ShardName) -> ShardName {
        match self.newer_names().contains(name) {
            true => name.alternate(),
            false => name.clone(),
        }
    }

    fn reserve_name(&self, name: ShardName) {
        self.newer_names().insert(name);
    }

    fn newer_names(&self) -> MutexGuard<'_, HashSet<ShardName>> {
        self.newer.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Reads a whole sidecar. After any error the copy cannot be used.
    pub(crate) fn read_sidecar(&self, name: &ShardName) -> Result<Sidecar> {
        let path = self.sidecar(name);
        let bytes = self.read_sealed(&path)?;
        Sidecar::decode(&bytes).map_err(|error| error.at("path", path.display()))
    }

    /// Makes a shard visible whose data is synced. `since`: the time of its arrival on this node,
    /// if it comes from another tier.
    pub(crate) fn commit(
        &self,
        name: &ShardName,
        sidecar: &Sidecar,
        since: Option<SystemTime>,
    ) -> Result<()> {
        let path = self.sidecar(name);
        let aside = self.shards.join(format!("{}{SIDECAR_ASIDE}", name.0));
        self.put(&path, &aside, &sidecar.encode()?)?;
        // The next start takes the age of a shard from its sidecar.
        if let Some(since) = since
            && let Err(error) = File::open(&path).and_then(|file| file.set_modified(since))
        {
            tracing::warn!(%error, "a moved shard counts as new after a restart");
        }
        // A removal waits for its turn at the directory even if there is nothing to remove, as with
        // all small shards.
        if self.has_partial(name)
            && let Err(error) = self.remove_partial(name)
        {
            tracing::warn!(%error, "a record outlives its fill; the next start sweeps it");
        }
        Ok(())
    }

    /// Records the blocks of an unfinished shard that are synced.
    pub(crate) fn save_partial(&self, name: &ShardName, partial: &Partial) -> Result<()> {
        let aside = self.shards.join(format!("{}{PARTIAL_ASIDE}", name.0));
        self.put(&self.partial(name), &aside, &partial.encode()?)
    }

    fn partial(&self, name: &ShardName) -> PathBuf {
        self.shards.join(format!("{}{PARTIAL}", name.0))
    }

    /// Removes the record of an unfinished shard.
    pub(crate) fn remove_partial(&self, name: &ShardName) -> Result<()> {
        self.remove_path(&self.partial(name))
    }

    /// Returns true if an unfinished shard has a record.
    pub(crate) fn has_partial(&self, name: &ShardName) -> bool {
        self.partial(name).exists()
    }

    /// Removes one file of the shard directory. A missing file is no error.
    pub(crate) fn remove_file(&self, file: &str) -> Result<()> {
        self.remove_path(&self.shards.join(file))
    }

    /// Reads the record of an unfinished shard.
    pub(crate) fn read_partial(&self, name: &ShardName) -> Result<Partial> {
        let path = self.partial(name);
        let bytes = self.read_sealed(&path)?;
        Partial::decode(&bytes).map_err(|error| error.at("path", path.display()))
    }

    /// Writes a file, whole and durable or not at all. In an encrypted directory it is encrypted
    /// under its final name.
    fn put(&self, path: &Path, aside: &Path, bytes: &[u8]) -> Result<()> {
        let coming = (path.parent() == Some(&*self.shards)).then(|| self.syncs.announce());
        self.write_aside(path, aside, bytes)?;
        self.reveal(path, aside, coming)
    }

    /// Writes the bytes of a file beside it, durably.
    fn write_aside(&self, path: &Path, aside: &Path, bytes: &[u8]) -> Result<()> {
        self.check_identity()?;
        let sealed = self.sealed(path, bytes)?;
        let written = self.files.write(aside, sealed.as_deref().unwrap_or(bytes));
        self.or_remove(aside, written, path)
    }

    /// Gives a file that was written aside its name, durably.
    fn reveal(&self, path: &Path, aside: &Path, coming: Option<Coming<'_>>) -> Result<()> {
        self.or_remove(aside, self.files.rename(aside, path), path)?;
        let directory = path.parent().unwrap_or(&self.root);
        let sync = || self.files.sync_directory(directory);
        let synced = match coming {
            Some(coming) => coming.sync(sync),
            None => sync(),
        };
        synced.doing("sync a directory").map_err(|error| error.at("path", directory.display()))
    }

    /// Removes what was written aside, if writing it or naming it failed.
    fn or_remove(&self, aside: &Path, written: std::io::Result<()>, path: &Path) -> Result<()> {
        if written.is_err() {
            // On a full disk every file counts. A leftover is removed at the next start.
            let _ = self.files.remove(aside);
        }
        written.doing("write a file of the cache").map_err(|error| error.at("path", path.display()))
    }

    /// Removes a shard, sidecar first. Missing files are no error.
    pub(crate) fn remove(&self, name: &ShardName) -> Result<()> {
        self.check_identity()?;
        [self.sidecar(name), self.partial(name), self.data(name)]
            .iter()
            .try_for_each(|path| self.remove_path(path))
    }

    fn remove_path(&self, path: &Path) -> Result<()> {
        match self.files.remove(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => {
                other.doing("remove a shard").map_err(|error| error.at("path", path.display()))
            }
        }
    }
}

/// Folder of an embedded daemon's socket and log, which is made before the cache.
const DAEMON: &str = "daemon";

/// Returns true if `root` holds a cache, of any layout.
pub(crate) fn is_cache(root: &Path) -> bool {
    root.join("FORMAT").exists()
}

/// Returns true if `root` holds a cache whose files are encrypted.
#[must_use]
pub fn is_encrypted(root: &Path) -> bool {
    root.join(KEY).exists()
}

fn make_private(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Takes the lock. Its descriptor is read-only, so that the file system can be remounted read-only
/// under a running daemon.
fn lock(root: &Path) -> Result<File> {
    let path = root.join("LOCK");
    let mut options = OpenOptions::new();
    let note = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut note = note.doing("open the cache directory's lock")?;
    let lock = File::open(&path).doing("open the cache directory's lock")?;
    if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error).doing("lock the cache directory");
        }
        let mut pid = String::new();
        // The pid is only a hint: the message works without it.
        let _ = (&lock).take(32).read_to_string(&mut pid);
        return Err(Error::new(ErrorKind::Invalid, "another daemon uses this cache directory")
            .at("pid", if pid.trim().is_empty() { "unknown" } else { pid.trim() })
            .advise("stop it, or give this daemon its own directory"));
    }
    note.set_len(0).doing("note the pid in the lock")?;
    writeln!(note, "{}", std::process::id()).doing("note the pid in the lock")?;
    Ok(lock)
}

/// Rejects a directory with other content: eviction deletes files. Names the format of a new one,
/// and of one that is encrypted from now on.
fn check_format(root: &Path, files: &dyn Files, is_encrypted: bool) -> Result<()> {
    let format = if is_encrypted { FORMAT_ENCRYPTED } else { FORMAT };
    let is_named = occupant(root)? == Occupant::Cache
        && fs::read_to_string(root.join("FORMAT")).is_ok_and(|text| text == format);
    match is_named {
        true => Ok(()),
        false => write_format(root, files, format).doing("write the cache directory's format"),
    }
}

/// Writes the format, before anything else is created here: without it that would look foreign.
fn write_format(root: &Path, files: &dyn Files, format: &str) -> std::io::Result<()> {
    replace(root, files, ("FORMAT", FORMAT_ASIDE), format)
}

/// Writes a file of the root aside, renames it, and makes that durable: a torn one would block
/// every later start.
fn replace(
    root: &Path,
    files: &dyn Files,
    (name, aside): (&str, &str),
    text: &str,
) -> std::io::Result<()> {
    let aside = root.join(aside);
    files.write(&aside, text.as_bytes())?;
    files.rename(&aside, &root.join(name))?;
    files.sync_directory(root)
}

/// Content of a directory that is to hold a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupant {
    /// Empty.
    Nobody,
    /// A cache of this layout.
    Cache,
}

/// Returns the content of the directory `root`, and changes nothing.
///
/// # Errors
/// `Invalid` if the directory holds a cache of another release or other files: a daemon would
/// reject it as well. Errors of reading it.
pub fn occupant(root: &Path) -> Result<Occupant> {
    match fs::read_to_string(root.join("FORMAT")) {
        Ok(text) if [FORMAT, FORMAT_ENCRYPTED].contains(&&*text) => Ok(Occupant::Cache),
        Ok(text) => {
            Err(Error::new(ErrorKind::Invalid, "the cache directory has an unknown format")
                .at("found", text.trim())
                .at("wanted", FORMAT.trim())
                .advise("use the release that wrote it, or name an empty directory"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut others = fs::read_dir(root).doing("list the cache directory")?;
            let foreign = others.find(|entry| {
                let ours = |name: &str| {
                    ["LOCK", FORMAT_ASIDE, KEY, KEY_ASIDE, DAEMON, "lost+found"].contains(&name)
                };
                entry.as_ref().map_or(true, |entry| !entry.file_name().to_str().is_some_and(ours))
            });
            if let Some(foreign) = foreign {
                let found = foreign.doing("list the cache directory")?.file_name();
                let message = "the directory is not empty and is not a Forebay cache";
                return Err(Error::new(ErrorKind::Invalid, message)
                    .at("found", found.display())
                    .advise("name an empty directory: files in a cache directory get deleted"));
            }
            Ok(Occupant::Nobody)
        }
        Err(error) => Err(error).doing("read the cache directory's format"),
    }
}

#[cfg(test)]
mod tests;
