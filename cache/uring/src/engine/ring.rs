//! The io_uring engine: one ring, one thread that alone talks to it.
//!
//! Each turn takes what is queued, hands it to the kernel and sleeps in that same call
//! until something completes or the bell rings, so that system calls count turns, not operations.
//!
//! With many operations in flight a turn waits for several completions (a share of what is in
//! flight, for a bounded time) and new orders wait for the end of the turn without a wake-up.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use forebay_error::{Doing, Error, ErrorKind, Result};
use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::carrier::Carrier;
use super::counters::add;
use super::flight::{Direction, Flight, Step};
use super::probe;
use super::queue::{Order, Retired};
use super::shared::Shared;
use super::slots::{Slots, WAKE};

mod tables;

use tables::{BufferTable, FileTable};

/// From this many operations in flight on, a turn waits for more than one completion. Below it a
/// caller who reads one thing at a time gets each answer at once.
const CROWD: usize = 8;

/// The share of a crowd to wait for: an eighth leaves seven eighths with the device while the
/// thread sleeps and the answered callers ask again. With a quarter, 112 KiB reads came to 92 % of
/// fio's rate, with an eighth to 95 %, at no more CPU.
const CROWD_SHARE: usize = 8;

/// The longest a crowded turn waits, in nanoseconds: it bounds what a file that hangs can delay
/// others by, and the turns a slow disk costs (250 a second).
const CROWD_WAIT: u32 = 4_000_000;

/// Operations of a file after which it is registered. Two system calls of some 1.5 µs register and
/// unregister it, and each operation saves some 0.1 µs: a small shard has four operations.
const REGISTERED_AFTER: u32 = 16;

/// Turns in a row that the kernel may refuse for want of resources before the engine gives up.
const MAX_STUMBLES: u32 = 1024;

pub(super) struct Ring {
    // The ring drops before the slots, so nothing new starts while they are judged.
    uring: IoUring,
    slots: Slots,
    buffers: BufferTable,
    files: FileTable,
    shared: Arc<Shared>,
    event: i32,
    /// Completions read in one turn, kept to spare allocations.
    completed: Vec<(u64, i32)>,
    stumbles: u32,
    /// The kernel can bound a wait in time (5.11), which waiting for a crowd needs.
    timed: bool,
}

/// Event that ends a turn's sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The first completion, the bell's included.
    One,
    /// So many completions, or the time limit.
    Share(usize),
}

impl Wait {
    /// Chooses the way to sleep, or `None` to look at the queue again at once.
    ///
    /// Without a time limit a thread may sleep only if something will wake it: the bell, because it
    /// is booked as `dozing`, or a completion.
    fn choose(dozing: bool, more: bool, occupied: usize, timed: bool) -> Option<Self> {
        if dozing {
            Some(Self::One)
        } else if more || occupied == 0 {
            None
        } else if timed {
            Some(Self::Share((occupied / CROWD_SHARE).max(1)))
        } else {
            Some(Self::One)
        }
    }
}

impl Carrier for Ring {
    // On the thread that runs it: a single issuer is bound to the thread that sets up.
    fn new(shared: Arc<Shared>, depth: u32) -> Result<Self> {
        // One entry more than the depth, for the read of the eventfd.
        let (uring, flags) = probe::set_up((depth + 1).next_power_of_two(), &shared.counting)?;
        shared.granted(flags);
        let event = shared.queue.event().expect("a ring's queue has an eventfd").as_raw_fd();
        let buffers = BufferTable::new(&uring.submitter(), &shared.counting);
        let files = FileTable::new(&uring.submitter(), &shared.counting);
        Ok(Self {
            slots: Slots::new(depth as usize),
            completed: Vec::with_capacity(depth as usize + 1),
            timed: uring.params().is_feature_ext_arg(),
            uring,
            buffers,
            files,
            shared,
            event,
            stumbles: 0,
        })
    }

    fn run(mut self) {
        if let Err(error) = self.turn_until_closed().and_then(|()| self.recall_wake()) {
            tracing::error!(engine = self.shared.name, %error, "a disk engine stopped");
        }
    }
}

