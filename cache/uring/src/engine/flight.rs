//! One operation on its way, independent of who carries it out.
//!
//! A result counts only for what the kernel says was moved. A short transfer goes on
//! where it stopped, a negative result is the negated errno, and every repetition is bounded.

use std::io;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_histogram::Histogram;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::counters::{Counting, add};
use super::fault::{AttemptKind, Watch};
use super::operation::Done;
use crate::cipher::FileCipher;
use crate::file::DiskFile;
use crate::span::Memory;

/// Most bytes asked of the kernel at once: Linux moves at most 2 GiB − 4 KiB per call, and a
/// gibibyte keeps the rest aligned.
const MAX_TRANSFER: usize = 1 << 30;

/// Times one operation may be told "again" (EINTR, EAGAIN) or move nothing, before it fails. Both
/// are rare and pass at once; a device that says so sixteen times in a row is stuck.
const MAX_STALLS: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// Next step after the kernel's answer.
#[derive(Debug)]
pub(super) enum Step<T> {
    /// Hand the operation to the kernel again.
    Again,
    /// Tell the caller.
    Landed(Result<T>),
}

/// An operation, with everything that must live while the kernel works on it.
pub(super) enum Flight {
    Transfer(Transfer),
    Sync(SyncFlight),
}

/// A read or write.
pub(super) struct Transfer {
    pub(super) file: DiskFile,
    pub(super) direction: Direction,
    pub(super) memory: Memory,
    offset: u64,
    done: usize,
    stalls: u32,
    asked: Instant,
    reply: Option<oneshot::Sender<Done>>,
    permit: Option<OwnedSemaphorePermit>,
    /// Only where faults are asked for.
    watch: Option<Box<Watch>>,
}

/// The part of a transfer to ask for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Start in the memory.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Start in the file.
    pub(super) offset: u64,
}

impl Flight {
    /// Takes the kernel's result: bytes moved, or a negated errno.
    pub(super) fn advance(&mut self, result: i32, counting: &Counting) -> Step<usize> {
        match self {
            Self::Transfer(transfer) => transfer.advance(result, counting),
            Self::Sync(sync) => sync.advance(result, counting),
        }
    }

    /// Returns the attempt: kind, file, offset and length.
    pub(super) fn attempted(&self) -> (AttemptKind, &DiskFile, u64, usize) {
        match self {
            Self::Transfer(Transfer { file, direction, memory, offset, .. }) => {
                let kind = match direction {
                    Direction::Read => AttemptKind::Read,
                    Direction::Write => AttemptKind::Write,
                };
                (kind, file, *offset, memory.len())
            }
            Self::Sync(sync) => (AttemptKind::Sync, &sync.file, 0, 0),
        }
    }

    /// Lets `watch` bend the kernel's answers and hear of the end.
    pub(super) fn watch(&mut self, watch: Box<Watch>) {
        match self {
            Self::Transfer(transfer) => transfer.watch = Some(watch),
            Self::Sync(sync) => sync.watch = Some(watch),
        }
    }

    /// Keeps what the kernel may touch alive for ever and tells the caller that no answer will
    /// come.
    pub(super) fn leak(self) {
        match self {
            Self::Transfer(Transfer { file, memory, watch, .. }) => {
                std::mem::forget((file, memory, watch));
            }
            Self::Sync(SyncFlight { file, watch, .. }) => std::mem::forget((file, watch)),
        }
    }

    /// Gives everything back to the caller.
    pub(super) fn land(self, result: Result<usize>) {
        match self {
            Self::Transfer(transfer) => transfer.land(result),
            Self::Sync(sync) => sync.land(result),
        }
    }
}

impl Transfer {
    /// Checks the alignment; what cannot fly is done already.
    pub(super) fn new(
        direction: Direction,
        file: DiskFile,
        offset: u64,
        memory: Memory,
    ) -> std::result::Result<Self, Done> {
        if let Err(error) = check(&file, offset, &memory) {
            return Err(Done { span: memory.into_span(), result: Err(error) });
        }
        if memory.len() == 0 {
            return Err(Done { span: memory.into_span(), result: Ok(0) });
        }
        let (reply, permit, watch) = (None, None, None);
        let asked = Instant::now();
        Ok(Self {
            file,
            direction,
            memory,
            offset,
            done: 0,
            stalls: 0,
            asked,
            reply,
            permit,
            watch,
        })
    }

