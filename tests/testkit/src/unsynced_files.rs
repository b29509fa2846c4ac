//! Names and lengths of files that a power cut may undo.
//!
//! POSIX orders changes only by syncs. A change of a directory is durable once a sync of that
//! directory succeeded that began after the change; a file's length, once a sync of the file did.
//! Any other change may be lost, independently; the rest apply in their order. A rename is one
//! change.
//!
//! Calls are carried out for real. A file that they remove keeps a hard link in a folder aside for
//! as long as it may have to return.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_store::{Extent, Files, LocalFiles};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use rustix::io::Errno;

use crate::power::{Moment, Power};
use crate::random::Random;
use crate::unsynced::{Identity, Unsynced, identity, own};

/// A disk that loses unsynced changes at a power cut, for a node's `files` and `faults`.
#[derive(Debug)]
pub struct UnsyncedFiles {
    power: Arc<Power>,
    bytes: Arc<Unsynced>,
    then: Arc<dyn Files>,
    aside: PathBuf,
    journal: Mutex<Journal>,
}

/// Changes undone by a cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Changes of directories.
    pub names: usize,
    /// Lengths of files.
    pub lengths: usize,
    /// Sectors of files.
    pub sectors: usize,
}

#[derive(Debug, Default)]
struct Journal {
    /// Directories by path, so that equal seeds lose the same.
    directories: BTreeMap<PathBuf, Directory>,
    lengths: Vec<Length>,
    /// Start of each file sync under way.
    syncs: HashMap<u64, u64>,
    /// Known files: the first write to any other shows that it is new.
    known: HashSet<Identity>,
    kept: u64,
    now: u64,
}

/// Changes of one directory that may be lost, oldest first, and the earlier files of their names.
#[derive(Debug, Default)]
struct Directory {
    changes: Vec<(u64, Change)>,
    before: BTreeMap<OsString, Option<Kept>>,
}

#[derive(Debug)]
enum Change {
    Made(OsString, Kept),
    Removed(OsString),
    Renamed(OsString, OsString, Kept),
}

/// A file, kept whatever happens to its names.
#[derive(Debug, Clone)]
struct Kept(Arc<Aside>);

#[derive(Debug)]
struct Aside {
    path: PathBuf,
    identity: Identity,
}

impl Drop for Aside {
    fn drop(&mut self) {
        // The folder is removed at the test's end with all its files.
        let _ = fs::remove_file(&self.path);
    }
}

/// A length that is not durable.
#[derive(Debug)]
struct Length {
    at: u64,
    of: Identity,
    file: File,
    was: Was,
}

#[derive(Debug)]
enum Was {
    /// The file is new: it may become shorter.
    New,
    /// The file was truncated.
    Longer { len: u64, tail: Vec<u8> },
}

impl UnsyncedFiles {
    /// The machine's file systems, with the files under `root` durable. Removed files that may have
    /// to return are kept in `aside`, a private folder on the same file system.
    ///
    /// # Panics
    /// If a directory cannot be listed or made.
    #[must_use]
    pub fn new(root: &Path, aside: &Path) -> Arc<Self> {
        Self::over(root, aside, Arc::new(LocalFiles), None)
    }

    /// Other files and faults, with the files under `root` durable.
    ///
    /// # Panics
    /// If a directory cannot be listed or made.
    #[must_use]
    pub fn over(
        root: &Path,
        aside: &Path,
        then: Arc<dyn Files>,
        faults: Option<Arc<dyn Faults>>,
    ) -> Arc<Self> {
        fs::create_dir_all(aside).expect("the folder aside can be made");
        let power = Power::on(faults);
        let bytes = Unsynced::over(power.clone());
        let mut journal = Journal::default();
        list(root, &mut journal.known);
        let (journal, aside) = (Mutex::new(journal), aside.to_owned());
        Arc::new(Self { power, bytes, then, aside, journal })
    }

    /// Power of the disk.
    #[must_use]
    pub fn power(&self) -> &Arc<Power> {
        &self.power
    }

