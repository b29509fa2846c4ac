//! The thread (or pool) that moves bytes between files and spans.
//!
//! The face is the same over all engines, and which one runs, and why, is never a
//! secret: [`Engine::kind`] and [`Engine::report`] say it.
//!
//! ```text
//!  read / write / sync ──► permit ──► queue ──► carrier: the ring's slots ⇄ kernel ──► Done
//!   (any thread)          (2×depth)  (one lock)          or pread / pwrite
//! ```
//! An operation holds a permit from the queue until the kernel is done with it, so queue and slots
//! are bounded by the number of permits; an [`Operation`] without one waits when it is polled.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::file::{DiskFile, Open, Opened};
use crate::lent::LentSpan;
use crate::region::Region;
use crate::span::{Frozen, Memory, Span};

mod carrier;
mod config;
mod counters;
mod fault;
mod flight;
mod node;
mod operation;
mod probe;
mod queue;
mod report;
mod ring;
mod shared;
mod slots;
mod threads;
#[cfg(feature = "tokio-uring")]
mod tokio_uring;

pub use config::{EngineChoice, EngineConfig};
pub use counters::{Counters, Durations};
pub use fault::{Attempt, AttemptKind, Fate, Faults};
pub use operation::{Done, Operation, Read};
pub use report::{EngineKind, EngineReport};
pub(crate) use shared::{Attachment, Seat};

use carrier::launch;
use flight::{Direction, Flight, SyncFlight, Transfer};
use queue::Order;
use ring::Ring;
use shared::Shared;
use threads::Worker;

/// Time that an engine waits at its end for what is in flight. A disk that takes longer does not
/// answer.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A disk I/O engine. Clones share it; the last drop finishes what is in flight and joins the
/// threads. Threads of a disk that does not answer are left to themselves, with the memory that the
/// kernel may touch.
#[derive(Clone)]
pub struct Engine {
    running: Arc<Running>,
    /// Asked before each operation of this handle, in tests.
    faults: Option<Arc<dyn Faults>>,
}

/// The threads, stopped on drop.
struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected once every thread has ended.
    ended: Mutex<mpsc::Receiver<Infallible>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.queue.close();
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if !self.threads.iter().any(is_own) {
            let ended = self.ended.get_mut().expect("nothing panics while it is locked");
            if ended.recv_timeout(END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let engine = &self.shared.name;
                tracing::error!(engine, "a disk does not answer: its engine's threads are left");
                return;
            }
        }
        for thread in self.threads.drain(..) {
            // A waker run by the engine's own thread may be what drops the last handle.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!(engine = self.shared.name, "an engine thread panicked");
            }
        }
    }
}

impl Engine {
    /// Starts the engine that `config` chooses. Blocks for the time of a few system calls.
    ///
    /// # Errors
    /// `Invalid` for a depth out of range; with [`EngineChoice::Ring`] the reason why there is no
    /// io_uring; `Unavailable` if no thread can be started.
    pub fn start(config: EngineConfig) -> Result<Self> {
        let config = config.checked()?;
        let ring = || launch::<Ring>(&config, EngineKind::Ring);
        let pool = |reason: String| launch::<Worker>(&config, EngineKind::Threads { reason });
        let running = match config.choice {
            EngineChoice::Ring => ring()?,
            EngineChoice::Threads => pool("chosen by configuration".to_owned())?,
            #[cfg(feature = "tokio-uring")]
            EngineChoice::TokioUring => {
                launch::<tokio_uring::Guest>(&config, EngineKind::TokioUring)?
            }
            EngineChoice::Auto => match ring() {
                Ok(running) => running,
                Err(error) => {
                    tracing::warn!(engine = config.name, %error, "io_uring is not usable: using a thread pool");
                    pool(error.to_string())?
                }
            },
        };
        Ok(Self { running: Arc::new(running), faults: None })
    }

    /// The same engine, with `faults` (instead of any before) asked before and told after each
    /// read, write and sync that begins at the new handle. Other handles are as they were.
    #[must_use]
    pub fn with_faults(&self, faults: Arc<dyn Faults>) -> Self {
        Self { running: Arc::clone(&self.running), faults: Some(faults) }
    }

