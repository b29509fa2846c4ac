//! The same operations through tokio-uring, for comparison: its results in tests, its speed in
//! benchmarks.
//!
//! tokio-uring is used as it offers itself (a runtime of its own on one thread, buffers and files
//! handed over and back). Everything around it is the same as for the other engines.
//!
//! It registers neither memory nor files, and its system calls are its own: they are not counted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use ::tokio_uring::buf::{IoBuf, IoBufMut};
use ::tokio_uring::fs::File;
use forebay_error::{Doing, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::carrier::Carrier;
use super::flight::{Direction, Flight, Step};
use super::probe;
use super::queue::{Order, Retired};
use super::shared::Shared;
use crate::file::DiskFile;

/// Reason memory stays unregistered here.
const NO_REGISTRATION: &str = "tokio-uring registers only memory of its own";

/// A tokio-uring runtime on its thread.
pub(super) struct Guest {
    runtime: ::tokio_uring::Runtime,
    service: Service,
}

impl Carrier for Guest {
    fn new(shared: Arc<Shared>, depth: u32) -> Result<Self> {
        // No set-up flags: with deferred task work this runtime never hears of completions.
        // One entry more than the depth, for the read of the eventfd.
        let mut builder = ::tokio_uring::builder();
        builder.entries((depth + 1).next_power_of_two());
        let runtime =
            ::tokio_uring::Runtime::new(&builder).map_err(|error| probe::explain(&error))?;
        let event = shared.queue.event().expect("this engine's queue has an eventfd");
        let bell = Rc::new(handed_over(event.as_fd()).doing("copy an eventfd")?);
        let room = Arc::new(Semaphore::new(depth as usize));
        let files = Rc::new(RefCell::new(Files::default()));
        Ok(Self { runtime, service: Service { shared, bell, room, files, depth } })
    }

    fn run(self) {
        let Self { runtime, service } = self;
        if let Err(error) = runtime.block_on(service.serve()) {
            tracing::error!(%error, "a disk engine stopped");
        }
    }
}

/// A descriptor of tokio-uring's own: it closes what it is given.
fn handed_over(fd: BorrowedFd<'_>) -> io::Result<File> {
    Ok(File::from_std(fd.try_clone_to_owned()?.into()))
}

struct Service {
    shared: Arc<Shared>,
    bell: Rc<File>,
    /// A permit per operation that may still fly.
    room: Arc<Semaphore>,
    files: Rc<RefCell<Files>>,
    depth: u32,
}

impl Service {
    async fn serve(self) -> Result<()> {
        loop {
            let intake = self.shared.queue.take(self.room.available_permits(), usize::MAX);
            for retired in intake.retired {
                if let Retired::File(index) = retired {
                    self.files.borrow_mut().remove(index);
                }
            }
            for order in intake.orders {
                self.carry_out(order);
            }
            if intake.dozing {
                let (read, _) = self.bell.read_at(vec![0; size_of::<u64>()], 0).await;
                self.shared.queue.awake();
                read.doing("wait for the bell")?;
            } else if intake.closed && intake.empty {
                let all = self.room.acquire_many(self.depth).await;
                drop(all.expect("the room is never closed"));
                return Ok(());
            } else {
                // There is more: as soon as an operation has landed, or at once if there is room.
                drop(self.room.acquire().await.expect("the room is never closed"));
            }
        }
    }

    fn carry_out(&self, order: Order) {
        match order {
            Order::Fly(flight) => {
                // Without a seat each operation takes a descriptor of its own.
                let (_, file, ..) = flight.attempted();
                self.shared.count(file, 1, |fd| self.files.borrow_mut().insert(fd));
                let place = Arc::clone(&self.room).try_acquire_owned();
                let place = place.expect("no more orders are taken than there is room for");
                let (shared, files) = (Arc::clone(&self.shared), Rc::clone(&self.files));
                drop(::tokio_uring::spawn(fly(flight, shared, files, place)));
            }
            Order::Attach { region, reply, permit } => {
                if let Some(region) = region.upgrade() {
                    self.shared.book(&region, Some(NO_REGISTRATION.to_owned()));
                }
                drop(permit);
                // The caller may have stopped waiting; the booking holds all the same.
                let _unheard = reply.send(false);
            }
        }
    }
}

/// Carries one operation out, however many calls it takes (each repetition is bounded).
async fn fly(
    mut flight: Flight,
    shared: Arc<Shared>,
    files: Rc<RefCell<Files>>,
    place: OwnedSemaphorePermit,
) {
    loop {
        let file = files.borrow().of(&flight, shared.id);
        let (result, back) = match file {
            Ok(file) => ask(&file, flight).await,
            Err(error) => (Err(error), flight),
        };
        flight = back;
        // Calls move at most 1 GiB, so the count fits; errors take the ring's form.
        let result = match result {
            Ok(moved) => i32::try_from(moved).unwrap_or(i32::MAX),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        match flight.advance(result, &shared.counting) {
            Step::Again => {}
            Step::Landed(result) => {
                // The place goes first: whoever hears of the end may be first with the next.
                drop(place);
                return flight.land(result);
            }
        }
    }
}

/// One call, with the flight handed over for as long as the kernel has it.
async fn ask(file: &File, flight: Flight) -> (io::Result<usize>, Flight) {
    let direction = match &flight {
        Flight::Sync(_) => return (file.sync_data().await.map(|()| 0), flight),
        Flight::Transfer(transfer) => transfer.direction,
    };
    let aloft = Aloft(flight);
    let offset = aloft.window().2;
    let (result, Aloft(flight)) = match direction {
        Direction::Read => file.read_at(aloft, offset).await,
        Direction::Write => file.write_at(aloft, offset).submit().await,
    };
    (result, flight)
}

/// A transfer as a buffer: tokio-uring keeps it until the kernel is done, also if its own future is
/// dropped, and so keeps span and file.
struct Aloft(Flight);

impl Aloft {
    /// Address, length and file offset of the part to ask for.
    fn window(&self) -> (*mut u8, usize, u64) {
        let Flight::Transfer(transfer) = &self.0 else {
            unreachable!("only transfers are made into buffers");
        };
        let window = transfer.window();
        // SAFETY: the window lies inside the memory.
        let start = unsafe { transfer.memory.address().as_ptr().add(window.start) };
        (start, window.len, window.offset)
    }
}

// SAFETY: the window lies in a mapping that does not move and that the memory keeps alive; it is
// the same for as long as the flight is not advanced, which needs it back. Its bytes are
// initialised (a region is zeroed), and no thread of this process writes to them: a span's are no
// one else's, frozen ones are read-only for all, and lent ones are reached by the kernel alone.
unsafe impl IoBuf for Aloft {
    fn stable_ptr(&self) -> *const u8 {
        self.window().0
    }

    fn bytes_init(&self) -> usize {
        self.window().1
    }

    fn bytes_total(&self) -> usize {
        self.window().1
    }
}

// SAFETY: as above; all bytes are initialised before, so there is nothing to note after a read.
unsafe impl IoBufMut for Aloft {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.window().0
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

/// The files of this engine as tokio-uring wants them, one per seat.
#[derive(Default)]
struct Files {
    open: HashMap<u32, Rc<File>>,
    next: u32,
}

impl Files {
    /// A place for a file; `None` if no descriptor is to be had, or every number has been used.
    fn insert(&mut self, fd: BorrowedFd<'_>) -> Option<u32> {
        let file = handed_over(fd).ok()?;
        let index = self.next;
        self.next = index.checked_add(1)?;
        self.open.insert(index, Rc::new(file));
        Some(index)
    }

    fn remove(&mut self, index: u32) {
        self.open.remove(&index);
    }

    /// The file of a flight; one without a seat here gets a descriptor for this call alone.
    fn of(&self, flight: &Flight, engine: u64) -> io::Result<Rc<File>> {
        let (_, file, ..) = flight.attempted();
        let seated = file.seat().index_at(engine).and_then(|index| self.open.get(&index));
        seated.map_or_else(|| own(file), |file| Ok(Rc::clone(file)))
    }
}

fn own(file: &DiskFile) -> io::Result<Rc<File>> {
    handed_over(file.as_fd()).map(Rc::new)
}
