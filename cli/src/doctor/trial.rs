//! Small trials of the daemon's work: its I/O engine, its memory, a block on a disk.
//!
//! The trials run the daemon's own code, and nothing remains: files have no name, memory ends with
//! the process.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::{
    Alignment, Arena, CHUNK, Engine, EngineChoice, EngineConfig, EngineReport, GRANULE, PageReport,
    Region, ask_for_direct,
};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, unlink};
use rustix::io::Errno;
use tokio::runtime::Runtime;

/// Memory to try with: enough for the writes of a measurement side by side, too little to be
/// missed.
const REGION: usize = 4 * CHUNK;

/// One block is written and read back within this time, or the disk hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A measurement that takes longer is of a disk that needs none.
const MEASURE_PATIENCE: Duration = Duration::from_secs(120);

/// Most bytes that a measurement writes and reads back.
pub(super) const MEASURED: u64 = 256 << 20;

/// Bytes of one request of a measurement: a part of a shard, as the daemon writes them.
const PIECE: usize = CHUNK;

/// The byte that is written: not zero, which a file has by itself.
const MARK: u8 = 0xA5;

/// The daemon's engine and some of its memory.
pub(super) struct Trial {
    runtime: Runtime,
    engine: Result<Engine>,
    region: Result<Arc<Region>>,
}

/// A file system's support for direct I/O.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Direct {
    /// True if files bypass the page cache.
    pub(super) direct: bool,
    /// Alignment of offsets, lengths and memory.
    pub(super) alignment: Alignment,
    /// True if disk space is reserved when a file is created.
    pub(super) reserves: bool,
}

/// Speed of a disk, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    pub(super) written: f64,
    pub(super) read: f64,
}

impl Trial {
    /// Starts the engine that the daemon would start.
    ///
    /// # Errors
    /// If there cannot even be a runtime.
    pub(super) fn start(choice: EngineChoice) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.doing("start the async runtime")?;
        let config = EngineConfig { name: "doctor".to_owned(), choice, ..EngineConfig::default() };
        let (engine, region) = (Engine::start(config), Region::create("forebay-doctor", REGION));
        Ok(Self { runtime, engine, region })
    }

    /// Returns the engine that started, and the reason.
    pub(super) fn engine(&self) -> Result<EngineReport> {
        self.engine.as_ref().map(Engine::report).map_err(Clone::clone)
    }

    /// On which pages memory came to lie.
    pub(super) fn pages(&self) -> Result<PageReport> {
        self.region.as_ref().map(|region| region.pages()).map_err(Clone::clone)
    }

    /// Writes a block in `directory` and reads it back.
    ///
    /// # Errors
    /// The error of making, writing or reading a file there; `Corrupt` if other bytes come
    /// back.
    pub(super) fn direct(&self, directory: &Path) -> Result<Direct> {
        let (fd, direct, reserves) = unnamed(directory, GRANULE as u64)?;
        let tried = self.bounded(PATIENCE, self.block(fd));
        let alignment = tried.map_err(|error| error.at("directory", directory.display()))?;
        Ok(Direct { direct, alignment, reserves })
    }

    /// Writes [`MEASURED`] bytes in `directory`, syncs and reads them back, all in sequence.
    ///
    /// # Errors
    /// As [`Trial::direct`].
    pub(super) fn measure(&self, directory: &Path) -> Result<Speed> {
        let (fd, _, _) = unnamed(directory, MEASURED)?;
        let measured = self.bounded(MEASURE_PATIENCE, self.sequence(fd));
        measured.map_err(|error| error.at("directory", directory.display()))
    }

    fn bounded<T>(&self, time: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        // The timer is made inside: it needs the runtime.
        let ended = self.runtime.block_on(async { tokio::time::timeout(time, work).await });
        ended.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the device does not answer")
                .at("seconds", time.as_secs()))
        })
    }

    async fn block(&self, fd: OwnedFd) -> Result<Alignment> {
        let (engine, arena) = (self.engine.as_ref().map_err(Clone::clone)?, self.arena()?);
        let file = engine.adopt(fd).await?;
        let mut span = arena.lease(GRANULE).await?;
        span.fill(MARK);
        let mut written = engine.write(&file, 0, span).await;
        written.result?;
        written.span.fill(0);
        let read = engine.read(&file, 0, written.span).await;
        let len = read.result?;
        match len == GRANULE && read.span.iter().all(|byte| *byte == MARK) {
            true => Ok(file.alignment()),
            false => Err(Error::new(
                ErrorKind::Corrupt,
                "a block read back differs from the written one",
            )),
        }
    }

    async fn sequence(&self, fd: OwnedFd) -> Result<Speed> {
        let (engine, arena) = (self.engine.as_ref().map_err(Clone::clone)?, self.arena()?);
        let file = engine.adopt(fd).await?;
        let rate = |began: Instant| MEASURED as f64 / began.elapsed().as_secs_f64();
        // As many at once as the memory holds, a turn at a time: enough to keep a drive busy.
        let turn = (REGION / PIECE) as u64;
        let turns = || (0..MEASURED / PIECE as u64).step_by(turn as usize);
        let began = Instant::now();
        for first in turns() {
            let mut under_way = Vec::new();
            for piece in first..first + turn {
                let mut span = arena.lease(PIECE).await?;
                span.fill(MARK);
                under_way.push(engine.write(&file, piece * PIECE as u64, span));
            }
            for operation in under_way {
                operation.await.result?;
            }
        }
        engine.sync_data(&file).await?;
        let written = rate(began);
        let began = Instant::now();
        for first in turns() {
            let mut under_way = Vec::new();
            for piece in first..first + turn {
                let span = arena.lease(PIECE).await?;
                under_way.push(engine.read(&file, piece * PIECE as u64, span));
            }
            for operation in under_way {
                operation.await.result?;
            }
        }
        Ok(Speed { written, read: rate(began) })
    }

    fn arena(&self) -> Result<Arena> {
        Ok(Arena::new(self.region.as_ref().map_err(Clone::clone)?.clone()))
    }
}