    /// The cipher of a read, with the offset of its first byte.
    pub(super) fn decryption(&self) -> Option<(FileCipher, u64)> {
        match self.direction {
            Direction::Read => self.file.cipher().map(|cipher| (cipher.clone(), self.offset)),
            Direction::Write => None,
        }
    }

    /// Makes it ready to fly. `permit`: its place, unless the caller holds that.
    pub(super) fn board(
        &mut self,
        reply: oneshot::Sender<Done>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        self.reply = Some(reply);
        self.permit = permit;
    }

    /// The part to ask the kernel for next.
    pub(super) fn window(&self) -> Window {
        match &self.watch {
            None => self.rest(),
            Some(watch) => watch.bound(self.rest(), self.unit()),
        }
    }

    /// Returns the rest, from the last aligned position that is done.
    fn rest(&self) -> Window {
        let start = self.done & !(self.unit() - 1);
        let len = (self.memory.len() - start).min(MAX_TRANSFER);
        Window { start, len, offset: self.offset + start as u64 }
    }

    /// Returns the common unit of offsets, lengths and addresses of one call.
    fn unit(&self) -> usize {
        let alignment = self.file.alignment();
        alignment.memory.max(alignment.offset)
    }

    fn advance(&mut self, result: i32, counting: &Counting) -> Step<usize> {
        let step = self.judge(result, counting);
        if let Step::Landed(result) = &step {
            let (finished, bytes) = match self.direction {
                Direction::Read => (&counting.reads, &counting.bytes_read),
                Direction::Write => (&counting.writes, &counting.bytes_written),
            };
            count_landed(finished, self.asked, result, counting);
            add(bytes, self.done as u64);
        }
        step
    }

    fn judge(&mut self, result: i32, counting: &Counting) -> Step<usize> {
        let Ok(moved) = usize::try_from(result) else {
            return self.stumble(result);
        };
        let window = self.rest();
        let moved = match &mut self.watch {
            None => moved,
            Some(watch) => watch.believe(moved),
        };
        let reached = (window.start + moved).min(self.memory.len());
        let progress = reached > self.done;
        self.done = self.done.max(reached);
        if self.watch.as_ref().is_some_and(|watch| watch.tears_at(self.done)) {
            return self.stumble(-libc::EIO);
        }
        if self.done == self.memory.len() {
            return Step::Landed(Ok(self.done));
        }
        match (self.direction, progress) {
            (direction, true) => {
                if moved < window.len {
                    let short = match direction {
                        Direction::Read => &counting.short_reads,
                        Direction::Write => &counting.short_writes,
                    };
                    add(short, 1);
                }
                Step::Again
            }
            // Asked from an aligned place at or before what is done, the file gave no more: its
            // end.
            (Direction::Read, false) => Step::Landed(Ok(self.done)),
            (Direction::Write, false) if self.stalls < MAX_STALLS => {
                self.stalls += 1;
                Step::Again
            }
            (Direction::Write, false) => Step::Landed(Err(self.blame(Error::new(
                ErrorKind::Unavailable,
                "the file accepts no more bytes and gives no reason",
            )))),
        }
    }

    fn stumble(&mut self, result: i32) -> Step<usize> {
        if may_repeat(result, &mut self.stalls) {
            return Step::Again;
        }
        let doing = match self.direction {
            Direction::Read => "read a file",
            Direction::Write => "write a file",
        };
        Step::Landed(Err(self.blame(from_negative(doing, result))))
    }

    fn blame(&self, error: Error) -> Error {
        self.file.blame(error, self.offset + self.done as u64)
    }

    fn land(self, result: Result<usize>) {
        let Self { memory, reply, file, permit, watch, .. } = self;
        if let Some(mut watch) = watch {
            watch.tell(result.is_ok());
        }
        // The file goes first, so that a caller who drops its own handle after this knows the
        // descriptor closed; the permit before the answer, so that its next operation finds it.
        drop(file);
        drop(permit);
        if let Some(reply) = reply {
            // A dropped future gets no answer: the memory frees itself here.
            drop(reply.send(Done { span: memory.into_span(), result }));
        }
    }
}