    /// Returns the kind of the running engine.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.running.shared.kind.clone()
    }

    /// Everything an operator may ask about the engine.
    #[must_use]
    pub fn report(&self) -> EngineReport {
        self.running.shared.report()
    }

    /// Returns the counters since its start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.running.shared.counters()
    }

    /// Returns the device's load now: the share of all possible operations that wait or are with
    /// the kernel, 0 to 1.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.running.shared.queue.load()
    }

    /// Registers a region's memory with the ring, which spares pinning pages on every operation.
    ///
    /// `Ok(false)`: the kernel refused (usually the memlock limit) or a pool has no use for it;
    /// operations work all the same, and [`Engine::report`] gives the reason. The engine keeps no
    /// reference: the memory is released when the region's last `Arc` drops or by
    /// [`Engine::detach`].
    ///
    /// # Errors
    /// `Closed` if the engine has stopped.
    pub async fn attach(&self, region: &Arc<Region>) -> Result<bool> {
        let (reply, answer) = oneshot::channel();
        let permit = self.running.shared.queue.permit().await?;
        let region = Arc::downgrade(region);
        self.running.shared.queue.push([Order::Attach { region, reply, permit }]);
        answer.await.map_err(|_| closed())
    }

    /// Forgets a region's memory. Operations in flight are not disturbed; later ones go
    /// unregistered.
    pub fn detach(&self, region: &Arc<Region>) {
        self.running.shared.detach(region);
    }

    /// Opens a file past the page cache, or through it where the file system has no O_DIRECT.
    ///
    /// Needs a tokio runtime: the blocking calls run on its blocking threads.
    ///
    /// # Errors
    /// By errno: `NotFound`, `PermissionDenied`, `Full` (no space for [`Open::Create`], which then
    /// leaves no file), `Invalid` (the file to create exists), each with the path.
    pub async fn open(&self, path: &Path, open: Open) -> Result<DiskFile> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || Opened::open(&path, open)).await;
        Ok(self.seat(opened.map_err(|error| interrupted("open a file", &error))??))
    }

    /// Takes over a descriptor opened elsewhere, with the flags it has.
    ///
    /// # Errors
    /// If the descriptor cannot be asked for its flags and alignment.
    pub async fn adopt(&self, fd: OwnedFd) -> Result<DiskFile> {
        let opened = tokio::task::spawn_blocking(move || Opened::adopt(fd)).await;
        Ok(self.seat(opened.map_err(|error| interrupted("adopt a file", &error))??))
    }

    /// Reads from `offset` until `into` is full or the file ends. An encrypted file's bytes are
    /// decrypted in place by the task that awaits them.
    ///
    /// Offset, span start and span length must meet the file's alignment; else the operation is
    /// done at once with `Invalid`.
    pub fn read(&self, file: &DiskFile, offset: u64, into: Span) -> Operation {
        self.submit(Direction::Read, file.clone(), offset, Memory::Span(into))
    }

    /// Writes all of `from` at `offset`. The same alignment holds as for [`Engine::read`]. For an
    /// encrypted file the bytes are encrypted in place, and come back encrypted.
    pub fn write(&self, file: &DiskFile, offset: u64, mut from: Span) -> Operation {
        if let Some(cipher) = file.cipher()
            && let Err(error) = cipher.encrypt(offset, &mut from)
        {
            return Operation::failed(from, file.blame(error, offset));
        }
        self.submit(Direction::Write, file.clone(), offset, Memory::Span(from))
    }

    /// Encrypts `from` into `memory`, of the same length, and writes that at `offset` of an
    /// encrypted file: for bytes that others read meanwhile.
    pub fn write_encrypted(
        &self,
        file: &DiskFile,
        offset: u64,
        from: &[u8],
        mut memory: Span,
    ) -> Operation {
        let encrypted = match file.cipher() {
            Some(cipher) => cipher.encrypt_into(offset, from, &mut memory),
            None => Err(Error::new(ErrorKind::Invalid, "the file is not encrypted")),
        };
        match encrypted {
            Ok(()) => self.submit(Direction::Write, file.clone(), offset, Memory::Span(memory)),
            Err(error) => Operation::failed(memory, file.blame(error, offset)),
        }
    }

    /// Writes all of `from` at `offset` while others read it; the same alignment holds. The caller
    /// has the bytes already: no span comes back. An encrypted file rejects it: the bytes would
    /// change.
    pub fn write_frozen(&self, file: &DiskFile, offset: u64, from: Frozen) -> Operation {
        self.submit(Direction::Write, file.clone(), offset, Memory::Frozen(from))
    }

    /// Writes a client's bytes at `offset`; the same alignment holds. The bytes may change
    /// meanwhile: the file gets some of what the client wrote. No span comes back. An encrypted
    /// file rejects it.
    pub fn write_lent(&self, file: &DiskFile, offset: u64, from: LentSpan) -> Operation {
        self.submit(Direction::Write, file.clone(), offset, Memory::Lent(from))
    }

    /// Reads into a client's memory from `offset` until it is full or the file ends; the same
    /// alignment holds. No span comes back. An encrypted file rejects it.
    pub fn read_lent(&self, file: &DiskFile, offset: u64, into: LentSpan) -> Operation {
        self.submit(Direction::Read, file.clone(), offset, Memory::Lent(into))
    }

    /// Many reads with at most one wake-up of the engine; operations come in the order of `reads`.
    ///
    /// Those beyond the engine's free permits start when they are polled.
    pub fn read_many(&self, reads: Vec<Read>) -> Vec<Operation> {
        let mut ready = Vec::with_capacity(reads.len());
        let operations = reads
            .into_iter()
            .map(|Read { file, offset, into }| {
                let made = Transfer::new(Direction::Read, file, offset, Memory::Span(into));
                self.prepare(made, &mut ready)
            })
            .collect();
        self.running.shared.queue.push(ready);
        operations
    }

    /// Makes the file's data durable (`fdatasync`).
    ///
    /// # Errors
    /// By errno, with the path; `Closed` if the engine has stopped.
    pub async fn sync_data(&self, file: &DiskFile) -> Result<()> {
        let asked = Instant::now();
        let (reply, answer) = oneshot::channel();
        let permit = self.running.shared.queue.permit().await?;
        let sync = Flight::Sync(SyncFlight::new(file.clone(), asked, reply, Some(permit)));
        let Running { shared, .. } = &*self.running;
        shared.queue.push(fault::clear(self.faults.as_ref(), sync, shared));
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Takes a place for operations that the caller carries out itself, one by one, on a thread
    /// that may block. So whoever goes on there afterwards switches threads once.
    ///
    /// # Errors
    /// `Closed` if the engine has stopped.
    pub async fn place(&self) -> Result<EnginePlace> {
        let permit = self.running.shared.queue.permit().await?;
        Ok(EnginePlace { engine: self.clone(), _permit: permit })
    }

    fn submit(
        &self,
        direction: Direction,
        file: DiskFile,
        offset: u64,
        memory: Memory,
    ) -> Operation {
        let mut ready = Vec::with_capacity(1);
        let made = Transfer::new(direction, file, offset, memory);
        let operation = self.prepare(made, &mut ready);
        self.running.shared.queue.push(ready);
        operation
    }

    fn prepare(
        &self,
        made: std::result::Result<Transfer, Done>,
        ready: &mut Vec<Order>,
    ) -> Operation {
        Operation::prepare(made, &self.running.shared, self.faults.as_ref(), ready)
    }

    fn seat(&self, opened: Opened) -> DiskFile {
        self.running.shared.seated(opened)
    }
}

