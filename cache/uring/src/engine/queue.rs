//! Orders on their way to an engine's threads.
//!
//! The bell is rung only for a thread that sleeps. Who pushes and who goes to sleep do so
//! under one lock, so no wake-up is lost and none is wasted on a thread that is awake.
//!
//! Bounds: every order holds a permit until it has been carried out; retirements are at most one
//! per table entry.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use forebay_error::Result;
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::flight::Flight;
use crate::region::Region;

/// Permits per operation in flight: one batch with the kernel, one ready to follow it, so that the
/// device does not idle while callers are being woken.
const PERMITS_PER_FLIGHT: usize = 2;

/// Something for an engine thread to do.
pub(super) enum Order {
    /// Move bytes or sync.
    Fly(Flight),
    /// Register a region's memory, unless its owner is gone by then: an engine whose disk hangs
    /// must not keep it.
    Attach { region: Weak<Region>, reply: oneshot::Sender<bool>, permit: OwnedSemaphorePermit },
}

/// Something whose owner is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retired {
    /// Index in the ring's file table.
    File(u32),
    /// Id of a region whose memory was registered.
    Region(u64),
}

/// Way to wake a sleeping thread.
pub(super) enum Bell {
    /// A ring thread: it keeps a read of this eventfd in flight.
    Event(OwnedFd),
    /// Pool threads.
    Condvar(Condvar),
}

pub(super) struct Queue {
    state: Mutex<OrderState>,
    permits: Arc<Semaphore>,
    limit: usize,
    bell: Bell,
    wakes: AtomicU64,
}

struct OrderState {
    orders: VecDeque<Order>,
    retired: Vec<Retired>,
    /// Threads that will not look again until the bell rings.
    sleeping: usize,
    closed: bool,
}

/// Items the ring thread found in the queue.
pub(super) struct Intake {
    /// At most as many as asked for, oldest first.
    pub(super) orders: Vec<Order>,
    pub(super) retired: Vec<Retired>,
    /// No order will follow those still in the queue.
    pub(super) closed: bool,
    /// The queue holds nothing more.
    pub(super) empty: bool,
    /// The taker is booked as sleeping: the next push rings the bell.
    pub(super) dozing: bool,
}

impl Queue {
    pub(super) fn new(in_flight: u32, bell: Bell) -> Self {
        let permits = in_flight as usize * PERMITS_PER_FLIGHT;
        Self {
            state: Mutex::new(OrderState {
                orders: VecDeque::with_capacity(permits),
                retired: Vec::new(),
                sleeping: 0,
                closed: false,
            }),
            permits: Arc::new(Semaphore::new(permits)),
            limit: permits,
            bell,
            wakes: AtomicU64::new(0),
        }
    }

    /// The right to queue one order, waited for in line.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_| super::closed())
    }

    /// The same without waiting.
    pub(super) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// The share of permits that are taken.
    pub(super) fn load(&self) -> f64 {
        (self.limit - self.permits.available_permits()) as f64 / self.limit as f64
    }

    /// The permits, for a future that outlives a borrow of the queue.
    pub(super) fn permits(&self) -> Arc<Semaphore> {
        Arc::clone(&self.permits)
    }

    /// Queues orders in one step and wakes what must be woken, once. After [`Queue::close`] they
    /// are ended with `Closed` instead.
    pub(super) fn push(&self, orders: impl IntoIterator<Item = Order>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            orders.into_iter().for_each(Order::refuse);
            return;
        }
        let before = state.orders.len();
        state.orders.extend(orders);
        let added = state.orders.len() - before;
        self.ring(state, added);
    }

    /// Tells the engine that an owner is gone.
    pub(super) fn retire(&self, retired: Retired) {
        let mut state = self.lock();
        if !state.closed {
            state.retired.push(retired);
            self.ring(state, 1);
        }
    }

    /// Accepts nothing more; what is queued is still done.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.permits.close();
        self.ring(state, usize::MAX);
    }

    /// Ends every queued order: the engine's thread is gone and will not.
    pub(super) fn abandon(&self) {
        self.close();
        let orders = std::mem::take(&mut self.lock().orders);
        orders.into_iter().for_each(Order::refuse);
    }

    /// Takes up to `room` orders and all retirements. If nothing is left and fewer than `calm`
    /// orders were taken, the caller is booked as sleeping: the next push rings the bell.
    pub(super) fn take(&self, room: usize, calm: usize) -> Intake {
        let mut state = self.lock();
        let count = room.min(state.orders.len());
        let orders = state.orders.drain(..count).collect();
        let retired = std::mem::take(&mut state.retired);
        let empty = state.orders.is_empty();
        let dozing = empty && count < calm && !state.closed;
        state.sleeping = usize::from(dozing);
        Intake { orders, retired, closed: state.closed, empty, dozing }
    }

    /// The ring's thread is up: it will look at the queue before it sleeps again.
    pub(super) fn awake(&self) {
        self.lock().sleeping = 0;
    }

    /// Waits for one order; `None` when the queue is closed and empty. For pool threads.
    pub(super) fn wait(&self) -> Option<Order> {
        let Bell::Condvar(condvar) = &self.bell else {
            unreachable!("only pool threads wait, and their queue has a condvar");
        };
        let mut state = self.lock();
        loop {
            if let Some(order) = state.orders.pop_front() {
                return Some(order);
            }
            if state.closed {
                return None;
            }
            state.sleeping += 1;
            state = condvar.wait(state).expect("nothing panics while the queue is open");
            state.sleeping -= 1;
        }
    }

    /// Wakes at most `wanted` threads, with the queue unlocked.
    fn ring(&self, mut state: MutexGuard<'_, OrderState>, wanted: usize) {
        match &self.bell {
            Bell::Event(event) => {
                let rings = wanted > 0 && std::mem::take(&mut state.sleeping) > 0;
                drop(state);
                if rings {
                    self.wakes.fetch_add(1, Ordering::Relaxed);
                    write_event(event);
                }
            }
            Bell::Condvar(condvar) => {
                let count = wanted.min(state.sleeping);
                drop(state);
                (0..count).for_each(|_| condvar.notify_one());
            }
        }
    }

    /// The eventfd of a ring's queue.
    pub(super) fn event(&self) -> Option<&OwnedFd> {
        match &self.bell {
            Bell::Event(event) => Some(event),
            Bell::Condvar(_) => None,
        }
    }

    /// System calls spent on waking the ring's thread.
    pub(super) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().expect("nothing panics while the queue is open")
    }
}