    /// Undoes changes as a power cut may, at random from `seed`.
    ///
    /// Nothing may be under way: stop the daemon first.
    ///
    /// # Panics
    /// If a file cannot be changed.
    pub fn cut(&self, seed: u64) -> Lost {
        self.power.off();
        let mut random = Random::new(seed);
        // Some cuts undo everything, and some nothing.
        let chance = *random.pick(&[0, 20, 50, 80, 100]);
        let journal = std::mem::take(&mut *self.journal());
        let mut lost = Lost::default();
        let (new, cut): (Vec<_>, Vec<_>) =
            journal.lengths.into_iter().partition(|length| matches!(length.was, Was::New));
        // The last truncation first, and before the bytes there return.
        for length in cut.into_iter().rev() {
            lost.lengths += usize::from(length.undo(chance, &mut random));
        }
        if chance > 0 {
            lost.sectors = self.bytes.cut(random.number());
        }
        for length in new.into_iter() {
            lost.lengths += usize::from(length.undo(chance, &mut random));
        }
        for (path, directory) in journal.directories {
            lost.names += directory.undo(&path, chance, &mut random);
        }
        lost
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a call, if there is power.
    fn carry<T>(&self, call: impl FnOnce(&mut Journal, bool) -> io::Result<T>) -> io::Result<T> {
        // Decided under the lock: calls are recorded in their order.
        let mut journal = self.journal();
        match self.power.call() {
            Moment::On => call(&mut journal, true),
            Moment::Going => {
                // The caller sees an error whatever the result.
                let _ = call(&mut journal, false);
                Err(gone())
            }
            Moment::Off => Err(gone()),
        }
    }
}

fn gone() -> io::Error {
    Errno::IO.into()
}

/// Records every file under `root` as known.
fn list(root: &Path, known: &mut HashSet<Identity>) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries {
        let entry = entry.expect("a directory can be listed");
        let about = entry.metadata().expect("what is listed is there");
        match about.is_dir() {
            true => list(&entry.path(), known),
            false => drop(known.insert((about.dev(), about.ino()))),
        }
    }
}

impl Files for UnsyncedFiles {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.carry(|journal, whole| {
            let is_new = journal.touch(&self.aside, path)?.is_none();
            // A file written at the cut has a part of its bytes.
            let bytes = if whole { bytes } else { &bytes[..bytes.len() / 2] };
            let written = self.then.write(path, bytes);
            if is_new && let Some(file) = journal.keep(&self.aside, path)? {
                journal.change(path, |name| Change::Made(name, file));
            }
            written
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.carry(|journal, _| {
            journal.touch(&self.aside, to)?;
            let file = journal.touch(&self.aside, from)?;
            self.then.rename(from, to)?;
            let file = file.expect("what is renamed is there");
            let to = to.file_name().expect("a file has a name").to_owned();
            journal.change(from, |from| Change::Renamed(from, to, file));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.carry(|journal, _| {
            let file = journal.touch(&self.aside, path)?;
            self.then.remove(path)?;
            if let Some(file) = file {
                // Another file may get its inode once no link is left.
                journal.known.remove(&file.0.identity);
            }
            journal.change(path, Change::Removed);
            Ok(())
        })
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.carry(|journal, _| {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            let about = file.metadata()?;
            let tail = about.len().saturating_sub(len);
            let mut tail = vec![0; usize::try_from(tail).expect("padding is short")];
            file.read_exact_at(&mut tail, len.min(about.len()))?;
            self.then.truncate(path, len)?;
            let was = Was::Longer { len: about.len(), tail };
            journal.length((about.dev(), about.ino()), file, was);
            Ok(())
        })
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let begun = {
            let mut journal = self.journal();
            match self.power.call() {
                Moment::On => journal.tick(),
                Moment::Going | Moment::Off => return Err(gone()),
            }
        };
        self.then.sync_directory(path)?;
        // A sync during the cut counts as none.
        let mut journal = self.journal();
        if self.power.is_off() {
            return Err(gone());
        }
        if let Some(directory) = journal.directories.get_mut(path) {
            directory.synced(begun);
        }
        Ok(())
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        if self.power.is_off() { Err(gone()) } else { self.then.extent(path) }
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        if self.power.is_off() { Err(gone()) } else { self.then.identity(path) }
    }
}

impl Faults for UnsyncedFiles {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let fate = self.bytes.fate(attempt);
        match attempt.kind {
            AttemptKind::Read => {}
            AttemptKind::Write => {
                let of = identity(attempt.file);
                let mut journal = self.journal();
                if journal.known.insert(of)
                    && let Some(path) = attempt.file.path()
                    && let Ok(Some(file)) = journal.keep(&self.aside, path)
                {
                    let before = journal.directory(path).before.entry(name_of(path));
                    before.or_insert(None);
                    journal.change(path, |name| Change::Made(name, file));
                    journal.length(of, own(attempt.file).1, Was::New);
                }
            }
            AttemptKind::Sync => {
                let mut journal = self.journal();
                let now = journal.tick();
                journal.syncs.insert(attempt.id, now);
            }
        }
        fate
    }

    fn landed(&self, attempt: &Attempt<'_>, is_ok: bool) {
        self.bytes.landed(attempt, is_ok);
        if attempt.kind == AttemptKind::Sync {
            let of = identity(attempt.file);
            let mut journal = self.journal();
            if let Some(begun) = journal.syncs.remove(&attempt.id).filter(|_| is_ok) {
                journal.lengths.retain(|length| length.of != of || length.at > begun);
            }
        }
    }
}

fn name_of(path: &Path) -> OsString {
    path.file_name().expect("a file has a name").to_owned()
}

impl Journal {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn directory(&mut self, of: &Path) -> &mut Directory {
        let parent = of.parent().expect("a file lies in a directory");
        self.directories.entry(parent.to_owned()).or_default()
    }

    /// Links the file at `path` aside, if there is one.
    fn keep(&mut self, aside: &Path, path: &Path) -> io::Result<Option<Kept>> {
        let about = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            about => about?,
        };
        self.kept += 1;
        let kept = aside.join(self.kept.to_string());
        fs::hard_link(path, &kept)?;
        let identity = (about.dev(), about.ino());
        self.known.insert(identity);
        Ok(Some(Kept(Arc::new(Aside { path: kept, identity }))))
    }

    /// Links the file at `path` aside before its name changes.
    fn touch(&mut self, aside: &Path, path: &Path) -> io::Result<Option<Kept>> {
        let now = self.keep(aside, path)?;
        let before = self.directory(path).before.entry(name_of(path));
        before.or_insert_with(|| now.clone());
        Ok(now)
    }

    fn change(&mut self, path: &Path, change: impl FnOnce(OsString) -> Change) {
        let now = self.tick();
        self.directory(path).changes.push((now, change(name_of(path))));
    }

    fn length(&mut self, of: Identity, file: File, was: Was) {
        let at = self.tick();
        self.lengths.push(Length { at, of, file, was });
    }
}

impl Directory {
    /// Marks every change before `begun` as durable.
    fn synced(&mut self, begun: u64) {
        let (safe, left) =
            std::mem::take(&mut self.changes).into_iter().partition(|(at, _)| *at <= begun);
        self.changes = left;
        let safe: Vec<(u64, Change)> = safe;
        for (_, change) in &safe {
            change.make(&mut self.before);
        }
        let named: HashSet<_> =
            self.changes.iter().flat_map(|(_, change)| change.names()).collect();
        self.before.retain(|name, _| named.contains(name));
    }

