//! Disk I/O that owns its memory: io_uring on a dedicated thread, aligned registered spans, and a
//! thread pool where io_uring is missing or forbidden.
//!
//! Its rule: **memory the kernel may touch has exactly one owner, and while an operation is in
//! flight that owner is the engine.** A [`Span`] is moved into an [`Operation`] and comes back in
//! its [`Done`]; between the two no safe code can reach its bytes. Dropping the future changes
//! nothing about that: the engine keeps file and span until the kernel has finished, then drops
//! them.
//!
//! | part | holds |
//! |---|---|
//! | [`Region`] | one shared mapping on the best pages to be had |
//! | [`Arena`] | which bytes of a region are whose |
//! | [`Span`] | exclusive use of one range |
//! | [`Frozen`] | the same range once nobody writes to it: read, and written out, at the same time |
//! | [`LentRegion`] | memory that a client writes, and only the kernel reads |
//! | [`DiskFile`] | a descriptor, its alignment, its place in the ring's file table |
//! | [`FileCipher`] | key and tweak of a file whose bytes are encrypted on the disk |
//! | [`Engine`] | the thread (or pool) that moves bytes between the two |
//! | [`Faults`] | what tests let go wrong on the way |
//!
//! ```
//! # async fn run() -> forebay_error::Result<()> {
//! use forebay_uring::{Arena, Engine, EngineConfig, Open, Region};
//!
//! let engine = Engine::start(EngineConfig::default())?;
//! let arena = Arena::new(Region::create("frames", 8 << 20)?);
//! engine.attach(arena.region()).await?;
//! let file = engine.open("/etc/hostname".as_ref(), Open::Read).await?;
//! let done = engine.read(&file, 0, arena.lease(4096).await?).await;
//! let text = &done.span[..done.result?];
//! # let _ = text; Ok(()) }
//! ```

mod arena;
mod cipher;
mod engine;
mod exec;
mod file;
mod lent;
mod ranges;
mod region;
mod span;
mod streaming;

pub use arena::{Arena, Reclaim};
pub use cipher::{CIPHER_KEY_BYTES, CipherKey, FileCipher, MAC_BYTES, fill_random, mac};
pub use engine::{
    Attempt, AttemptKind, Counters, Done, Durations, Engine, EngineChoice, EngineConfig,
    EngineKind, EnginePlace, EngineReport, Fate, Faults, Operation, Read,
};
pub use exec::close_on_exec;
pub use file::{Alignment, DiskFile, Open, ask_for_direct};
pub use lent::{LentRegion, LentSpan};
pub use region::{CHUNK, PageReport, Region};
pub use span::{Frozen, Span};
pub use streaming::copy_past_caches;

/// Granule of every lease, in bytes: the page size, and the strictest alignment that O_DIRECT asks
/// for on disks in use today (4 KiB sectors). A span that starts on a granule suits every file.
pub const GRANULE: usize = 4096;