impl Ring {
    fn turn_until_closed(&mut self) -> Result<()> {
        loop {
            let occupied = self.slots.occupied();
            let calm = if self.timed { CROWD.saturating_sub(occupied) } else { usize::MAX };
            let intake = self.shared.queue.take(self.slots.room(), calm);
            for retired in intake.retired {
                self.retire(retired);
            }
            for order in intake.orders {
                self.carry_out(order)?;
            }
            let occupied = self.slots.occupied();
            if intake.closed && intake.empty && occupied == 0 {
                return Ok(());
            }
            let more = !intake.empty && self.slots.room() > 0;
            let Some(wait) = Wait::choose(intake.dozing, more, occupied, self.timed) else {
                continue;
            };
            self.arm()?;
            self.enter(wait)?;
            self.shared.queue.awake();
            self.reap()?;
        }
    }

    fn retire(&mut self, retired: Retired) {
        let submitter = self.uring.submitter();
        match retired {
            Retired::File(index) => self.files.clear(&submitter, index, &self.shared.counting),
            Retired::Region(id) => self.buffers.clear(&submitter, id, &self.shared.counting),
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<()> {
        let submitter = self.uring.submitter();
        match order {
            Order::Fly(flight) => {
                let (_, file, ..) = flight.attempted();
                let set =
                    |fd: BorrowedFd<'_>| self.files.set(&submitter, fd, &self.shared.counting);
                self.shared.count(file, REGISTERED_AFTER, set);
                let slot = self.slots.occupy(flight);
                return self.launch(slot);
            }
            Order::Attach { region, reply, permit } => {
                let registered = region.upgrade().is_some_and(|region| {
                    let refusal =
                        self.buffers.set(&submitter, &region, &self.shared.counting).err();
                    let registered = refusal.is_none();
                    self.shared.book(&region, refusal.map(|error| error.to_string()));
                    registered
                });
                drop(permit);
                // The caller may have stopped waiting; the booking holds all the same.
                let _unheard = reply.send(registered);
            }
        }
        Ok(())
    }

    /// Puts the operation in `slot` before the kernel, for the first time or again.
    fn launch(&mut self, slot: usize) -> Result<()> {
        let flight = self.slots.get_mut(slot).expect("only occupied slots are launched");
        let (entry, fixed) = describe(flight, &self.buffers, self.shared.id);
        add(&self.shared.counting.fixed_ops, u64::from(fixed));
        // SAFETY: the entry's memory and descriptor belong to the flight, which stays in its slot
        // until the completion tagged with the slot's number has been read (or is leaked).
        unsafe { self.push(&entry.user_data(slot as u64)) }
    }

    /// Keeps a read of the eventfd in flight, by which the bell ends a sleep.
    fn arm(&mut self) -> Result<()> {
        let Some(word) = self.slots.arm() else { return Ok(()) };
        let len = size_of::<u64>() as u32;
        let entry = opcode::Read::new(Fd(self.event), word, len).build().user_data(WAKE);
        // SAFETY: the word belongs to the slots, which do not free it while it is armed; the
        // eventfd belongs to the queue, which this ring's `shared` keeps alive.
        unsafe { self.push(&entry) }
    }

    /// # Safety
    /// The memory and descriptors of the entry must live until its completion has been read.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.uring.submission().push(entry) }.map_err(|_| {
            // One entry per slot and one for the eventfd fit, so this says the book-keeping broke.
            Error::new(ErrorKind::Unavailable, "the submission queue is full")
        })
    }

    /// Submits and sleeps until there is something to do.
    fn enter(&mut self, wait: Wait) -> Result<()> {
        add(&self.shared.counting.system_calls, 1);
        let entered = match wait {
            Wait::One => self.uring.submit_and_wait(1),
            Wait::Share(count) => {
                let limit = Timespec::new().nsec(CROWD_WAIT);
                let args = SubmitArgs::new().timespec(&limit);
                self.uring.submitter().submit_with_args(count, &args)
            }
        };
        let Err(error) = entered else {
            self.stumbles = 0;
            return Ok(());
        };
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => Ok(()),
            // Memory is short, or completions wait to be read: both pass, but not for ever.
            Some(libc::EAGAIN | libc::EBUSY) if self.stumbles < MAX_STUMBLES => {
                self.stumbles += 1;
                Ok(())
            }
            _ => Err(Error::from_io("enter io_uring", &error)),
        }
    }

    /// Reads every completion there is and acts on each.
    fn reap(&mut self) -> Result<()> {
        let mut completed = std::mem::take(&mut self.completed);
        let completions = self.uring.completion();
        completed.extend(completions.map(|done| (done.user_data(), done.result())));
        for (tag, result) in completed.drain(..) {
            if tag == WAKE {
                self.slots.disarm();
            } else {
                self.complete(tag as usize, result)?;
            }
        }
        self.completed = completed;
        Ok(())
    }

    fn complete(&mut self, slot: usize, result: i32) -> Result<()> {
        let flight = self.slots.get_mut(slot).expect("the kernel completes only what is in flight");
        match flight.advance(result, &self.shared.counting) {
            Step::Again => self.launch(slot),
            Step::Landed(result) => {
                self.slots.vacate(slot).expect("the slot was occupied a line ago").land(result);
                Ok(())
            }
        }
    }

    /// Gets the wake-up word back from the kernel, so that it can be freed.
    fn recall_wake(&mut self) -> Result<()> {
        let event = self.shared.queue.event().expect("a ring's queue has an eventfd");
        rustix::io::write(event, &1u64.to_ne_bytes()).doing("cancel the wake-up read")?;
        while self.slots.armed() {
            self.enter(Wait::One)?;
            self.reap()?;
        }
        Ok(())
    }
}

