//! A reader: the process that touches file systems on behalf of a daemon.
//!
//! It has a socket, memory of its own and the file it reads, and ends when the socket
//! does. Whatever it waits for, nobody waits for it but who asked, and that one has a time limit.

mod passed;

use std::io::{BufReader, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::{Arena, GRANULE, Region, Span};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use passed::{Open, Passed, tagged};

use super::message::{self, Answer, Hello, PIECE, PREFIX, Request, Said, USUAL};
use crate::layout::Layout;
use crate::stat::{Binding, Stat, file_version};

/// The name under which Lustre's client tells a file's layout.
const LUSTRE_LAYOUT: &str = "lustre.lov";

/// Longest read through the page cache. A copy out of it takes 10 µs at this length, a read of a
/// disk 100 µs. Longer reads would spend more of a core on the copy than they save.
const SHORT: u64 = 256 << 10;

/// The kernel's limit on an extended attribute.
const ATTRIBUTE_MAX: usize = 64 << 10;

/// Asks a client for the descriptor of a file.
pub type Opener = Box<dyn FnMut(&str) -> Result<OwnedFd>>;

/// Answers the daemon at the other end of standard input, until that end closes. `connect` makes a
/// socket to a client into what asks it for files.
///
/// # Errors
/// `Invalid` if standard input is no such socket; `Full` if there is no memory.
pub fn serve(connect: impl FnOnce(UnixStream) -> Result<Opener>) -> Result<()> {
    serve_layouts_of(LUSTRE_LAYOUT, connect)
}

/// The same where a file's layout goes by another name: only Lustre has attributes of that one, and
/// tests have other file systems.
///
/// # Errors
/// As [`serve`].
#[doc(hidden)]
pub fn serve_layouts_of(
    attribute: &str,
    connect: impl FnOnce(UnixStream) -> Result<Opener>,
) -> Result<()> {
    let stdin = std::io::stdin();
    let socket = stdin.as_fd().try_clone_to_owned().doing("take the daemon's socket")?;
    rustix::net::getsockname(&socket).map_err(|_| {
        Error::new(ErrorKind::Invalid, "a reader is started by a daemon, not by hand")
            .advise("run `forebay daemon` or a training job, which start readers")
    })?;
    let socket = UnixStream::from(socket);
    end_with_daemon()?;
    let arena = Arena::new(Region::create("forebay-reader", PIECE)?);
    let whole = arena.try_lease(PIECE);
    let mut memory = whole.expect("memory just mapped is free");
    greet(&socket, &arena)?;
    let mut files = match client(&socket) {
        Ok(Some(client)) => Files::ByClient(Passed::new(connect(client)?)),
        Ok(None) => Files::Named,
        // The daemon ended meanwhile.
        Err(_) => return Ok(()),
    };
    let mut socket = BufReader::with_capacity(USUAL, socket);
    while let Some(request) = receive(&mut socket)? {
        let said: Said = files.answer(&request, attribute, &mut memory);
        if said.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed) {
            // The client is asked no more: a reader that starts anew may have better luck.
            break;
        }
        let frame = message::encode(&said)?;
        if socket.get_mut().write_all(&frame).is_err() {
            // The daemon ended meanwhile.
            break;
        }
    }
    Ok(())
}

/// Ends this process at once when the daemon's end of the socket closes, whatever the thread that
/// answers waits for: a slow file system, or a client that does not open a file.
fn end_with_daemon() -> Result<()> {
    let watch = || {
        let socket = std::io::stdin();
        // A hang-up comes unasked.
        let mut watched = [PollFd::new(&socket, PollFlags::empty())];
        while matches!(poll(&mut watched, None), Ok(0) | Err(Errno::INTR)) {}
        std::process::exit(0);
    };
    let thread = std::thread::Builder::new().name("watch".to_owned());
    thread.spawn(watch).map(drop).doing("watch the daemon's socket")
}

/// The socket to the client that opens the files, if one does: it rides on the daemon's first byte.
fn client(socket: &UnixStream) -> std::io::Result<Option<UnixStream>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut target = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    if rustix::net::recvmsg(socket, &mut target, &mut ancillary, flags)?.bytes == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next().map(UnixStream::from),
        _ => None,
    }))
}

/// Says who this is, and hands over the memory that bytes are read into.
fn greet(socket: &UnixStream, arena: &Arena) -> Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let rights = [arena.region().fd()];
    let has_room = ancillary.push(SendAncillaryMessage::ScmRights(&rights));
    debug_assert!(has_room, "the space is that of one descriptor");
    let byte = [IoSlice::new(&[0])];
    rustix::net::sendmsg(socket, &byte, &mut ancillary, SendFlags::NOSIGNAL)
        .doing("greet the daemon")?;
    let hello = Hello { release: env!("CARGO_PKG_VERSION").to_owned() };
    let mut socket = socket;
    socket.write_all(&message::encode(&hello)?).doing("greet the daemon")
}

