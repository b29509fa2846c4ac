//! Settings of an engine.
//!
//! Every value is checked once, before a thread exists.

use std::path::PathBuf;

use forebay_error::{Error, ErrorKind, Result};

/// Operations in flight by default: 128 × 128 KiB is 16 MiB, several times what the fastest NVMe
/// drive needs to be busy (14 GB/s × 100 µs = 1.4 MB), and 128 × 4 KiB still covers a random-read
/// drive's internal parallelism.
const DEFAULT_DEPTH: u32 = 128;

/// Most operations in flight: ring memory stays under 1 MiB, and the kernel takes ring sizes to
/// 32 768.
const MAX_DEPTH: u32 = 4096;

/// Choice of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where a probe finds it usable, else the thread pool, with the reason kept.
    #[default]
    Auto,
    /// io_uring or an error.
    Ring,
    /// The thread pool.
    Threads,
    /// tokio-uring or an error: for tests and benchmarks.
    #[cfg(feature = "tokio-uring")]
    TokioUring,
}

/// Settings to start an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Names the engine's threads and its report, e.g. the device it serves.
    pub name: String,
    /// Choice of the engine.
    pub choice: EngineChoice,
    /// Most operations the kernel works on at once, 1 to 4096. As many again wait in the queue.
    pub depth: u32,
    /// A directory on the disk that the engine is for. On a machine with several NUMA nodes the
    /// engine's threads keep to the processors of the node that this disk hangs on. It need not
    /// exist yet.
    pub near: Option<PathBuf>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let (choice, depth) = (EngineChoice::Auto, DEFAULT_DEPTH);
        Self { name: "disk".to_owned(), choice, depth, near: None }
    }
}

impl EngineConfig {
    pub(super) fn checked(self) -> Result<Self> {
        if (1..=MAX_DEPTH).contains(&self.depth) {
            return Ok(self);
        }
        Err(Error::new(ErrorKind::Invalid, "the engine's depth is out of range")
            .at("engine", &self.name)
            .at("depth", self.depth)
            .advise(format!("choose 1 to {MAX_DEPTH}")))
    }
}
