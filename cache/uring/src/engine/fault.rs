//! Operations that go wrong on purpose, for those who must prove that theirs survive it.
//!
//! A fault is an answer of the kernel's, given at the kernel's place. It goes through the
//! rules for short transfers and errors that real answers go through, over whichever engine runs,
//! and it keeps what a caller may rely on: one answer, and a span that comes back.
//!
//! ```text
//!  permit ──► fate ──► queue ──► engine ⇄ kernel ──► landed ──► Done
//!               ├ Wait: the order is queued when the wait is over
//!               └ Fail: the kernel is never asked
//! ```
//! Nothing here runs in an engine that was not asked for it by
//! [`Engine::with_faults`](crate::Engine::with_faults).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use super::flight::{Flight, Step, Window};
use super::queue::Order;
use super::shared::Shared;
use crate::file::DiskFile;

/// Kind of an attempted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptKind {
    /// Bytes from the file into a span.
    Read,
    /// Bytes from a span into the file.
    Write,
    /// An fdatasync.
    Sync,
}

/// An operation, before the engine performs it and again when it is over.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The same before and after, and no other attempt's in this process.
    pub id: u64,
    /// Kind.
    pub kind: AttemptKind,
    /// On which file.
    pub file: &'a DiskFile,
    /// From where in the file, in bytes; zero for a sync.
    pub offset: u64,
    /// Number of bytes; zero for a sync.
    pub len: usize,
}

/// Fate of an attempt.
pub enum Fate {
    /// Nothing out of the ordinary.
    Pass,
    /// The kernel's first answer is this errno, a positive number. As with real ones, EINTR and
    /// EAGAIN are asked again and all others end the operation.
    Fail(i32),
    /// The kernel moves at most so many bytes at first (one at least: none would be the file's
    /// end). The rest is asked for as after any short transfer. A sync passes.
    Short(usize),
    /// So many leading bytes of a write reach the file, then EIO. A direct file counts in whole
    /// sectors, rounded down. A read or a sync ends in EIO at once.
    Torn(usize),
    /// The operation is under way but the kernel hears of it only when this resolves. As with any
    /// operation under way, dropping its future changes nothing. The wait is polled on the threads
    /// that wake it; one that is dropped by all who could wake it ends the operation as `Closed`.
    Wait(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// Decides the faults, and hears the results.
///
/// Both are called on the threads of callers or of the engine, with none of the engine's locks
/// held.
pub trait Faults: Send + Sync + 'static {
    /// Called before an operation is handed to the engine's threads. Operations that are over
    /// before that (misaligned, empty, or the engine has stopped) are not attempts.
    fn fate(&self, attempt: &Attempt<'_>) -> Fate;

    /// Called once for each fate, when the kernel is done with the operation or will never hear of
    /// it, and before its caller is told. Left out only if the engine broke with the operation
    /// still in the kernel's hands.
    fn landed(&self, attempt: &Attempt<'_>, is_ok: bool);
}

impl fmt::Debug for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("Pass"),
            Self::Fail(errno) => f.debug_tuple("Fail").field(errno).finish(),
            Self::Short(bytes) => f.debug_tuple("Short").field(bytes).finish(),
            Self::Torn(bytes) => f.debug_tuple("Torn").field(bytes).finish(),
            Self::Wait(_) => f.write_str("Wait"),
        }
    }
}

/// Way in which a transfer's answers differ from the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bend {
    Straight,
    /// The next answer is at most so many bytes.
    Short(usize),
    /// EIO once so many bytes are written.
    Torn(usize),
}

/// An attempt on its way, from its fate to its landing.
pub(super) struct Watch {
    faults: Arc<dyn Faults>,
    id: u64,
    kind: AttemptKind,
    file: DiskFile,
    offset: u64,
    len: usize,
    bend: Bend,
    told: bool,
}