/// The submission entry of a flight's next step, and whether it uses registered memory.
fn describe(flight: &mut Flight, buffers: &BufferTable, engine: u64) -> (squeue::Entry, bool) {
    /// The same entry for both ways to name a file, whose types differ.
    macro_rules! on_file {
        ($file:expr, |$target:ident| $entry:expr) => {
            match $file.seat().index_at(engine) {
                Some(index) => {
                    let $target = Fixed(index);
                    $entry
                }
                None => {
                    let $target = Fd($file.as_fd().as_raw_fd());
                    $entry
                }
            }
        };
    }
    let transfer = match flight {
        Flight::Sync(sync) => {
            let entry = on_file!(sync.file, |file| opcode::Fsync::new(file)
                .flags(FsyncFlags::DATASYNC)
                .build());
            return (entry, false);
        }
        Flight::Transfer(transfer) => transfer,
    };
    let window = transfer.window();
    let len = u32::try_from(window.len).expect("a window is at most 1 GiB");
    let index = buffers.index_of(&transfer.memory, window);
    // SAFETY: the window lies inside the memory.
    let memory = unsafe { transfer.memory.address().as_ptr().add(window.start) };
    let entry = on_file!(transfer.file, |file| match (transfer.direction, index) {
        (Direction::Read, Some(index)) =>
            opcode::ReadFixed::new(file, memory, len, index).offset(window.offset).build(),
        (Direction::Read, None) =>
            opcode::Read::new(file, memory, len).offset(window.offset).build(),
        (Direction::Write, Some(index)) =>
            opcode::WriteFixed::new(file, memory, len, index).offset(window.offset).build(),
        (Direction::Write, None) =>
            opcode::Write::new(file, memory, len).offset(window.offset).build(),
    });
    (entry, index.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_without_a_wake_up_does_not_sleep() {
        assert_eq!(Wait::choose(true, false, 0, true), Some(Wait::One), "the bell wakes it");
        assert_eq!(Wait::choose(false, false, 0, true), None, "only commands were taken");
        assert_eq!(Wait::choose(false, true, 5, true), None, "there is more to take and room");
    }

    #[test]
    fn many_operations_are_awaited_in_part_with_a_time_limit() {
        assert_eq!(Wait::choose(false, false, 64, true), Some(Wait::Share(8)));
        assert_eq!(Wait::choose(false, false, 1, true), Some(Wait::Share(1)));
        assert_eq!(Wait::choose(false, false, 64, false), Some(Wait::One), "no limit, no crowd");
    }
}
