//! The engine where io_uring is missing or forbidden: blocking calls on a pool of threads.
//!
//! The same orders, the same rules for short transfers and errors, the same answers; only
//! who waits for the disk differs.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar};

use forebay_error::Result;
use rustix::io::Errno;

use super::carrier::Carrier;
use super::counters::add;
use super::flight::{Direction, Flight, Step, Transfer};
use super::queue::{Bell, Order};
use super::shared::Shared;

/// Most threads: each has one call in flight, and 16 × 128 KiB is 2 MiB, more than the fastest
/// NVMe drive holds under way (14 GB/s × 100 µs = 1.4 MB). More threads only add switches.
const MAX_THREADS: u32 = 16;

/// Reason memory stays unregistered here.
const NO_REGISTRATION: &str = "the thread pool does not register memory";

/// One thread of the pool.
pub(super) struct Worker(Arc<Shared>);

impl Carrier for Worker {
    fn threads(depth: u32) -> u32 {
        depth.min(MAX_THREADS)
    }

    fn in_flight(depth: u32) -> u32 {
        Self::threads(depth)
    }

    fn bell() -> Result<Bell> {
        Ok(Bell::Condvar(Condvar::new()))
    }

    fn new(shared: Arc<Shared>, _: u32) -> Result<Self> {
        Ok(Self(shared))
    }

    fn run(self) {
        let Self(shared) = self;
        while let Some(order) = shared.queue.wait() {
            match order {
                Order::Fly(flight) => fly(flight, &shared),
                Order::Attach { region, reply, permit } => {
                    if let Some(region) = region.upgrade() {
                        shared.book(&region, Some(NO_REGISTRATION.to_owned()));
                    }
                    drop(permit);
                    // The caller may have stopped waiting; the booking holds all the same.
                    let _unheard = reply.send(false);
                }
            }
        }
    }
}

/// Carries one operation out, however many calls it takes (each repetition is bounded).
pub(super) fn fly(mut flight: Flight, shared: &Shared) {
    loop {
        add(&shared.counting.system_calls, 1);
        let result = match &mut flight {
            Flight::Transfer(transfer) => call(transfer),
            Flight::Sync(sync) => rustix::fs::fdatasync(&sync.file).map(|()| 0),
        };
        // Calls move at most 1 GiB, so the count fits; errors take the ring's form.
        let result = match result {
            Ok(moved) => i32::try_from(moved).unwrap_or(i32::MAX),
            Err(errno) => -errno.raw_os_error(),
        };
        match flight.advance(result, &shared.counting) {
            Step::Again => {}
            Step::Landed(result) => return flight.land(result),
        }
    }
}

fn call(transfer: &mut Transfer) -> Result<usize, Errno> {
    let window = transfer.window();
    let file = transfer.file.as_fd().as_raw_fd();
    // The file's alignment was checked with the end: offsets fit.
    let offset = libc::off_t::try_from(window.offset).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the window lies inside the memory.
    let start = unsafe { transfer.memory.address().as_ptr().add(window.start) };
    let moved = match transfer.direction {
        // SAFETY: the transfer owns the span, or the memory is a client's and no reference to it
        // exists; frozen memory is never read into.
        Direction::Read => unsafe { libc::pread(file, start.cast(), window.len, offset) },
        // SAFETY: the memory is mapped for as long as the transfer holds it, and is only read.
        Direction::Write => unsafe { libc::pwrite(file, start.cast(), window.len, offset) },
    };
    usize::try_from(moved).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
