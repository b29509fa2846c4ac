//! Staged files of checkpoints on a tier: room, bytes, records.
//!
//! A staged file takes room of the tier like a shard, and evicts shards that no job reads or will
//! need at once. It is never evicted itself: its owner removes it. Nobody waits for room: a
//! training run is told at once that a checkpoint does not fit.

use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::{Arena, DiskFile, Done, LentSpan, Open, Span};

use super::request::RoomRequest;
use super::{Disk, Tier};
use crate::budget::Space;
use crate::clock;
use crate::device;
use crate::directory::{FoundStaged, check_staged_id};
use crate::encryption::KeyKind;
use crate::shares::NOBODY;

/// Room of staged files by name.
pub(crate) type StagedRoom = HashMap<String, Space>;

impl Tier {
    /// Returns true if a file may be staged here. A staged file outlives the daemon, and a key that
    /// is ephemeral does not.
    pub(crate) fn may_stage(&self) -> bool {
        let is_lasting = |disk: &Disk| match &disk.key {
            Some(key) => key.kind() != KeyKind::Ephemeral,
            None => true,
        };
        self.disk().is_some_and(is_lasting) && self.is_writable()
    }

    fn staged_room(&self) -> MutexGuard<'_, StagedRoom> {
        self.0.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device_of_staged(&self) -> Result<&Disk> {
        self.disk().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "a tier of memory keeps no checkpoints")
                .at("tier", self.name())
        })
    }

    /// Enters a file that a listing found.
    pub(super) fn enter_staged(&self, found: Vec<FoundStaged>) {
        let shares = self.0.shared.shares.current();
        let mut room = self.staged_room();
        for FoundStaged { id, bytes } in found {
            room.entry(id)
                .or_insert_with(|| Space::enter(&self.0.budget, shares.budgets(NOBODY), bytes));
        }
    }

    /// Names of all files, the unfinished ones too.
    pub(super) fn staged_names(&self) -> HashSet<String> {
        self.staged_room().keys().cloned().collect()
    }

    /// Names of all staged files, once the directory is listed.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub(crate) async fn staged(&self) -> Result<Vec<String>> {
        self.scanned().await?;
        Ok(self.staged_names().into_iter().collect())
    }

    /// Bytes that staged files take.
    pub(crate) fn staged_bytes(&self) -> u64 {
        self.staged_room().values().map(Space::bytes).sum()
    }

    /// Takes room, and evicts shards for it.
    async fn make_room_to_stage(&self, bytes: u64) -> Result<Space> {
        // No shard is evicted for what can never fit.
        if bytes > self.0.budget.limit().saturating_sub(self.staged_bytes()) {
            let what = "the tier has no room for a checkpoint beside those that are staged";
            return Err(self.no_room_to_stage(what, bytes));
        }
        loop {
            self.scanned().await?;
            let leaving = {
                let mut table = self.table();
                self.check_enabled()?;
                if !self.is_listed() {
                    continue;
                }
                let shares = self.0.shared.shares.current();
                let budgets = shares.budgets(NOBODY);
                if let Some(space) = Space::reserve(&self.0.budget, budgets, bytes) {
                    return Ok(space);
                }
                if !self.is_writable() {
                    return Err(self.closed());
                }
                let need = RoomRequest { than: None, ..RoomRequest::ahead(None) };
                self.evict_for(&mut table, need, None)
            };
            match leaving {
                Some(gone) => gone.await,
                None => {
                    let what = "the tier has no room for a checkpoint: its shards are in use";
                    return Err(self.no_room_to_stage(what, bytes));
                }
            };
        }
    }

    fn no_room_to_stage(&self, what: &'static str, bytes: u64) -> Error {
        Error::new(ErrorKind::Full, what)
            .at("tier", self.name())
            .at("bytes", bytes)
            .at("staged", self.staged_bytes())
            .at("capacity", self.0.budget.limit())
            .advise("wait for uploads, raise the tier's capacity, or save fewer bytes")
    }

    /// Creates a file with room for `bytes`.
    ///
    /// # Errors
    /// `Full` if there is no room; `Invalid` for a name in use; those of the device.
    pub(crate) async fn stage(&self, id: &str, bytes: u64) -> Result<DiskFile> {
        check_staged_id(id)?;
        let disk = self.device_of_staged()?;
        let space = self.make_room_to_stage(bytes).await?;
        {
            let mut room = self.staged_room();
            if room.contains_key(id) {
                return Err(Error::new(ErrorKind::Invalid, "the file is staged already")
                    .at("id", id)
                    .at("tier", self.name()));
            }
            room.insert(id.to_owned(), space);
        }
        let created = async {
            self.on_disk(|directory| directory.prepare_staging()).await?;
            let create = Open::Create { len: bytes };
            self.answered(self.directory()?.open_staged(&disk.engine, id, create).await)
        };
        let created = created.await;
        if created.is_err() {
            self.staged_room().remove(id);
        }
        created
    }

    /// Takes room and disk space for `bytes` more of a file, which has `from` so far.
    ///
    /// # Errors
    /// `Full` if there is none; those of the device.
    pub(crate) async fn grow_staged(
        &self,
        (id, file): (&str, &DiskFile),
        from: u64,
        bytes: u64,
    ) -> Result<()> {
        let more = self.make_room_to_stage(bytes).await?;
        let file = file.clone();
        let reserved = self.on_disk(move |_| file.reserve(from, bytes)).await;
        self.answered(reserved).map_err(advise_if_full)?;
        if let Some(space) = self.staged_room().get(id) {
            space.join(&more);
        }
        Ok(())
    }

    /// Writes a client's bytes. `at`: offset in the file.
    ///
    /// # Errors
    /// Those of the device; `Full` if the disk has no space.
    pub(crate) async fn write_staged(
        &self,
        file: &DiskFile,
        at: u64,
        from: LentSpan,
    ) -> Result<()> {
        let disk = self.device_of_staged()?;
        let bytes = from.len() as u64;
        let wrote = match &disk.bounce {
            Some(bounce) => Self::write_encrypted((disk, bounce), file, at, &from).await,
            None => device::answer(disk.engine.write_lent(file, at, from)).await,
        };
        self.note_staged(wrote, bytes)
    }

    /// Writes the daemon's own bytes. `at`: offset in the file.
    ///
    /// # Errors
    /// As [`Tier::write_staged`].
    pub(crate) async fn write_staged_copy(
        &self,
        file: &DiskFile,
        at: u64,
        from: Span,
    ) -> Result<()> {
        let disk = self.device_of_staged()?;
        let bytes = from.len() as u64;
        let wrote = device::answer(disk.engine.write(file, at, from)).await;
        self.note_staged(wrote, bytes)
    }

    /// Counts a write of a staged file, or notes its failure.
    fn note_staged(&self, wrote: Result<Done>, bytes: u64) -> Result<()> {
        self.answered(wrote.and_then(|done| done.result)).map_err(advise_if_full)?;
        self.0.tally.written_bytes.add(bytes);
        if let Some(mut wear) = self.wear() {
            // Counted, never a reason to reject a checkpoint.
            wear.spend(bytes, clock::now());
        }
        Ok(())
    }

    /// Reads into a client's memory.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` if the file is shorter.
    pub(crate) async fn read_staged_lent(
        &self,
        file: &DiskFile,
        at: u64,
        into: LentSpan,
        len: usize,
    ) -> Result<()> {
        let disk = self.device_of_staged()?;
        let Some(bounce) = &disk.bounce else {
            let read = device::answer(disk.engine.read_lent(file, at, into)).await;
            return self.whole(at, len, read.and_then(|done| done.result));
        };
        // The client must never see, nor change, bytes that are being decrypted.
        let memory = device::answer(bounce.lease(into.len())).await??;
        let memory = self.read_staged(file, at, memory, len).await?;
        into.fill(&memory[..len]).doing("fill lent memory")
    }

    /// Encrypts a snapshot of a client's bytes, and writes that.
    async fn write_encrypted(
        (disk, bounce): (&Disk, &Arena),
        file: &DiskFile,
        at: u64,
        from: &LentSpan,
    ) -> Result<Done> {
        let mut memory = device::answer(bounce.lease(from.len())).await??;
        from.copy_to(&mut memory).doing("read lent memory")?;
        device::answer(disk.engine.write(file, at, memory)).await
    }

    /// Reads the first `len` bytes of a span.
    ///
    /// # Errors
    /// As [`Tier::read_staged_lent`].
    pub(crate) async fn read_staged(
        &self,
        file: &DiskFile,
        at: u64,
        into: Span,
        len: usize,
    ) -> Result<Span> {
        let disk = self.device_of_staged()?;
        let done = device::answer(disk.engine.read(file, at, into)).await;
        let (span, read) = match done {
            Ok(done) => (Some(done.span), done.result),
            Err(error) => (None, Err(error)),
        };
        self.whole(at, len, read)?;
        span.ok_or_else(device::silent)
    }

    fn whole(&self, at: u64, len: usize, read: Result<usize>) -> Result<()> {
        match self.answered(read)? {
            read if read >= len => Ok(()),
            read => Err(Error::new(ErrorKind::Corrupt, "a checkpoint's file is too short")
                .at("tier", self.name())
                .at("offset", at + read as u64)),
        }
    }

    /// Notes a failure of the device.
    fn answered<T>(&self, answer: Result<T>) -> Result<T> {
        answer.inspect_err(|error| match error.kind() {
            ErrorKind::Unavailable | ErrorKind::PermissionDenied => self.note_failure(error),
            ErrorKind::Full => self.note_full(error),
            _ => {}
        })
    }

    /// Makes a file durable and visible, cut to its length.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn seal_staged(
        &self,
        (id, file): (&str, &DiskFile),
        len: u64,
        record: Vec<u8>,
    ) -> Result<()> {
        let disk = self.device_of_staged()?;
        let name = id.to_owned();
        self.on_disk(move |directory| directory.trim_staged(&name, len)).await?;
        // Both have to be durable before the record gets its name, in any order.
        let name = id.to_owned();
        let written = self.on_disk(move |directory| directory.write_record(&name, &record));
        let synced = device::answer(disk.engine.sync_data(file));
        let (written, synced) = tokio::join!(written, synced);
        let is_written = written.is_ok();
        let both = self.answered(synced.and_then(|synced| synced)).and(self.answered(written));
        let name = id.to_owned();
        if let Err(error) = both {
            if is_written {
                // What is left is removed at the next start.
                let _ = self.on_disk(move |directory| directory.drop_record(&name)).await;
            }
            return Err(error);
        }
        if let Some(space) = self.staged_room().get(id) {
            space.shrink(len);
        }
        let visible = self.on_disk(move |directory| directory.reveal_record(&name)).await;
        self.answered(visible)
    }

    /// Replaces the record of a file.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn save_record(&self, id: &str, record: Vec<u8>) -> Result<()> {
        let name = id.to_owned();
        let saved = self.on_disk(move |directory| directory.save_record(&name, &record)).await;
        self.answered(saved)
    }

    /// Reads the record of a file.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn read_record(&self, id: &str) -> Result<Vec<u8>> {
        let name = id.to_owned();
        self.on_disk(move |directory| directory.read_record(&name)).await
    }

    /// Opens a file to read it.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn open_staged(&self, id: &str) -> Result<DiskFile> {
        check_staged_id(id)?;
        let disk = self.device_of_staged()?;
        self.answered(self.directory()?.open_staged(&disk.engine, id, Open::Read).await)
    }

    /// Removes a file and frees its room.
    ///
    /// # Errors
    /// Those of the device; then the file keeps its room.
    pub(crate) async fn remove_staged(&self, id: &str) -> Result<()> {
        let name = id.to_owned();
        self.on_disk(move |directory| directory.remove_staged(&name)).await?;
        self.staged_room().remove(id);
        Ok(())
    }
}

/// Tells what helps against a disk that others fill: it has less room than the tier may use.
fn advise_if_full(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Full => error.advise(
            "free space on the tier's disk, or lower the tier's capacity below what others leave \
             there",
        ),
        _ => error,
    }
}
