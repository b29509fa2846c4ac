//! Decode threads that take batches side by side and hand them on in the order of their coming.
//!
//! With a GPU a batch's time is first the CPU's, then a call that lasts as long as the engines
//! decode. Two threads keep both busy; each batch waits for its turn to be handed on.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use forebay_wire::clock::now_ns;

/// The way from a queue of batches to another.
#[derive(Debug)]
pub(super) struct InOrder<T, R> {
    from: Mutex<Receiver<T>>,
    state: Mutex<State<R>>,
    handed: Condvar,
}

#[derive(Debug)]
struct State<R> {
    /// `None` once a batch got lost, or nobody takes them: nothing more is handed on.
    to: Option<Sender<R>>,
    /// Batches that were taken, and of these the ones handed on.
    taken: u64,
    handed: u64,
    /// Start of each batch that is being decoded, in nanoseconds, the oldest first.
    starts: VecDeque<u64>,
}

/// A batch's turn. Dropped unused, as by a panic, it ends the way for all threads.
#[derive(Debug)]
pub(super) struct Turn<'o, T, R> {
    order: &'o InOrder<T, R>,
    number: u64,
    is_handed: bool,
}

impl<T, R> InOrder<T, R> {
    pub(super) fn new(from: Receiver<T>, to: Sender<R>) -> Self {
        let state = State { to: Some(to), taken: 0, handed: 0, starts: VecDeque::new() };
        Self { from: Mutex::new(from), state: Mutex::new(state), handed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        // Every change is complete wherever it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next batch; `None` once there are no more.
    pub(super) fn take(&self) -> Option<(T, Turn<'_, T, R>)> {
        // Kept while it waits, so that numbers are given in the order of the queue.
        let from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = from.recv().ok()?;
        let mut state = self.state();
        state.to.as_ref()?;
        let number = state.taken;
        state.taken += 1;
        state.starts.push_back(now_ns());
        Some((batch, Turn { order: self, number, is_handed: false }))
    }

    /// Returns since when the oldest batch in hand is being decoded.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.state().starts.front().copied()
    }
}

impl<T, R> Turn<'_, T, R> {
    /// Hands the batch on, if there is one, once all before it are; false if nobody takes it.
    pub(super) fn hand(mut self, batch: Option<R>) -> bool {
        let order = self.order;
        let state = order.state();
        let before = |state: &mut State<R>| state.to.is_some() && state.handed < self.number;
        let waited = order.handed.wait_while(state, before);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(to) = state.to.clone() else { return false };
        // It is decoded, and waits for its consumer.
        state.starts.pop_front();
        drop(state);
        if batch.is_some_and(|batch| to.send(batch).is_err()) {
            return false;
        }
        self.is_handed = true;
        order.state().handed += 1;
        order.handed.notify_all();
        true
    }
}

impl<T, R> Drop for Turn<'_, T, R> {
    fn drop(&mut self) {
        if !self.is_handed {
            // The consumer learns of it, though another thread may wait for a batch for long.
            self.order.state().to = None;
            self.order.handed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use crossbeam_channel::{bounded, unbounded};

    use super::*;

    #[test]
    fn batches_are_handed_on_in_the_order_of_their_coming() {
        let (sender, from) = unbounded();
        (0..1000_u32).for_each(|number| sender.send(number).unwrap());
        drop(sender);
        let (to, received) = bounded(2);
        let order = InOrder::new(from, to);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while let Some((number, turn)) = order.take() {
                        // Every tenth is one that nobody waits for any more.
                        assert!(turn.hand((number % 10 != 0).then_some(number)));
                    }
                });
            }
            for number in (0..1000).filter(|number| number % 10 != 0) {
                assert_eq!(received.recv().unwrap(), number);
            }
        });
    }

    #[test]
    fn two_batches_are_in_hand_at_once() {
        let (sender, from) = unbounded();
        let (to, received) = bounded(2);
        let (order, both) = (InOrder::new(from, to), Barrier::new(2));
        assert_eq!(order.oldest_ns(), None);
        (0..2).for_each(|number| sender.send(number).unwrap());
        drop(sender);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let (number, turn) = order.take().unwrap();
                    assert!(order.oldest_ns().is_some());
                    both.wait();
                    assert!(turn.hand(Some(number)));
                });
            }
        });
        assert_eq!((received.recv().unwrap(), received.recv().unwrap()), (0, 1));
        assert_eq!(order.oldest_ns(), None);
    }

    #[test]
    fn lost_batch_ends_all_threads() {
        let (sender, from) = unbounded();
        let (to, received) = bounded(9);
        let order = InOrder::new(from, to);
        (0..3).for_each(|number| sender.send(number).unwrap());
        let (_, first) = order.take().unwrap();
        let (second, turn) = order.take().unwrap();
        std::thread::scope(|threads| {
            let waits = threads.spawn(move || turn.hand(Some(second)));
            drop(first);
            assert!(!waits.join().unwrap());
        });
        // Also while the threads wait for more.
        assert!(received.recv().is_err());
        assert!(order.take().is_none());
    }

    #[test]
    fn batches_nobody_takes_end_the_threads() {
        let (sender, from) = unbounded();
        let (to, received) = bounded(1);
        let order = InOrder::new(from, to);
        sender.send(1).unwrap();
        drop(received);
        let (batch, turn) = order.take().unwrap();
        assert!(!turn.hand(Some(batch)));
        sender.send(2).unwrap();
        assert!(order.take().is_none());
    }
}