/// The next request; `None` once the daemon has closed the socket, or is gone.
fn receive(socket: &mut impl Read) -> Result<Option<Request>> {
    let mut prefix = [0; PREFIX];
    if socket.read_exact(&mut prefix).is_err() {
        return Ok(None);
    }
    let mut body = vec![0; message::body_len(prefix)?];
    if socket.read_exact(&mut body).is_err() {
        return Ok(None);
    }
    message::decode(&body).map(Some)
}

/// Ways to open files.
enum Files {
    /// By their paths, here.
    Named,
    /// A client opens them.
    ByClient(Passed),
}

impl Files {
    fn answer(&mut self, request: &Request, attribute: &str, memory: &mut Span) -> Said {
        match (self, request) {
            (Self::Named, Request::Stat { path }) => {
                let stat = rustix::fs::stat(path.as_str()).doing("stat the shard")?;
                let said = stat_of(&stat)?;
                Ok(looked_at(layout_of(&At::Path(path), &stat, attribute), said))
            }
            (Self::Named, Request::Read { path, offset, len, .. }) => {
                File::open(path)?.answer(*offset, *len, memory)
            }
            (Self::ByClient(passed), Request::Stat { path }) => {
                let Open { file, tag, .. } = passed.open(path)?;
                let stat = rustix::fs::fstat(&file.fd).doing("stat the shard")?;
                let said = tagged(stat_of(&stat)?, tag);
                Ok(looked_at(layout_of(&At::Descriptor(file.fd.as_fd()), &stat, attribute), said))
            }
            (Self::ByClient(passed), Request::Read { path, version, offset, len }) => {
                let Open { file, tag, .. } = passed.of_version(path, version)?;
                let mut answer = file.answer(*offset, *len, memory)?;
                answer.stat = tagged(answer.stat, tag);
                Ok(answer)
            }
        }
    }
}

/// The answer to a look.
fn looked_at((layout, layout_fault): (Layout, Option<Error>), stat: Stat) -> Answer {
    Answer { stat: Stat { layout, ..stat }, start: 0, len: 0, direct: true, layout_fault }
}

/// An open file.
struct File {
    fd: OwnedFd,
    way: Way,
}

/// Way of a file's reads.
#[derive(Clone, Copy)]
enum Way {
    /// Not chosen yet: no read had to.
    Open,
    /// Past the page cache, in blocks of this many bytes.
    Direct(u64),
    /// Through the page cache: its file system refuses direct reads.
    Cached,
}

impl File {
    fn open(path: &str) -> Result<Self> {
        // A pipe somebody named must not make us wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Self::of(rustix::fs::open(path, flags, Mode::empty()).doing("open the shard")?)
    }

