//! Work queued on streams, memory, and the order in which the work is done, with a clock.
//!
//! The clock does not measure: each piece of work has a price, and a stream, the engines and the
//! host each have a time. A piece begins once it is queued, the one before it is over, and so is
//! what it waits for; a host that waits is as late as what it waited for. So the clock shows what
//! overlaps, on any machine.

use std::cell::Cell;
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
    /// Not before this time.
    Until(u64),
    Run(Box<dyn FnOnce() + Send>),
}

/// Work in line.
struct Queued {
    work: Work,
    price: u64,
    /// Memory of the host that it reads.
    reads: Option<(u64, usize)>,
    /// The host's time when it was put in line.
    since: u64,
}

/// So many pieces of work of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    stream: usize,
    count: u64,
}

#[derive(Default)]
struct Stream {
    line: VecDeque<Queued>,
    /// The time when each piece was over.
    ends: Vec<u64>,
    context: usize,
}

impl Stream {
    fn done(&self) -> u64 {
        self.ends.len() as u64
    }
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
    context: usize,
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
    /// Bytes of the device in use, and of pinned memory.
    used: usize,
    pinned: usize,
    /// Time of the host, and of the JPEG decoder.
    host: u64,
    decoder: u64,
    /// A graph is being captured.
    pub(crate) is_capturing: bool,
}

thread_local! {
    /// Context of the calling thread; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn current() -> usize {
    CURRENT.get()
}