/// A place of an engine, for operations on the caller's thread.
#[must_use = "a place that is not used keeps others waiting"]
pub struct EnginePlace {
    engine: Engine,
    _permit: OwnedSemaphorePermit,
}

impl EnginePlace {
    /// Opens a file, as [`Engine::open`]. Blocks.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open(&self, path: &Path, open: Open) -> Result<DiskFile> {
        Ok(self.engine.seat(Opened::open(path, open)?))
    }

    /// Writes all of `from` at `offset`, as [`Engine::write_frozen`]. Blocks. Returns the bytes
    /// written.
    ///
    /// # Errors
    /// As [`Engine::write_frozen`].
    pub fn write_frozen(&self, file: &DiskFile, offset: u64, from: Frozen) -> Result<usize> {
        let memory = Memory::Frozen(from);
        let made = Transfer::new(Direction::Write, file.clone(), offset, memory);
        let mut transfer = match made {
            Ok(transfer) => transfer,
            Err(done) => return done.result,
        };
        let (reply, answer) = oneshot::channel();
        transfer.board(reply, None);
        self.fly(Flight::Transfer(transfer));
        answer.blocking_recv().map_err(|_| closed())?.result
    }

    /// Makes the written bytes of the file durable (`fdatasync`). Blocks.
    ///
    /// # Errors
    /// As [`Engine::sync_data`].
    pub fn sync_data(&self, file: &DiskFile) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.fly(Flight::Sync(SyncFlight::new(file.clone(), Instant::now(), reply, None)));
        answer.blocking_recv().unwrap_or_else(|_| Err(closed()))
    }

    fn fly(&self, flight: Flight) {
        let shared = &self.engine.running.shared;
        if let Some(Order::Fly(flight)) = fault::clear(self.engine.faults.as_ref(), flight, shared)
        {
            threads::fly(flight, shared);
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.running.shared.name)
            .field("kind", &self.running.shared.kind)
            .finish_non_exhaustive()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the disk engine has stopped")
}

/// A blocking call whose thread panicked or whose runtime is shutting down.
fn interrupted(doing: &str, error: &tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Closed, format!("failed to {doing}: {error}"))
}