    fn undo(mut self, path: &Path, chance: u64, random: &mut Random) -> usize {
        let mut lost = 0;
        for (_, change) in &self.changes {
            match random.percent(chance) {
                true => lost += 1,
                false => change.make(&mut self.before),
            }
        }
        for (name, kept) in &self.before {
            let at = path.join(name);
            let now = fs::metadata(&at).ok().map(|about| (about.dev(), about.ino()));
            if now == kept.as_ref().map(|kept| kept.0.identity) {
                continue;
            }
            if now.is_some() {
                fs::remove_file(&at).expect("a name can be taken back");
            }
            if let Some(kept) = kept {
                fs::hard_link(&kept.0.path, &at).expect("a name can be given back");
            }
        }
        lost
    }
}

impl Change {
    fn make(&self, names: &mut BTreeMap<OsString, Option<Kept>>) {
        match self {
            Self::Made(name, file) => {
                names.insert(name.clone(), Some(file.clone()));
            }
            Self::Removed(name) => {
                names.insert(name.clone(), None);
            }
            Self::Renamed(from, to, file) => {
                let is_it = |kept: &Kept| kept.0.identity == file.0.identity;
                if names.get(from).is_some_and(|at| at.as_ref().is_some_and(is_it)) {
                    names.insert(from.clone(), None);
                }
                names.insert(to.clone(), Some(file.clone()));
            }
        }
    }

    fn names(&self) -> Vec<OsString> {
        match self {
            Self::Made(name, _) | Self::Removed(name) => vec![name.clone()],
            Self::Renamed(from, to, _) => vec![from.clone(), to.clone()],
        }
    }
}

impl Length {
    /// Undoes it with this chance; returns true if it did.
    fn undo(self, chance: u64, random: &mut Random) -> bool {
        if !random.percent(chance) {
            return false;
        }
        match self.was {
            Was::New => {
                let len = self.file.metadata().expect("an open file has a length").len();
                let shorter = random.below(len + 1);
                self.file.set_len(shorter).expect("a file can be cut");
            }
            Was::Longer { len, tail } => {
                let cut = len.saturating_sub(tail.len() as u64);
                self.file.set_len(len).expect("a file can have its length back");
                self.file.write_all_at(&tail, cut).expect("a file can have its bytes back");
            }
        }
        true
    }
}