pub(crate) fn set_current(context: usize) {
    CURRENT.set(context);
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
        self.streams.insert(number, Stream { context: current(), ..Stream::default() });
        number
    }

    pub(crate) fn end_stream(&mut self, stream: usize) {
        let mark = self.mark(stream);
        self.run_to(mark);
        self.streams.remove(&stream);
    }

    pub(crate) fn put(&mut self, stream: usize, work: Work, price: u64) {
        match &work {
            Work::Copy { to, from, len } => {
                self.check(*to, *len, "a copy writes");
                self.check(*from, *len, "a copy reads");
            }
            Work::Set { to, len, .. } => self.check(*to, *len, "zeros are written"),
            Work::Wait(_) | Work::Until(_) | Work::Run(_) => {}
        }
        let since = self.host;
        let stream = self.streams.entry(stream).or_default();
        // The default streams are those of the current context.
        if stream.context != 0 && stream.context != current() {
            fault("work is put in line on a stream of a device that is not current");
        }
        stream.line.push_back(Queued { work, price, reads: None, since });
    }

    /// Work that reads memory of the host.
    pub(crate) fn put_upload(
        &mut self,
        stream: usize,
        work: Work,
        from: u64,
        len: usize,
        price: u64,
    ) {
        self.put(stream, work, price);
        let line = self.streams.get_mut(&stream).map(|stream| &mut stream.line);
        if let Some(queued) = line.and_then(VecDeque::back_mut) {
            queued.reads = Some((from, len));
        }
    }

    /// Work of a decoder, which begins at once. Its stream goes on once it is over, and the host as
    /// well if it waits.
    pub(crate) fn decode(&mut self, stream: usize, work: impl FnOnce(), price: u64, waits: bool) {
        work();
        self.decoder = self.decoder.max(self.host) + price;
        if waits {
            self.host = self.decoder;
        }
        self.put(stream, Work::Until(self.decoder), 0);
    }

    /// All that is in line now.
    pub(crate) fn mark(&mut self, stream: usize) -> Mark {
        let line = self.streams.entry(stream).or_default();
        Mark { stream, count: line.done() + line.line.len() as u64 }
    }

    pub(crate) fn is_done(&self, mark: Mark) -> bool {
        self.streams.get(&mark.stream).is_none_or(|stream| stream.done() >= mark.count)
    }

    /// The time when it was over.
    fn end_of(&self, mark: Mark) -> u64 {
        let stream = self.streams.get(&mark.stream);
        let at = (mark.count as usize).checked_sub(1);
        stream.zip(at).and_then(|(stream, at)| stream.ends.get(at)).copied().unwrap_or_default()
    }

    fn run_to(&mut self, mark: Mark) {
        while !self.is_done(mark) {
            let stream = self.streams.entry(mark.stream).or_default();
            let queued = stream.line.pop_front().expect("as much is in line as was marked");
            let mut begin = queued.since.max(stream.ends.last().copied().unwrap_or_default());
            match queued.work {
                Work::Wait(other) => {
                    self.run_to(other);
                    begin = begin.max(self.end_of(other));
                }
                Work::Until(time) => begin = begin.max(time),
                Work::Copy { to, from, len } => unsafe {
                    std::ptr::copy(from as *const u8, to as *mut u8, len);
                },
                Work::Set { to, value, len } => unsafe {
                    std::ptr::write_bytes(to as *mut u8, value, len);
                },
                Work::Run(work) => work(),
            }
            self.streams.entry(mark.stream).or_default().ends.push(begin + queued.price);
        }
    }

    /// The host waits for it.
    pub(crate) fn wait(&mut self, mark: Mark) {
        self.run_to(mark);
        self.host = self.host.max(self.end_of(mark));
    }

    /// The host waits for everything.
    pub(crate) fn run_all(&mut self) {
        let streams: Vec<usize> = self.streams.keys().copied().collect();
        for stream in streams {
            let mark = self.mark(stream);
            self.wait(mark);
        }
    }

    /// The host's time.
    pub(crate) fn clock(&self) -> u64 {
        self.host
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

    fn used_of(&mut self, side: Side) -> &mut usize {
        match side {
            Side::Device => &mut self.used,
            Side::Host => &mut self.pinned,
        }
    }

    /// Takes memory; nothing where there is none, of which `limit` says how much.
    pub(crate) fn take(&mut self, len: usize, side: Side, limit: usize) -> Option<u64> {
        let used = self.used_of(side);
        if *used + len > limit {
            return None;
        }
        *used += len;
        // As aligned as CUDA's.
        let mut bytes = vec![u64::from_ne_bytes([FRESH; 8]); (len + GUARD).div_ceil(8) + 32];
        let at = (bytes.as_ptr() as u64).next_multiple_of(256);
        unsafe { std::ptr::write_bytes((at as usize + len) as *mut u8, GUARDED, GUARD - 1) };
        bytes.shrink_to_fit();
        self.blocks.insert(at, Block { bytes, len, side, context: current() });
        Some(at)
    }

    /// Gives memory back, after all work: of what is in line nobody knows what it needs.
    pub(crate) fn free(&mut self, at: u64, side: Side) -> bool {
        self.run_all();
        let Some(mut block) = self.blocks.remove(&at).filter(|block| block.side == side) else {
            return false;
        };
        if block.context != current() {
            fault("memory is freed of a device that is not current");
        }
        let guard = unsafe {
            std::slice::from_raw_parts((at as usize + block.len) as *const u8, GUARD - 1)
        };
        if guard.iter().any(|byte| *byte != GUARDED) {
            fault("something was written past the end of a block");
        }
        *self.used_of(side) -= block.len;
        block.bytes.fill(u64::from_ne_bytes([FRESH; 8]));
        true
    }

    pub(crate) fn register(&mut self, at: u64, len: usize) {
        self.registered.insert(at, len);
    }

    /// Pieces that are registered.
    pub(crate) fn registered(&self) -> usize {
        self.registered.len()
    }

    pub(crate) fn unregister(&mut self, at: u64) -> bool {
        let end = at + self.registered.get(&at).copied().unwrap_or_default() as u64;
        let mut reads = self.streams.values().flat_map(|stream| &stream.line).map(|one| one.reads);
        if reads.any(|reads| reads.is_some_and(|(from, _)| (at..end).contains(&from))) {
            fault("memory is unregistered while a copy from it is in line");
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

    pub(crate) fn side_of(&self, at: u64, len: usize) -> Option<Side> {
        let (start, block) = self.blocks.range(..=at).next_back()?;
        if block.side == Side::Device && block.context != current() {
            fault("memory is used of a device that is not current");
        }
        (at + len as u64 <= start + block.len as u64).then_some(block.side)
    }

    /// Ends the process unless all of it is memory of the device.
    pub(crate) fn check(&self, at: u64, len: usize, what: &str) {
        if self.side_of(at, len) != Some(Side::Device) {
            fault(&format!("{what} outside of the device's memory: {len} bytes at {at:#x}"));
        }
    }
}