/// A file of `len` bytes in `directory` that nobody else sees and that is gone with its descriptor;
/// whether it goes past the page cache, and whether its space is set aside.
fn unnamed(directory: &Path, len: u64) -> Result<(OwnedFd, bool, bool)> {
    let at = |error: Error| error.at("directory", directory.display());
    let doing = "make a file without a name";
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = match open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        // Some file systems have no files without a name: one that loses its name at once will do.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let path = directory.join(format!(".forebay-doctor-{}", std::process::id()));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let fd = open(&path, flags, mode).doing(doing).map_err(at)?;
            unlink(&path).doing("unlink a file").map_err(at)?;
            fd
        }
        tried => tried.doing(doing).map_err(at)?,
    };
    let direct = ask_for_direct(fd.as_fd()).map_err(at)?;
    let reserves = match fallocate(&fd, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP) => false,
        tried => {
            tried.doing("reserve disk space").map_err(at)?;
            true
        }
    };
    Ok((fd, direct, reserves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_reads_its_block_back_and_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        for choice in [EngineChoice::Auto, EngineChoice::Threads] {
            let trial = Trial::start(choice).unwrap();
            let direct = trial.direct(directory.path()).unwrap();
            assert!(direct.alignment.offset.is_power_of_two());
            let pages = trial.pages().unwrap();
            assert_eq!(pages.hugetlb + pages.collapsed + pages.small, REGION);
            let speed = trial.measure(directory.path()).unwrap();
            assert!(speed.written > 0.0 && speed.read > 0.0);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn unwritable_directory_is_reported_by_path() {
        let trial = Trial::start(EngineChoice::Threads).unwrap();
        let error = trial.direct("/proc/nowhere".as_ref()).unwrap_err();
        assert_eq!(error.place("directory"), Some("/proc/nowhere"));
    }
}
