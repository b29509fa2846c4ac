//! Decode threads that take batches side by side and hand them on in the order of their coming.
//!
//! With a GPU a batch's time is first the CPU's, then a call that lasts as long as the engines
//! decode. Two threads keep both busy. Without one, cores that would idle behind slow samples of a
//! batch begin the next. Each batch waits for its turn to be handed on.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use forebay_wire::clock::now_ns;

/// Threads that decode with a GPU: one in the decoder's call, which lasts as long as the engines
/// decode (9 ms for 256 photos on an H100), and one that prepares the next batch meanwhile.
const DEVICE_THREADS: usize = 2;

/// Cost of a slow sample in others: so many of later batches each other core decodes meanwhile.
const SLOW: usize = 10;

/// Batches that are decoded at once without a GPU, at most.
const DECODED_AT_ONCE: usize = 8;

/// Decode threads of a loader.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Threads {
    /// Number of threads, each with a batch.
    pub(super) threads: usize,
    /// Largest number of batches that are with them, or ready.
    pub(super) held: usize,
}

impl Threads {
    /// Chooses for a loader that wants `prefetch` batches ahead. A thread holds a batch's slot, of
    /// which there are as many.
    ///
    /// The CPU decodes as many batches at once as keep its threads busy behind one slow sample, and
    /// no more: their memory is used in turn, and more of it is slower. With batches of 256 photos,
    /// 77 MB each, four at once take two cores a quarter longer than two.
    ///
    /// `on_cpu` has the decoder's threads and a batch's samples; without it batches stay bytes.
    pub(super) fn new(prefetch: usize, on_cpu: Option<(usize, usize)>, on_device: bool) -> Self {
        if on_device {
            return Self { threads: DEVICE_THREADS, held: prefetch + DEVICE_THREADS };
        }
        let at_once = on_cpu.map_or(1, |(threads, batch)| {
            let meanwhile = SLOW * threads.saturating_sub(1);
            1 + meanwhile.div_ceil(batch.max(1))
        });
        Self { threads: at_once.min(DECODED_AT_ONCE).min(prefetch), held: prefetch + 1 }
    }
}

/// The way from a queue of batches to another.
#[derive(Debug)]
pub(super) struct InOrder<T, R> {
    from: Mutex<Receiver<T>>,
    state: Mutex<State<R>>,
    /// Signals that a batch was handed on or given up, or that no more will be.
    changed: Condvar,
    /// Largest number of batches between the two queues' other ends.
    most: u64,
}

#[derive(Debug)]
struct State<R> {
    /// `None` once a batch got lost, or nobody takes them: nothing more is handed on.
    to: Option<Sender<R>>,
    /// Batches that were taken, and of these the ones handed on.
    taken: u64,
    handed: u64,
    /// Batches that were taken, and that the consumer has not got yet.
    held: u64,
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
    /// Makes a way that holds `most` batches: each costs memory from when its decoding begins.
    pub(super) fn new(from: Receiver<T>, to: Sender<R>, most: usize) -> Self {
        let state = State { to: Some(to), taken: 0, handed: 0, held: 0, starts: VecDeque::new() };
        let (from, state, changed) = (Mutex::new(from), Mutex::new(state), Condvar::new());
        Self { from, state, changed, most: most as u64 }
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        // Every change is complete wherever it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next batch; `None` once there are no more.
    pub(super) fn take(&self) -> Option<(T, Turn<'_, T, R>)> {
        // Kept while it waits, so that numbers are given in the order of the queue.
        let from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |state: &mut State<R>| state.to.is_some() && state.held >= self.most;
        let waited = self.changed.wait_while(self.state(), is_full);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let batch = from.recv().ok()?;
        let mut state = self.state();
        state.to.as_ref()?;
        let number = state.taken;
        state.taken += 1;
        state.held += 1;
        state.starts.push_back(now_ns());
        Some((batch, Turn { order: self, number, is_handed: false }))
    }

    /// Notes that the consumer has got a batch, or that nobody will.
    pub(super) fn got(&self) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(1);
        self.changed.notify_all();
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
        let waited = order.changed.wait_while(state, before);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(to) = state.to.clone() else { return false };
        // It is decoded, and waits for its consumer.
        state.starts.pop_front();
        drop(state);
        match batch {
            Some(batch) => {
                if to.send(batch).is_err() {
                    return false;
                }
            }
            None => order.got(),
        }
        self.is_handed = true;
        order.state().handed += 1;
        order.changed.notify_all();
        true
    }
}

impl<T, R> Drop for Turn<'_, T, R> {
    fn drop(&mut self) {
        if !self.is_handed {
            // The consumer learns of it, though another thread may wait for a batch for long.
            self.order.state().to = None;
            self.order.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use crossbeam_channel::{bounded, unbounded};

    use super::*;

    #[test]
    fn small_batches_are_decoded_several_at_once() {
        let at_once = |threads, batch| {
            let Threads { threads, held } = Threads::new(6, Some((threads, batch)), false);
            assert_eq!(held, 7);
            threads
        };
        assert_eq!((at_once(1, 256), at_once(2, 256), at_once(2, 8)), (1, 2, 3));
        // Never more than there are slots.
        assert_eq!((at_once(64, 256), at_once(64, 1), at_once(2, 0)), (4, 6, 6));
        assert_eq!(Threads::new(6, None, false), Threads { threads: 1, held: 7 });
        assert_eq!(Threads::new(6, Some((8, 1)), true), Threads { threads: 2, held: 8 });
    }

    #[test]
    fn batches_are_handed_on_in_the_order_of_their_coming() {
        let (sender, from) = unbounded();
        (0..1000_u32).for_each(|number| sender.send(number).unwrap());
        drop(sender);
        let (to, received) = bounded(2);
        let order = InOrder::new(from, to, 1000);
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
        let (order, both) = (InOrder::new(from, to, 9), Barrier::new(2));
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
        let order = InOrder::new(from, to, 9);
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
        let order = InOrder::new(from, to, 9);
        sender.send(1).unwrap();
        drop(received);
        let (batch, turn) = order.take().unwrap();
        assert!(!turn.hand(Some(batch)));
        sender.send(2).unwrap();
        assert!(order.take().is_none());
    }

    #[test]
    fn no_more_batches_are_taken_than_may_be_held() {
        let (sender, from) = unbounded();
        let (to, received) = bounded(9);
        let order = InOrder::new(from, to, 2);
        (0..4).for_each(|number| sender.send(number).unwrap());
        drop(sender);
        let (first, turn) = order.take().unwrap();
        assert!(turn.hand(Some(first)));
        // One that nobody waits for is not held.
        let (_, turn) = order.take().unwrap();
        assert!(turn.hand(None));
        let (third, turn) = order.take().unwrap();
        std::thread::scope(|threads| {
            let waits =
                threads.spawn(|| order.take().map(|(number, turn)| (number, turn.hand(None))));
            assert!(turn.hand(Some(third)));
            assert!(!waits.is_finished());
            assert_eq!(received.recv().unwrap(), first);
            order.got();
            assert_eq!(waits.join().unwrap(), Some((3, true)));
        });
    }
}
