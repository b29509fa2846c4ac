//! Work queued on streams, memory, and the order in which the work is done.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Bytes after a block that nobody may write.
const GUARD: usize = 256;

/// Fill byte of guard bytes.
const GUARDED: u8 = 0xa5;

/// Fill bytes of a block not yet written, and of a freed one.
const FRESH: u8 = 0xcd;

/// Something to be done, in its turn.
pub(crate) enum Work {
    Copy {
        to: u64,
        from: u64,
        len: usize,
    },
    Set {
        to: u64,
        value: u8,
        len: usize,
    },
    /// After so much of another stream.
    Wait(Mark),
    Run(Box<dyn FnOnce() + Send>),
}

/// So many pieces of work of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    stream: usize,
    count: u64,
}

#[derive(Default)]
struct Stream {
    line: VecDeque<Work>,
    done: u64,
}

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Device,
    Host,
}

struct Block {
    bytes: Vec<u64>,
    len: usize,
    side: Side,
}

#[derive(Default)]
pub(crate) struct Device {
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Option<Mark>>,
    blocks: BTreeMap<u64, Block>,
    registered: BTreeMap<u64, usize>,
    /// Copies so far from there.
    registered_copies: u64,
    next: usize,
    /// Bytes of the device in use.
    used: usize,
}

static DEVICE: LazyLock<Mutex<Device>> = LazyLock::new(Mutex::default);

pub(crate) fn device() -> MutexGuard<'static, Device> {
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process: what was seen would be a fault on a real device, seen or not.
pub(crate) fn fault(what: &str) -> ! {
    eprintln!("emulator: {what}");
    std::process::abort();
}

impl Device {
    fn number(&mut self) -> usize {
        // Those that every device has are below.
        self.next += 1;
        self.next + 16
    }

    pub(crate) fn new_stream(&mut self) -> usize {
        let number = self.number();
        self.streams.insert(number, Stream::default());
        number
    }

    pub(crate) fn end_stream(&mut self, stream: usize) {
        let mark = self.mark(stream);
        self.run_to(mark);
        self.streams.remove(&stream);
    }

    pub(crate) fn put(&mut self, stream: usize, work: Work) {
        match &work {
            Work::Copy { to, from, len } => {
                self.check(*to, *len, "a copy writes");
                self.check(*from, *len, "a copy reads");
            }
            Work::Set { to, len, .. } => self.check(*to, *len, "zeros are written"),
            Work::Wait(_) | Work::Run(_) => {}
        }
        self.streams.entry(stream).or_default().line.push_back(work);
    }

    /// All that is in line now.
    pub(crate) fn mark(&mut self, stream: usize) -> Mark {
        let line = self.streams.entry(stream).or_default();
        Mark { stream, count: line.done + line.line.len() as u64 }
    }

    pub(crate) fn is_done(&self, mark: Mark) -> bool {
        self.streams.get(&mark.stream).is_none_or(|stream| stream.done >= mark.count)
    }

    pub(crate) fn run_to(&mut self, mark: Mark) {
        while !self.is_done(mark) {
            let stream = self.streams.entry(mark.stream).or_default();
            let work = stream.line.pop_front().expect("as much is in line as was marked");
            match work {
                Work::Wait(other) => self.run_to(other),
                Work::Copy { to, from, len } => unsafe {
                    std::ptr::copy(from as *const u8, to as *mut u8, len);
                },
                Work::Set { to, value, len } => unsafe {
                    std::ptr::write_bytes(to as *mut u8, value, len);
                },
                Work::Run(work) => work(),
            }
            self.streams.entry(mark.stream).or_default().done += 1;
        }
    }

    pub(crate) fn run_all(&mut self) {
        let streams: Vec<usize> = self.streams.keys().copied().collect();
        for stream in streams {
            let mark = self.mark(stream);
            self.run_to(mark);
        }
    }

    pub(crate) fn new_event(&mut self) -> usize {
        let number = self.number();
        self.events.insert(number, None);
        number
    }

    pub(crate) fn end_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    pub(crate) fn record(&mut self, event: usize, stream: usize) {
        let mark = self.mark(stream);
        self.events.insert(event, Some(mark));
    }

    /// Returns the position at which an event was recorded.
    pub(crate) fn recorded(&self, event: usize) -> Option<Mark> {
        self.events.get(&event).copied().flatten()
    }

    /// Takes memory; nothing where there is none, of which `limit` says how much.
    pub(crate) fn take(&mut self, len: usize, side: Side, limit: usize) -> Option<u64> {
        if side == Side::Device && self.used + len > limit {
            return None;
        }
        // As aligned as CUDA's.
        let mut bytes = vec![u64::from_ne_bytes([FRESH; 8]); (len + GUARD).div_ceil(8) + 32];
        let at = (bytes.as_ptr() as u64).next_multiple_of(256);
        unsafe { std::ptr::write_bytes((at as usize + len) as *mut u8, GUARDED, GUARD - 1) };
        self.used += if side == Side::Device { len } else { 0 };
        bytes.shrink_to_fit();
        self.blocks.insert(at, Block { bytes, len, side });
        Some(at)
    }

    /// Gives memory back, after all work: of what is in line nobody knows what it needs.
    pub(crate) fn free(&mut self, at: u64, side: Side) -> bool {
        self.run_all();
        let Some(mut block) = self.blocks.remove(&at).filter(|block| block.side == side) else {
            return false;
        };
        let guard = unsafe {
            std::slice::from_raw_parts((at as usize + block.len) as *const u8, GUARD - 1)
        };
        if guard.iter().any(|byte| *byte != GUARDED) {
            fault("something was written past the end of a block");
        }
        self.used -= if side == Side::Device { block.len } else { 0 };
        block.bytes.fill(u64::from_ne_bytes([FRESH; 8]));
        true
    }

    pub(crate) fn register(&mut self, at: u64, len: usize) {
        self.registered.insert(at, len);
    }

    pub(crate) fn unregister(&mut self, at: u64) -> bool {
        if self.streams.values().any(|stream| !stream.line.is_empty()) {
            fault("memory is unregistered while work is in line");
        }
        self.registered.remove(&at).is_some()
    }

    /// Returns true if a device can copy from there by itself.
    pub(crate) fn is_pinned(&self, at: u64, len: usize) -> bool {
        self.is_registered(at, len) || self.side_of(at, len) == Some(Side::Host)
    }

    fn is_registered(&self, at: u64, len: usize) -> bool {
        let registered = self.registered.range(..=at).next_back();
        registered.is_some_and(|(start, all)| at + len as u64 <= start + *all as u64)
    }

    /// Notes a copy from there.
    pub(crate) fn count_copy(&mut self, at: u64, len: usize) {
        self.registered_copies += u64::from(self.is_registered(at, len));
    }

    pub(crate) fn registered_copies(&self) -> u64 {
        self.registered_copies
    }

    fn side_of(&self, at: u64, len: usize) -> Option<Side> {
        let (start, block) = self.blocks.range(..=at).next_back()?;
        (at + len as u64 <= start + block.len as u64).then_some(block.side)
    }

    /// Ends the process unless all of it is memory of the device.
    pub(crate) fn check(&self, at: u64, len: usize, what: &str) {
        if self.side_of(at, len) != Some(Side::Device) {
            fault(&format!("{what} outside of the device's memory: {len} bytes at {at:#x}"));
        }
    }
}
