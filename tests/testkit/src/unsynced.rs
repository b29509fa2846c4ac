//! Writes that a power cut may undo: all since the last sync of their file.
//!
//! A write is durable once a sync succeeded that began after the write ended. Until then each
//! of its sectors may be found old or new, independently of the others.
//!
//! Only bytes are undone here. [`UnsyncedFiles`](crate::UnsyncedFiles) undoes lengths and names.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_uring::{Attempt, AttemptKind, DiskFile, Fate, Faults};

use crate::random::Random;

/// Bytes that a disk writes whole or not at all: the sector of NVMe drives, and the alignment of
/// O_DIRECT if the file system reports none.
const SECTOR: usize = 4096;

/// Journal of the old bytes of all writes of an engine, for
/// [`Engine::with_faults`](forebay_uring::Engine::with_faults).
///
/// Concurrent writes to overlapping ranges of a file have no order to undo: callers await one
/// before they begin the other.
#[derive(Default)]
pub struct Unsynced {
    files: Mutex<HashMap<Identity, Journal>>,
    then: Option<Arc<dyn Faults>>,
}

/// Device and inode, which a rename keeps.
pub(crate) type Identity = (u64, u64);

/// Writes of one file that may be lost, oldest first.
struct Journal {
    /// A descriptor of the journal's own, through the page cache.
    file: File,
    writes: Vec<Written>,
    /// Start of each sync under way.
    syncs: HashMap<u64, u64>,
    /// Number of events of this file.
    now: u64,
}

struct Written {
    id: u64,
    /// Start of its first sector.
    start: u64,
    /// Old bytes, in whole sectors.
    old: Vec<u8>,
    over: Option<u64>,
}

impl std::fmt::Debug for Unsynced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unsynced")
    }
}

impl Unsynced {
    /// A journal without faults.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A journal of operations with the fate that `then` decides.
    #[must_use]
    pub fn over(then: Arc<dyn Faults>) -> Arc<Self> {
        Arc::new(Self { then: Some(then), ..Self::default() })
    }

    /// Number of sectors that a cut may undo now. A sector written twice counts once.
    #[must_use]
    pub fn at_risk(&self) -> usize {
        self.lock().values().map(|journal| journal.sectors().len()).sum()
    }

    /// Cuts the power: each sector at risk returns to its bytes before one of its unsynced writes,
    /// or stays, at random from `seed`. Returns the number of sectors undone. Equal operations and
    /// seeds lose the same.
    ///
    /// Nothing may be under way: drop the engine first.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn cut(&self, seed: u64) -> usize {
        let mut journals: Vec<_> = std::mem::take(&mut *self.lock()).into_iter().collect();
        journals.sort_by_key(|(identity, _)| *identity);
        let mut random = Random::new(seed);
        journals.into_iter().map(|(_, journal)| journal.undo(&mut random)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Journal>> {
        self.files.lock().expect("nothing panics while the journals are open")
    }
}

impl Faults for Unsynced {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        // Decided first: a write that fails by its fate has old bytes too.
        let fate = self.then.as_ref().map_or(Fate::Pass, |then| then.fate(attempt));
        match attempt.kind {
            AttemptKind::Read => {}
            AttemptKind::Write => {
                let (identity, file) = own(attempt.file);
                let mut files = self.lock();
                let journal = files.entry(identity).or_insert_with(|| Journal::new(file));
                journal.keep(attempt);
            }
            AttemptKind::Sync => {
                if let Some(journal) = self.lock().get_mut(&identity(attempt.file)) {
                    journal.now += 1;
                    journal.syncs.insert(attempt.id, journal.now);
                }
            }
        }
        fate
    }

    fn landed(&self, attempt: &Attempt<'_>, is_ok: bool) {
        if attempt.kind != AttemptKind::Read {
            let identity = identity(attempt.file);
            let mut files = self.lock();
            if let Some(journal) = files.get_mut(&identity) {
                journal.landed(attempt, is_ok);
                if journal.writes.is_empty() && journal.syncs.is_empty() {
                    files.remove(&identity);
                }
            }
        }
        if let Some(then) = &self.then {
            then.landed(attempt, is_ok);
        }
    }
}

impl Journal {
    fn new(file: File) -> Self {
        Self { file, writes: Vec::new(), syncs: HashMap::new(), now: 0 }
    }

    fn keep(&mut self, attempt: &Attempt<'_>) {
        let sector = SECTOR as u64;
        let start = attempt.offset / sector * sector;
        let end = (attempt.offset + attempt.len as u64).next_multiple_of(sector);
        // Bytes past the file's end read as zeros, as after a cut.
        let mut old = vec![0; usize::try_from(end - start).expect("a span's length fits")];
        let mut read = 0;
        while let Some(more) = self.more(&mut old[read..], start + read as u64) {
            read += more;
        }
        self.writes.push(Written { id: attempt.id, start, old, over: None });
    }

    /// Reads bytes from `at`; none at the file's end.
    fn more(&self, into: &mut [u8], at: u64) -> Option<usize> {
        let read = self.file.read_at(into, at).expect("a file being written can be read");
        (read > 0).then_some(read)
    }

    fn landed(&mut self, attempt: &Attempt<'_>, is_ok: bool) {
        self.now += 1;
        if attempt.kind == AttemptKind::Write {
            let write = self.writes.iter_mut().find(|write| write.id == attempt.id);
            write.expect("each write was asked for").over = Some(self.now);
        } else if let Some(begun) = self.syncs.remove(&attempt.id)
            && is_ok
        {
            self.writes.retain(|write| write.over.is_none_or(|over| over > begun));
        }
    }

    /// Sectors at risk: for each its bytes before each of its unsynced writes, oldest first.
    fn sectors(&self) -> Vec<(u64, Vec<&[u8]>)> {
        let mut sectors: HashMap<u64, Vec<&[u8]>> = HashMap::new();
        for write in &self.writes {
            for (at, old) in (write.start..).step_by(SECTOR).zip(write.old.chunks(SECTOR)) {
                sectors.entry(at).or_default().push(old);
            }
        }
        let mut sectors: Vec<_> = sectors.into_iter().collect();
        sectors.sort_by_key(|(at, _)| *at);
        sectors
    }

    fn undo(self, random: &mut Random) -> usize {
        let len = self.file.metadata().expect("an open file has a length").len();
        let mut lost = 0;
        for (at, olds) in self.sectors() {
            // Before any of the writes, or after the last.
            let chosen = usize::try_from(random.below(olds.len() as u64 + 1)).expect("it is small");
            let Some(old) = olds.get(chosen) else { continue };
            let within = len.saturating_sub(at).min(SECTOR as u64);
            let within = usize::try_from(within).expect("a sector is small");
            self.file.write_all_at(&old[..within], at).expect("a file that was written can be");
            lost += 1;
        }
        lost
    }
}

/// Opens the same file again without O_DIRECT, whatever its name is by now.
pub(crate) fn own(file: &DiskFile) -> (Identity, File) {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let own = OpenOptions::new().read(true).write(true).open(path);
    let own = own.expect("a file that is open for writing can be opened again");
    let about = own.metadata().expect("an open file has an identity");
    ((about.dev(), about.ino()), own)
}

pub(crate) fn identity(file: &DiskFile) -> Identity {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let about = std::fs::metadata(path).expect("an open file has an identity");
    (about.dev(), about.ino())
}