/// An fdatasync.
pub(super) struct SyncFlight {
    pub(super) file: DiskFile,
    stalls: u32,
    asked: Instant,
    reply: oneshot::Sender<Result<()>>,
    permit: Option<OwnedSemaphorePermit>,
    watch: Option<Box<Watch>>,
}

impl SyncFlight {
    pub(super) fn new(
        file: DiskFile,
        asked: Instant,
        reply: oneshot::Sender<Result<()>>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { file, stalls: 0, asked, reply, permit, watch: None }
    }

    fn advance(&mut self, result: i32, counting: &Counting) -> Step<usize> {
        if result < 0 && may_repeat(result, &mut self.stalls) {
            return Step::Again;
        }
        let result = if result < 0 {
            Err(self.file.blame(from_negative("sync a file", result), 0))
        } else {
            Ok(0)
        };
        count_landed(&counting.syncs, self.asked, &result, counting);
        Step::Landed(result)
    }

    fn land(self, result: Result<usize>) {
        let Self { file, reply, permit, watch, .. } = self;
        if let Some(mut watch) = watch {
            watch.tell(result.is_ok());
        }
        // As for a transfer.
        drop(file);
        drop(permit);
        // No one listens any more if the send fails; the sync itself has happened.
        drop(reply.send(result.map(drop)));
    }
}

fn check(file: &DiskFile, offset: u64, memory: &Memory) -> Result<()> {
    let alignment = file.alignment();
    let unit = alignment.offset as u64;
    let wrong = if !offset.is_multiple_of(unit) {
        Some(("the file offset is not aligned", offset, alignment.offset))
    } else if !(memory.len() as u64).is_multiple_of(unit) {
        Some(("the span's length is not aligned", memory.len() as u64, alignment.offset))
    } else if !memory.offset().is_multiple_of(alignment.memory) {
        // The region starts on a 2 MiB boundary, so its offsets are aligned as its addresses are.
        Some(("the span's start is not aligned", memory.offset() as u64, alignment.memory))
    } else if i64::try_from(offset)
        .ok()
        .and_then(|at| at.checked_add_unsigned(memory.len() as u64))
        .is_none()
    {
        Some(("the file offset is past what a file can hold", offset, alignment.offset))
    } else {
        None
    };
    if file.is_encrypted() && !matches!(memory, Memory::Span(_)) {
        let what = "an encrypted file needs memory that only the operation uses";
        return Err(file.blame(Error::new(ErrorKind::Invalid, what), offset));
    }
    match wrong {
        None => Ok(()),
        Some((what, value, unit)) => Err(file
            .blame(Error::new(ErrorKind::Invalid, what), offset)
            .at("value", value)
            .at("alignment", unit)),
    }
}

/// True if the errno means "ask again" and the operation has tries left.
fn may_repeat(result: i32, stalls: &mut u32) -> bool {
    let again = matches!(-result, libc::EINTR | libc::EAGAIN) && *stalls < MAX_STALLS;
    *stalls += u32::from(again);
    again
}

/// The error of a negative result, which is a negated errno.
fn from_negative(doing: &str, result: i32) -> Error {
    Error::from_io(doing, &io::Error::from_raw_os_error(-result))
}