impl Watch {
    fn new(faults: &Arc<dyn Faults>, flight: &Flight) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let (kind, file, offset, len) = flight.attempted();
        Self {
            faults: Arc::clone(faults),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            kind,
            file: file.clone(),
            offset,
            len,
            bend: Bend::Straight,
            told: false,
        }
    }

    fn attempt(&self) -> Attempt<'_> {
        let Self { id, kind, ref file, offset, len, .. } = *self;
        Attempt { id, kind, file, offset, len }
    }

    /// The part of `rest` to ask the kernel for; `unit` is what the file's transfers are multiples
    /// of.
    pub(super) fn bound(&self, rest: Window, unit: usize) -> Window {
        let most = match self.bend {
            Bend::Straight => rest.len,
            // Bytes the kernel moves beyond are ignored and moved again.
            Bend::Short(bytes) => bytes.min(rest.len).next_multiple_of(unit),
            Bend::Torn(bytes) => bytes.saturating_sub(rest.start),
        };
        Window { len: rest.len.min(most), ..rest }
    }

    /// The bytes to believe of those that the kernel says it moved.
    pub(super) fn believe(&mut self, moved: usize) -> usize {
        match self.bend {
            Bend::Short(bytes) => {
                self.bend = Bend::Straight;
                moved.min(bytes)
            }
            Bend::Straight | Bend::Torn(_) => moved,
        }
    }

    /// True when a write has come to where it is torn.
    pub(super) fn tears_at(&self, done: usize) -> bool {
        matches!(self.bend, Bend::Torn(bytes) if done >= bytes)
    }

    /// Tells that the kernel is done; once, and at the latest when this drops.
    pub(super) fn tell(&mut self, is_ok: bool) {
        if !std::mem::replace(&mut self.told, true) {
            self.faults.landed(&self.attempt(), is_ok);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tell(false);
    }
}

/// Lets a flight have its fate. The order to queue, unless the flight is over or waits.
pub(super) fn clear(
    faults: Option<&Arc<dyn Faults>>,
    flight: Flight,
    shared: &Arc<Shared>,
) -> Option<Order> {
    match faults {
        None => Some(Order::Fly(flight)),
        Some(faults) => bend(faults, flight, shared),
    }
}

fn bend(faults: &Arc<dyn Faults>, mut flight: Flight, shared: &Arc<Shared>) -> Option<Order> {
    let mut watch = Box::new(Watch::new(faults, &flight));
    let mut answer = None;
    let mut wait = None;
    match faults.fate(&watch.attempt()) {
        Fate::Pass => {}
        Fate::Fail(errno) => {
            assert!(errno > 0, "an errno is a positive number, not {errno}");
            answer = Some(-errno);
        }
        Fate::Short(bytes) => watch.bend = Bend::Short(bytes.max(1)),
        Fate::Torn(bytes) => match torn(&watch, bytes) {
            Some(bytes) => watch.bend = Bend::Torn(bytes),
            None => answer = Some(-libc::EIO),
        },
        Fate::Wait(future) => wait = Some(future),
    }
    flight.watch(watch);
    if let Some(answer) = answer
        && let Step::Landed(result) = flight.advance(answer, &shared.counting)
    {
        flight.land(result);
        return None;
    }
    let order = Order::Fly(flight);
    match wait {
        None => Some(order),
        Some(wait) => {
            Delay::begin(Held { wait, order, shared: Arc::clone(shared) });
            None
        }
    }
}

/// The bytes of an attempt that reach the file before it is torn; `None` for none.
fn torn(watch: &Watch, bytes: usize) -> Option<usize> {
    let sector = if watch.file.direct() { watch.file.alignment().offset } else { 1 };
    let whole = bytes.min(watch.len) / sector * sector;
    (watch.kind == AttemptKind::Write && whole > 0).then_some(whole)
}

/// A flight that waits: polled when it begins and by each of its wake-ups, on the thread that
/// wakes. So it needs no runtime, and goes on when its caller does not.
struct Delay {
    held: Mutex<Option<Held>>,
    /// Wake-ups that were not answered by a poll. Whoever raises it from zero polls until it is
    /// zero again; it is never zero after the end.
    wakes: AtomicUsize,
}

struct Held {
    wait: Pin<Box<dyn Future<Output = ()> + Send>>,
    order: Order,
    shared: Arc<Shared>,
}

impl Delay {
    fn begin(held: Held) {
        Arc::new(Self { held: Mutex::new(Some(held)), wakes: AtomicUsize::new(0) }).wake();
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        // No one is left who could wake it. A wait that panicked may have left the lock poisoned.
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Held { order, .. }) = held {
            order.refuse();
        }
    }
}