impl Order {
    /// Ends an order that will never be carried out.
    pub(super) fn refuse(self) {
        match self {
            Self::Fly(flight) => flight.land(Err(super::closed())),
            // The sender drops, and whoever asked sees that the engine is gone.
            Self::Attach { .. } => {}
        }
    }
}

/// Adds one to the eventfd. It cannot fill up: the bell rings once per sleep.
fn write_event(event: &OwnedFd) {
    loop {
        match rustix::io::write(event, &1u64.to_ne_bytes()) {
            Err(Errno::INTR) => {}
            Ok(_) => return,
            Err(errno) => {
                tracing::error!(%errno, "failed to wake a disk engine");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;

    use super::super::flight::Direction;
    use super::super::flight::tests::transfer;
    use super::*;

    fn order() -> (Order, oneshot::Receiver<super::super::Done>) {
        let (transfer, answer, _) = transfer(Direction::Read, 1);
        (Order::Fly(Flight::Transfer(transfer)), answer)
    }

    fn queue() -> Queue {
        // Non-blocking, so that a bell that did not ring shows as an error.
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Queue::new(1, Bell::Event(event))
    }

    #[test]
    fn wake_up_is_sent_once_and_only_to_a_sleeping_thread() {
        let queue = queue();
        queue.push([order().0]);
        assert_eq!(queue.wakes(), 0, "no one sleeps yet");
        assert!(queue.take(8, 8).dozing);
        queue.push([order().0, order().0]);
        queue.push([order().0]);
        assert_eq!(queue.wakes(), 1, "the first of three woke the thread");
        let mut heard = [0; 8];
        rustix::io::read(queue.event().unwrap(), &mut heard).unwrap();
        assert_eq!(u64::from_ne_bytes(heard), 1);
        assert_eq!(queue.take(8, 8).orders.len(), 3);
        queue.awake();
        queue.push([order().0]);
        assert_eq!(queue.wakes(), 1);
    }

    #[test]
    fn busy_thread_is_not_marked_asleep() {
        let queue = queue();
        queue.push([order().0, order().0]);
        let intake = queue.take(1, 8);
        assert_eq!((intake.orders.len(), intake.empty, intake.dozing), (1, false, false));
        queue.push([]);
        queue.retire(Retired::File(3));
        assert_eq!(queue.wakes(), 0);
        let intake = queue.take(8, 1);
        assert_eq!((intake.retired.as_slice(), intake.dozing), (&[Retired::File(3)][..], false));
        queue.push([order().0]);
        assert_eq!(queue.wakes(), 0, "one taken is a crowd here");
    }

    #[test]
    fn empty_push_wakes_no_thread() {
        let queue = queue();
        queue.take(8, 8);
        queue.push([]);
        assert_eq!(queue.wakes(), 0);
    }

    #[test]
    fn closed_queue_rejects_and_abandoned_queue_ends_orders() {
        let queue = queue();
        let (held, mut first) = order();
        queue.push([held]);
        queue.close();
        let (late, mut second) = order();
        queue.push([late]);
        let refused = second.try_recv().unwrap().result.unwrap_err();
        assert_eq!(refused.kind(), forebay_error::ErrorKind::Closed);
        assert!(first.try_recv().is_err(), "what was queued before is still done");
        queue.abandon();
        assert!(first.try_recv().unwrap().result.is_err());
        assert!(queue.try_permit().is_none());
    }

    #[test]
    fn permits_are_twice_the_depth() {
        let queue = queue();
        let held: Vec<_> = std::iter::from_fn(|| queue.try_permit()).collect();
        assert_eq!(held.len(), 2);
    }
}