    /// One that is open for reading.
    fn of(fd: OwnedFd) -> Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd).doing("stat a descriptor")?;
        let file = Self { fd, way: Way::Open };
        if flags.contains(OFlags::DIRECT) {
            file.go_through_the_page_cache()?;
        }
        Ok(file)
    }

    /// Chooses the way of further reads.
    fn choose(&mut self) -> Result<Way> {
        if let Way::Open = self.way {
            // Not given to `open`, which would not tell this refusal from others.
            let block = match rustix::fs::fcntl_setfl(&self.fd, OFlags::DIRECT) {
                Ok(()) => self.ask_block()?,
                Err(Errno::INVAL) => None,
                Err(error) => return Err(error).doing("open for direct reads"),
            };
            self.way = match block {
                Some(block) => Way::Direct(block),
                None => {
                    self.go_through_the_page_cache()?;
                    Way::Cached
                }
            };
        }
        Ok(self.way)
    }

    /// Returns the kernel's block size of the file (`STATX_DIOALIGN`, Linux 6.1), else the
    /// strictest alignment of disks in use; `None` for blocks that no part of our memory suits.
    fn ask_block(&self) -> Result<Option<u64>> {
        let said = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            .doing("read the shard's alignment")?;
        let is_said = said.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let (memory, block) = (said.stx_dio_mem_align, u64::from(said.stx_dio_offset_align));
        let is_usable = |block: u64| block.is_power_of_two() && block < PIECE as u64;
        Ok(match is_said {
            false => Some(GRANULE as u64),
            // Zero says that there are no direct reads of this file.
            true => Some(block).filter(|block| is_usable(*block) && memory as usize <= GRANULE),
        })
    }

    fn go_through_the_page_cache(&self) -> Result<()> {
        rustix::fs::fcntl_setfl(&self.fd, OFlags::empty()).doing("open for cached reads")
    }

    /// Reads, and stats the file afterwards.
    fn answer(&mut self, offset: u64, len: u64, memory: &mut Span) -> Said {
        let (start, len) = self.read(offset, len, memory)?;
        let stat = stat_of(&rustix::fs::fstat(&self.fd).doing("stat the shard")?)?;
        let direct = !matches!(self.way, Way::Cached);
        Ok(Answer { stat, start, len, direct, layout_fault: None })
    }

    /// Reads the first bytes of a short range as far as they are in the page cache. Returns their
    /// number, or none if the file system does not tell.
    fn read_cached(&self, offset: u64, len: u64, memory: &mut Span) -> Option<u64> {
        let is_tried = matches!(self.way, Way::Open) && len <= SHORT;
        let memory = memory.get_mut(..usize::try_from(len).ok()?).filter(|_| is_tried)?;
        let mut memory = [IoSliceMut::new(memory)];
        match rustix::io::preadv2(&self.fd, &mut memory, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Some(read as u64),
            Err(Errno::AGAIN) => Some(0),
            Err(_) => None,
        }
    }

    /// Reads `len` bytes from `offset`, or as many as there are and fit; with where they begin in
    /// the memory, and how many they are.
    fn read(&mut self, offset: u64, len: u64, memory: &mut Span) -> Result<(u64, u64)> {
        let way = match self.read_cached(offset, len, memory) {
            Some(read) if read == len => return Ok((0, len)),
            // The kernel has begun to read the rest into the page cache.
            Some(_) => Way::Cached,
            None => self.choose()?,
        };
        match self.read_blocks(way, offset, len, memory) {
            // Some file systems take the flag and refuse the read.
            Err(Errno::INVAL) if matches!(way, Way::Direct(_)) => {
                self.go_through_the_page_cache()?;
                self.way = Way::Cached;
                self.read_blocks(Way::Cached, offset, len, memory)
            }
            other => other,
        }
        .doing("read the shard")
        .map_err(|error| error.at("offset", offset))
    }

    fn read_blocks(
        &self,
        way: Way,
        offset: u64,
        len: u64,
        memory: &mut Span,
    ) -> Result<(u64, u64), Errno> {
        let block = if let Way::Direct(block) = way { block } else { 1 };
        let begin = offset - offset % block;
        let start = offset - begin;
        let wanted = start.saturating_add(len).min(memory.len() as u64).next_multiple_of(block);
        let wanted = usize::try_from(wanted).map_or(memory.len(), |n| n.min(memory.len()));
        let mut got = 0;
        while got < wanted {
            match rustix::io::pread(&self.fd, &mut memory[got..wanted], begin + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            if !(got as u64).is_multiple_of(block) {
                // A block that is not whole is the file's last.
                break;
            }
        }
        Ok((start, (got as u64).saturating_sub(start).min(len)))
    }
}

/// A file to be asked of.
enum At<'a> {
    Path(&'a str),
    Descriptor(BorrowedFd<'a>),
}

/// Returns the file's layout: Lustre's own, else the preferred block size of its file system (GPFS
/// and NFS report their transfer size); and the reason a reported layout is unknown.
fn layout_of(at: &At<'_>, stat: &rustix::fs::Stat, attribute: &str) -> (Layout, Option<Error>) {
    let ask = |value: &mut [u8]| match at {
        At::Path(path) => rustix::fs::getxattr(*path, attribute, value),
        At::Descriptor(fd) => rustix::fs::fgetxattr(fd, attribute, value),
    };
    let mut fault = None;
    // Other file systems have no such attribute, each with an error of its own. Without memory to
    // put it in, the kernel tells the length alone.
    if ask(&mut []).is_ok() {
        let mut value = vec![0; ATTRIBUTE_MAX];
        match ask(&mut value).map(|len| Layout::of_lustre(&value[..len])) {
            Ok(Ok(layout)) => return (layout, None),
            Ok(Err(error)) => fault = Some(error),
            Err(_) => {}
        }
    }
    let of_file = u64::try_from(stat.st_blksize).unwrap_or(0);
    let of_system = match at {
        At::Path(path) => rustix::fs::statfs(*path),
        At::Descriptor(fd) => rustix::fs::fstatfs(fd),
    };
    let of_system = of_system.map_or(0, |said| said.f_bsize);
    let of_system = u64::try_from(of_system).unwrap_or(0);
    (Layout::of_blocks(of_file.max(of_system)), fault)
}

fn stat_of(stat: &rustix::fs::Stat) -> Result<Stat> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::new(ErrorKind::Invalid, "the shard is not a regular file"));
    }
    let len = u64::try_from(stat.st_size)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "the shard has a negative length"))?;
    let version = file_version(stat.st_ino, len, (stat.st_mtime, stat.st_mtime_nsec));
    Ok(Stat::new(len, version, Binding::Weak))
}
