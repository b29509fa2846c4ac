//! A file on disk, opened past the page cache where the file system allows it.
//!
//! The abilities of a file (alignment, O_DIRECT) are queried once, when it is opened, and never
//! guessed. Without an answer of the file system the strictest common value applies.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::GRANULE;
use crate::cipher::FileCipher;
use crate::engine::Seat;

/// Mode to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, to go on writing.
    Update,
    /// A new file of `len` zero bytes with mode 0600, its disk space reserved.
    Create {
        /// Bytes to reserve; the file has this length from the start.
        len: u64,
    },
}

/// Alignment of operations on a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of the span's address.
    pub memory: usize,
    /// Alignment of the file offset and of the length.
    pub offset: usize,
}

impl Default for Alignment {
    fn default() -> Self {
        Self { memory: GRANULE, offset: GRANULE }
    }
}

/// An open file. Clones share one descriptor, which closes when the last of them and the last
/// operation on it are gone.
///
/// With a cipher, its bytes are encrypted on the disk: the engine encrypts before a write, and
/// decrypts in place after a read.
#[derive(Clone)]
pub struct DiskFile {
    inner: Arc<Inner>,
    cipher: Option<FileCipher>,
}

struct Inner {
    // The seat drops first: the ring is told to let go before the descriptor closes.
    seat: Seat,
    opened: Opened,
}

/// A descriptor and what is known of it, before an engine has given it a seat.
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    pub(crate) direct: bool,
    alignment: Alignment,
    path: Option<PathBuf>,
}

impl DiskFile {
    pub(crate) fn new(opened: Opened, seat: Seat) -> Self {
        Self { inner: Arc::new(Inner { seat, opened }), cipher: None }
    }

    /// The same file, whose bytes are encrypted on the disk. Its blocks are read and written whole.
    #[must_use]
    pub fn encrypted(self, cipher: FileCipher) -> Self {
        Self { cipher: Some(cipher), ..self }
    }

    /// Returns true if its bytes are encrypted on the disk.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    pub(crate) fn cipher(&self) -> Option<&FileCipher> {
        self.cipher.as_ref()
    }

    /// Returns the alignment of offsets, lengths and memory.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        let Alignment { memory, offset } = self.inner.opened.alignment;
        // Blocks of a cipher are whole.
        let unit = if self.is_encrypted() { GRANULE } else { offset };
        Alignment { memory, offset: offset.max(unit) }
    }

    /// False if the file goes through the page cache because its file system refused O_DIRECT (or
    /// because it was adopted without the flag).
    #[must_use]
    pub fn direct(&self) -> bool {
        self.inner.opened.direct
    }

    /// Sets disk space aside from `from` on, so that a full disk shows before the write. A shorter
    /// file becomes `from + len` bytes long: direct writes within its length run side by side,
    /// those beyond it one by one. Blocks on the file system.
    ///
    /// # Errors
    /// `Full` if the disk has no space; by errno otherwise.
    pub fn reserve(&self, from: u64, len: u64) -> Result<()> {
        reserve(&self.inner.opened.fd, from, len).map_err(|error| self.blame(error, from))
    }

    /// The path it was opened by, or the one the kernel knew when it was adopted.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.inner.opened.path.as_deref()
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.inner.seat
    }

    /// `error` with the place it happened at.
    pub(crate) fn blame(&self, error: Error, offset: u64) -> Error {
        let error = match self.path() {
            Some(path) => error.at("path", path.display()),
            None => error,
        };
        error.at("offset", offset)
    }
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.opened.fd.as_fd()
    }
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskFile")
            .field("path", &self.path())
            .field("direct", &self.direct())
            .field("alignment", &self.alignment())
            .finish_non_exhaustive()
    }
}

impl Opened {
    /// Opens `path`. Blocks on the file system.
    pub(crate) fn open(path: &Path, open: Open) -> Result<Self> {
        let place = |error: Error| error.at("path", path.display());
        let (fd, direct) = open_direct(path, open).map_err(place)?;
        if let Open::Create { len } = open
            && let Err(error) = reserve(&fd, 0, len)
        {
            // A file that could not get its space is no file: the name must be free for a retry.
            rustix::fs::unlink(path).doing("remove a file that got no space").map_err(place)?;
            return Err(place(error).at("bytes", len));
        }
        let alignment = alignment(&fd).map_err(place)?;
        Ok(Self { fd, direct, alignment, path: Some(path.to_owned()) })
    }

    /// Takes over a descriptor that someone else opened. Its flags stay as they are: they are
    /// shared with whoever passed it.
    pub(crate) fn adopt(fd: OwnedFd) -> Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd).doing("read a descriptor's flags")?;
        let alignment = alignment(&fd)?;
        let path = path_of(&fd);
        Ok(Self { direct: flags.contains(OFlags::DIRECT), fd, alignment, path })
    }
}

/// Opens a file and asks for O_DIRECT; false where the file system answers that it has none.
///
/// The flag is set after opening: given to `open` itself, a file system without it would refuse
/// only once the file has been created, and the half-made file would be in the way.
fn open_direct(path: &Path, open: Open) -> Result<(OwnedFd, bool)> {
    let access = match open {
        Open::Read => OFlags::RDONLY,
        Open::Update => OFlags::RDWR,
        Open::Create { .. } => OFlags::CREATE | OFlags::EXCL | OFlags::RDWR,
    };
    let fd = match rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR) {
        Err(Errno::EXIST) => {
            return Err(Error::new(ErrorKind::Invalid, "the file to create exists"));
        }
        other => other.doing("open a file")?,
    };
    let direct = ask_for_direct(fd.as_fd())?;
    Ok((fd, direct))
}

/// Asks for O_DIRECT on a file that is open; false where the file system answers that it has none.
///
/// # Errors
/// By errno, if the descriptor cannot be asked.
pub fn ask_for_direct(fd: BorrowedFd<'_>) -> Result<bool> {
    match rustix::fs::fcntl_setfl(fd, OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno).doing("open for direct I/O"),
    }
}

/// Sets disk space aside, and makes the file as long.
fn reserve(fd: &OwnedFd, from: u64, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(fd, FallocateFlags::empty(), from, len) {
        // No reservation on this file system: a full disk will show at the write instead.
        Err(Errno::OPNOTSUPP) => lengthen(fd, from.saturating_add(len)),
        other => other.doing("reserve disk space"),
    }
}

/// Makes a file `len` bytes long if it is shorter.
fn lengthen(fd: &OwnedFd, len: u64) -> Result<()> {
    let stat = rustix::fs::fstat(fd).doing("stat a file")?;
    match u64::try_from(stat.st_size).is_ok_and(|held| held < len) {
        true => rustix::fs::ftruncate(fd, len).doing("size a file"),
        false => Ok(()),
    }
}

/// Returns the kernel's alignment for direct I/O on the file (`STATX_DIOALIGN`, Linux 6.1).
fn alignment(fd: &OwnedFd) -> Result<Alignment> {
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .doing("read a file's alignment")?;
    let said = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let (memory, offset) = (stat.stx_dio_mem_align as usize, stat.stx_dio_offset_align as usize);
    // Zero means "no direct I/O here"; both are powers of two by contract, which masks rely on.
    let usable = said && memory.is_power_of_two() && offset.is_power_of_two();
    Ok(if usable { Alignment { memory, offset } } else { Alignment::default() })
}

/// The path the kernel shows for a descriptor, for messages only.
fn path_of(fd: &OwnedFd) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
}