fn count_landed<T>(finished: &Histogram, asked: Instant, result: &Result<T>, counting: &Counting) {
    finished.since(asked);
    add(&counting.errors, u64::from(result.is_err()));
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Condvar};

    use super::*;
    use crate::arena::Arena;
    use crate::engine::config::EngineConfig;
    use crate::engine::queue::Bell;
    use crate::engine::report::EngineKind;
    use crate::engine::shared::Shared;
    use crate::file::Opened;
    use crate::region::Region;

    const UNIT: usize = 4096;

    /// An engine's state without its threads.
    pub(in crate::engine) fn shared() -> Arc<Shared> {
        let bell = Bell::Condvar(Condvar::new());
        Shared::new(&EngineConfig::default(), EngineKind::Ring, 1, bell)
    }

    /// A transfer over a span of `blocks` times 4 KiB, starting at file offset 4 KiB.
    pub(in crate::engine) fn transfer(
        direction: Direction,
        blocks: usize,
    ) -> (Transfer, oneshot::Receiver<Done>, Arena) {
        let shared = shared();
        // tmpfs states no alignment, so the default of 4 KiB holds wherever the test runs.
        let memfd = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = shared.seated(Opened::adopt(memfd).unwrap());
        let arena = Arena::new(Region::create("test", 1).unwrap());
        let span = arena.try_lease(blocks * UNIT).unwrap();
        let mut transfer = Transfer::new(direction, file, UNIT as u64, Memory::Span(span)).unwrap();
        let (reply, answer) = oneshot::channel();
        transfer.board(reply, shared.queue.try_permit());
        (transfer, answer, arena)
    }

    /// Plays the kernel's answers to one transfer; all but the last must ask for another.
    fn play(transfer: &mut Transfer, answers: &[i32]) -> Result<usize> {
        let counting = Counting::default();
        let (last, first) = answers.split_last().unwrap();
        for answer in first {
            assert!(matches!(transfer.advance(*answer, &counting), Step::Again), "at {answer}");
        }
        match transfer.advance(*last, &counting) {
            Step::Landed(result) => result,
            Step::Again => panic!("asks again after {answers:?}"),
        }
    }

    #[test]
    fn short_read_continues_at_the_last_aligned_byte() {
        let (mut read, ..) = transfer(Direction::Read, 4);
        let counting = Counting::default();
        assert!(matches!(read.advance(UNIT as i32 + 512, &counting), Step::Again));
        let from = Window { start: UNIT, len: 3 * UNIT, offset: 2 * UNIT as u64 };
        assert_eq!(read.window(), from);
        assert_eq!(counting.read().short_reads, 1);
        assert!(matches!(
            read.advance(3 * UNIT as i32, &counting),
            Step::Landed(Ok(n)) if n == 4 * UNIT
        ));
        assert_eq!(counting.read().bytes_read, 4 * UNIT as u64);
    }

    #[test]
    fn read_ends_at_the_end_of_the_file() {
        // The tail is asked for again from its aligned start, and nothing new comes.
        let (mut read, ..) = transfer(Direction::Read, 4);
        assert_eq!(play(&mut read, &[UNIT as i32 + 100, 100]).unwrap(), UNIT + 100);
        let (mut read, ..) = transfer(Direction::Read, 4);
        assert_eq!(play(&mut read, &[UNIT as i32, 0]).unwrap(), UNIT);
        let (mut read, ..) = transfer(Direction::Read, 4);
        assert_eq!(play(&mut read, &[0]).unwrap(), 0);
    }

    #[test]
    fn negative_results_map_to_error_kinds() {
        for (errno, kind) in [
            (libc::ENOSPC, ErrorKind::Full),
            (libc::EDQUOT, ErrorKind::Full),
            (libc::EACCES, ErrorKind::PermissionDenied),
            (libc::EINVAL, ErrorKind::Invalid),
            (libc::EIO, ErrorKind::Unavailable),
        ] {
            let (mut write, ..) = transfer(Direction::Write, 2);
            let error = play(&mut write, &[UNIT as i32, -errno]).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.place("offset"), Some("8192"), "where it stopped");
        }
    }

    #[test]
    fn retries_of_one_transfer_are_bounded() {
        for errno in [libc::EINTR, libc::EAGAIN] {
            let (mut read, ..) = transfer(Direction::Read, 1);
            let again = vec![-errno; MAX_STALLS as usize + 1];
            assert_eq!(play(&mut read, &again).unwrap_err().kind(), ErrorKind::Unavailable);
        }
        let (mut write, ..) = transfer(Direction::Write, 2);
        let nothing = vec![0; MAX_STALLS as usize + 1];
        assert_eq!(play(&mut write, &nothing).unwrap_err().kind(), ErrorKind::Unavailable);
        let (mut write, ..) = transfer(Direction::Write, 2);
        assert_eq!(play(&mut write, &[0, -libc::EINTR, 2 * UNIT as i32]).unwrap(), 2 * UNIT);
    }

    #[test]
    fn result_arrives_after_permit_and_file_are_released() {
        let (read, mut answer, arena) = transfer(Direction::Read, 1);
        let file = read.file.clone();
        read.land(Ok(5));
        let done = answer.try_recv().unwrap();
        assert_eq!((done.result.unwrap(), done.span.len()), (5, UNIT));
        drop((done.span, file));
        assert_eq!(arena.in_use(), 0);
    }
}
