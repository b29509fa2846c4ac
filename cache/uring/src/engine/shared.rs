//! State shared by an engine's threads and its handles.
//!
//! Nothing here keeps an engine, a region or a file alive. A [`Seat`] or an [`Attachment`] that
//! drops retires its table entry.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::config::EngineConfig;
use super::counters::{Counters, Counting};
use super::queue::{Bell, Queue, Retired};
use super::report::{EngineKind, EngineReport};
use crate::file::{DiskFile, Opened};
use crate::region::Region;

pub(crate) struct Shared {
    /// Unique in this process, so that a file's seat is used only by the engine that gave it.
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) kind: EngineKind,
    pub(super) queue: Queue,
    pub(super) counting: Counting,
    in_flight_limit: u32,
    ring_flags: OnceLock<Vec<&'static str>>,
    node: OnceLock<u32>,
    memory: Mutex<Memory>,
    files: Files,
}

/// Attached regions by id.
#[derive(Default)]
struct Memory {
    regions: HashMap<u64, Attached>,
    refusal: Option<String>,
}

struct Attached {
    bytes: usize,
    registered: bool,
}

#[derive(Default)]
struct Files {
    open: AtomicUsize,
    registered: AtomicUsize,
    buffered: AtomicUsize,
}

impl Shared {
    pub(super) fn new(
        config: &EngineConfig,
        kind: EngineKind,
        in_flight_limit: u32,
        bell: Bell,
    ) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: config.name.clone(),
            kind,
            queue: Queue::new(config.depth, bell),
            counting: Counting::default(),
            in_flight_limit,
            ring_flags: OnceLock::new(),
            node: OnceLock::new(),
            memory: Mutex::default(),
            files: Files::default(),
        })
    }

    /// Notes the flags a ring was set up with.
    pub(super) fn granted(&self, flags: Vec<&'static str>) {
        // Set once, by the one ring thread.
        let _first = self.ring_flags.set(flags);
    }

    /// Notes that a thread keeps to a NUMA node.
    pub(super) fn settled(&self, node: u32) {
        // All threads of an engine keep to the same one.
        let _first = self.node.set(node);
    }

    pub(super) fn counters(&self) -> Counters {
        let mut counters = self.counting.read();
        counters.system_calls += self.queue.wakes();
        counters
    }

    pub(super) fn report(&self) -> EngineReport {
        let memory = self.memory();
        let bytes = |registered| {
            let alike = memory.regions.values().filter(|region| region.registered == registered);
            alike.map(|region| region.bytes).sum()
        };
        EngineReport {
            name: self.name.clone(),
            kind: self.kind.clone(),
            in_flight_limit: self.in_flight_limit,
            ring_flags: self
                .ring_flags
                .get()
                .into_iter()
                .flatten()
                .map(|flag| (*flag).to_owned())
                .collect(),
            node: self.node.get().copied(),
            registered_bytes: bytes(true),
            unregistered_bytes: bytes(false),
            refusal: memory.refusal.clone(),
            files: self.files.open.load(Ordering::Relaxed),
            registered_files: self.files.registered.load(Ordering::Relaxed),
            buffered_files: self.files.buffered.load(Ordering::Relaxed),
            counters: self.counters(),
            durations: self.counting.durations(),
        }
    }

    /// Books a region as attached, registered or (with the reason) not. Threads of the engine only.
    pub(super) fn book(self: &Arc<Self>, region: &Arc<Region>, refusal: Option<String>) {
        let mut memory = self.memory();
        let attached = Attached { bytes: region.len(), registered: refusal.is_none() };
        let known = memory.regions.insert(region.id(), attached).is_some();
        if refusal.is_some() {
            memory.refusal = refusal;
        }
        drop(memory);
        if !known {
            let attachment =
                Attachment { shared: Arc::downgrade(self), engine: self.id, region: region.id() };
            lock_attachments(region).push(attachment);
        }
    }

    /// Drops the region's attachment to this engine, if any.
    pub(super) fn detach(&self, region: &Arc<Region>) {
        let gone: Vec<Attachment> =
            lock_attachments(region).extract_if(.., |have| have.engine == self.id).collect();
        drop(gone);
    }

    /// Gives an opened file its seat.
    pub(super) fn seated(self: &Arc<Self>, opened: Opened) -> DiskFile {
        let seat = Seat {
            shared: Arc::downgrade(self),
            engine: self.id,
            index: OnceLock::new(),
            operations: AtomicU32::new(0),
            buffered: !opened.direct,
        };
        self.files.open.fetch_add(1, Ordering::Relaxed);
        self.files.buffered.fetch_add(usize::from(seat.buffered), Ordering::Relaxed);
        DiskFile::new(opened, seat)
    }

    /// Counts an operation of a file, and registers the file by `set` with the `after`th. Threads
    /// of the engine only.
    pub(super) fn count(
        &self,
        file: &DiskFile,
        after: u32,
        set: impl FnOnce(BorrowedFd<'_>) -> Option<u32>,
    ) {
        let seat = file.seat();
        if seat.engine == self.id
            && seat.index.get().is_none()
            && seat.operations.fetch_add(1, Ordering::Relaxed) + 1 == after
            && let Some(index) = set(file.as_fd())
            && seat.index.set(index).is_ok()
        {
            self.files.registered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("nothing panics while the book is open")
    }
}

fn lock_attachments(region: &Region) -> MutexGuard<'_, Vec<Attachment>> {
    region.attachments().lock().expect("nothing panics while the list is open")
}

/// A region's entry with one engine; dropping it ends the registration.
pub(crate) struct Attachment {
    shared: Weak<Shared>,
    engine: u64,
    region: u64,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let attached = shared.memory().regions.remove(&self.region);
        if attached.is_some_and(|attached| attached.registered) {
            shared.queue.retire(Retired::Region(self.region));
        }
    }
}

/// A file's entry with its engine; dropping it frees the place in the ring's table.
pub(crate) struct Seat {
    shared: Weak<Shared>,
    engine: u64,
    index: OnceLock<u32>,
    /// Operations so far, up to the one with which the file is registered.
    operations: AtomicU32,
    buffered: bool,
}

impl Seat {
    /// The file's index in the table of the engine `engine`, if it is that engine's.
    pub(super) fn index_at(&self, engine: u64) -> Option<u32> {
        self.index.get().copied().filter(|_| self.engine == engine)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.files.open.fetch_sub(1, Ordering::Relaxed);
        shared.files.buffered.fetch_sub(usize::from(self.buffered), Ordering::Relaxed);
        if let Some(index) = self.index.get() {
            shared.files.registered.fetch_sub(1, Ordering::Relaxed);
            shared.queue.retire(Retired::File(*index));
        }
    }
}