impl Wake for Delay {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        let mut answered = 1;
        loop {
            let mut held = self.held.lock().expect("a wait does not panic");
            let Some(waiting) = held.as_mut() else { return };
            if waiting.wait.as_mut().poll(&mut context).is_ready() {
                let over = held.take();
                drop(held);
                if let Some(Held { order, shared, wait }) = over {
                    // The wait's resources are free before the operation continues.
                    drop(wait);
                    shared.queue.push([order]);
                }
                return;
            }
            drop(held);
            match self.wakes.fetch_sub(answered, Ordering::AcqRel) - answered {
                0 => return,
                more => answered = more,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flight::tests::{shared, transfer};
    use super::super::flight::{Direction, Flight};
    use super::*;

    const UNIT: usize = 4096;

    /// One fate for all, and what was told.
    struct Always(Mutex<Vec<Fate>>, Mutex<Vec<bool>>);

    impl Faults for Always {
        fn fate(&self, _: &Attempt<'_>) -> Fate {
            self.0.lock().unwrap().pop().unwrap()
        }

        fn landed(&self, _: &Attempt<'_>, is_ok: bool) {
            self.1.lock().unwrap().push(is_ok);
        }
    }

    /// A flight with its fate, on its way to a kernel that the test plays.
    fn bent(direction: Direction, fate: Fate) -> (Option<Flight>, Arc<Always>) {
        let (transfer, _, _) = transfer(direction, 4);
        let always = Arc::new(Always(Mutex::new(vec![fate]), Mutex::default()));
        let faults: Arc<dyn Faults> = Arc::clone(&always) as _;
        let order = clear(Some(&faults), Flight::Transfer(transfer), &shared());
        let flight = order.map(|order| match order {
            Order::Fly(flight) => flight,
            _ => panic!("a flight stays one"),
        });
        (flight, always)
    }

    fn window(flight: &Flight) -> (usize, usize) {
        let Flight::Transfer(transfer) = flight else { panic!("it is a transfer") };
        (transfer.window().start, transfer.window().len)
    }

    #[test]
    fn short_transfer_continues_with_the_rest() {
        let (flight, told) = bent(Direction::Read, Fate::Short(UNIT + 5));
        let mut flight = flight.unwrap();
        let counting = &shared().counting;
        assert_eq!(window(&flight), (0, 2 * UNIT), "in whole units");
        assert!(matches!(flight.advance(2 * UNIT as i32, counting), Step::Again));
        assert_eq!(window(&flight), (UNIT, 3 * UNIT), "only so much was believed");
        assert_eq!(counting.read().short_reads, 1);
        assert!(matches!(flight.advance(3 * UNIT as i32, counting), Step::Landed(Ok(_))));
        assert!(told.1.lock().unwrap().is_empty(), "not before the end");
        flight.land(Ok(4 * UNIT));
        assert_eq!(*told.1.lock().unwrap(), [true]);
    }

    #[test]
    fn torn_write_fails_at_the_torn_offset() {
        let (flight, told) = bent(Direction::Write, Fate::Torn(2 * UNIT));
        let mut flight = flight.unwrap();
        let counting = &shared().counting;
        assert_eq!(window(&flight), (0, 2 * UNIT));
        assert!(matches!(flight.advance(UNIT as i32, counting), Step::Again), "really short");
        assert_eq!(window(&flight), (UNIT, UNIT));
        let Step::Landed(Err(error)) = flight.advance(UNIT as i32, counting) else {
            panic!("a torn write is no success");
        };
        assert_eq!(error.place("offset"), Some("12288"), "where it was torn");
        drop(flight);
        assert_eq!(*told.1.lock().unwrap(), [false], "one that never lands is told too");
    }

    #[test]
    fn write_torn_at_its_end_is_written_whole_and_fails() {
        let (flight, _) = bent(Direction::Write, Fate::Torn(usize::MAX));
        let mut flight = flight.unwrap();
        let step = flight.advance(4 * UNIT as i32, &shared().counting);
        assert!(matches!(step, Step::Landed(Err(_))));
    }

    #[test]
    fn failed_attempt_never_reaches_the_kernel() {
        for (fate, direction) in [
            (Fate::Fail(libc::ENOSPC), Direction::Write),
            (Fate::Torn(0), Direction::Write),
            (Fate::Torn(UNIT), Direction::Read),
        ] {
            let (flight, told) = bent(direction, fate);
            assert!(flight.is_none());
            assert_eq!(*told.1.lock().unwrap(), [false]);
        }
        assert!(bent(Direction::Read, Fate::Fail(libc::EINTR)).0.is_some());
    }

    #[test]
    fn self_waking_delay_is_polled_to_its_end() {
        let mut left = 3;
        let wait = std::future::poll_fn(move |context| {
            context.waker().wake_by_ref();
            left -= 1;
            if left == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        // The engine's threads are missing here, so the order stays in the queue.
        let (flight, told) = bent(Direction::Read, Fate::Wait(Box::pin(wait)));
        assert!(flight.is_none());
        assert_eq!(*told.1.lock().unwrap(), [false], "the queue went with its flight");
    }

    #[test]
    fn delay_without_a_waker_ends() {
        let (flight, told) = bent(Direction::Read, Fate::Wait(Box::pin(std::future::pending())));
        assert!(flight.is_none());
        assert_eq!(*told.1.lock().unwrap(), [false]);
    }
}
