//! What a power cut may take away: every write since the last sync of its file.
//!
//! A write is safe when a sync succeeded that began after the write was over, and never
//! before. Until then each of its sectors may be found old or new, whichever the others are.
//!
//! Only bytes are undone. A file's length, its name and its being there are another matter
//! ([`UnsyncedFiles`](crate::UnsyncedFiles)).

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_uring::{Attempt, AttemptKind, DiskFile, Fate, Faults};

use crate::dice::Dice;

/// What a disk writes whole or not at all, in bytes: the sector of NVMe drives today, and what is
/// asked of O_DIRECT where the file system says nothing.
const SECTOR: usize = 4096;

/// Keeps the old bytes of all that is written through an engine, for
/// [`Engine::with_faults`](forebay_uring::Engine::with_faults).
///
/// Writes of one file that overlap and are under way at once have no order that could be undone:
/// callers await one before they begin the other.
#[derive(Default)]
pub struct Unsynced {
    files: Mutex<HashMap<Identity, Journal>>,
    then: Option<Arc<dyn Faults>>,
}

/// Device and inode: what stays when a file is renamed.
pub(crate) type Identity = (u64, u64);

/// The writes of one file that may be lost, oldest first.
struct Journal {
    /// A descriptor of the journal's own, through the page cache.
    file: File,
    writes: Vec<Written>,
    /// When each sync under way began.
    syncs: HashMap<u64, u64>,
    /// Counts events of this file.
    now: u64,
}

struct Written {
    id: u64,
    /// Where the first of its sectors starts.
    start: u64,
    /// The bytes that were there, whole sectors.
    old: Vec<u8>,
    over: Option<u64>,
}

impl std::fmt::Debug for Unsynced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unsynced")
    }
}

impl Unsynced {
    /// A journal that lets everything pass.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A journal of operations whose fate `then` decides.
    #[must_use]
    pub fn over(then: Arc<dyn Faults>) -> Arc<Self> {
        Arc::new(Self { then: Some(then), ..Self::default() })
    }

    /// Sectors that a cut may take back now. One that was written twice counts once.
    #[must_use]
    pub fn at_risk(&self) -> usize {
        self.lock().values().map(|journal| journal.sectors().len()).sum()
    }

    /// Cuts the power: each sector at risk goes back to what it was before any of its unsynced
    /// writes, or stays, as `seed` has it. Returns how many went back. The same operations and the
    /// same seed lose the same.
    ///
    /// Nothing may be under way: drop the engine first, as a cut does.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn cut(&self, seed: u64) -> usize {
        let mut journals: Vec<_> = std::mem::take(&mut *self.lock()).into_iter().collect();
        journals.sort_by_key(|(identity, _)| *identity);
        let mut dice = Dice::new(seed);
        journals.into_iter().map(|(_, journal)| journal.undo(&mut dice)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, Journal>> {
        self.files.lock().expect("nothing panics while the journals are open")
    }
}

impl Faults for Unsynced {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        // Decided first: a write that is lost by its fate has old bytes all the same.
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
        // What lies past the file's end reads as zeros, as it would after a cut.
        let mut old = vec![0; usize::try_from(end - start).expect("a span's length fits")];
        let mut read = 0;
        while let Some(more) = self.more(&mut old[read..], start + read as u64) {
            read += more;
        }
        self.writes.push(Written { id: attempt.id, start, old, over: None });
    }

    /// Bytes read from `at`; none at the file's end.
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

    /// The sectors at risk: for each, what it held before each of its unsynced writes, oldest first.
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

    fn undo(self, dice: &mut Dice) -> usize {
        let len = self.file.metadata().expect("an open file has a length").len();
        let mut lost = 0;
        for (at, olds) in self.sectors() {
            // Before any of the writes, or after the last.
            let chosen = usize::try_from(dice.below(olds.len() as u64 + 1)).expect("it is small");
            let Some(old) = olds.get(chosen) else { continue };
            let within = len.saturating_sub(at).min(SECTOR as u64);
            let within = usize::try_from(within).expect("a sector is small");
            self.file.write_all_at(&old[..within], at).expect("a file that was written can be");
            lost += 1;
        }
        lost
    }
}

/// The same file opened once more, whatever it is called by now, without O_DIRECT.
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
