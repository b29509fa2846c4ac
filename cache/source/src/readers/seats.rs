//! Queue for a mount's readers.
//!
//! Requests are served in order, except that one whose servers are idle may go before one whose
//! servers are busy; the number of times a request is passed over is bounded. So the reads in
//! flight keep many servers busy rather than one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Waiters examined behind the first: twice the parts that the two shards of a mount have in
/// flight.
const LOOKED_AT: usize = 32;

/// Times the first in the line may be passed over: one round of its shard's parts in flight, so
/// that the part an indexer waits for is not the last.
const PASSED_OVER: u32 = 8;

/// Seats, and who waits for them.
pub(super) struct Seats {
    seats: usize,
    state: Mutex<SeatState>,
}

struct SeatState {
    free: usize,
    /// Requests under way at each server, where there are any.
    busy: HashMap<u32, u32>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    servers: Vec<u32>,
    passed_over: u32,
    seat: oneshot::Sender<Seat>,
}

/// The right to have a process, until dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    servers: Vec<u32>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.leave(&self.servers);
    }
}

impl Seats {
    pub(super) fn new(seats: usize) -> Arc<Self> {
        let state = SeatState { free: seats, busy: HashMap::new(), waiting: VecDeque::new() };
        Arc::new(Self { seats, state: Mutex::new(state) })
    }

    /// Returns true if no seat is taken.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().free == self.seats
    }

    /// Returns the number of waiters.
    pub(super) fn len(&self) -> usize {
        let mut state = self.lock();
        state.waiting.retain(|one| !one.seat.is_closed());
        state.waiting.len()
    }

    /// Joins the seats, to ask these servers. A receiver that is dropped leaves it.
    pub(super) fn join(self: &Arc<Self>, servers: Vec<u32>) -> oneshot::Receiver<Seat> {
        let (seat, waiting) = oneshot::channel();
        self.lock().waiting.push_back(Waiting { servers, passed_over: 0, seat });
        self.serve();
        waiting
    }

    fn leave(self: &Arc<Self>, servers: &[u32]) {
        let mut state = self.lock();
        state.free += 1;
        for server in servers {
            if let Some(requests) = state.busy.get_mut(server) {
                *requests -= 1;
                if *requests == 0 {
                    state.busy.remove(server);
                }
            }
        }
        drop(state);
        self.serve();
    }

    /// Gives seats that are free to whoever waits.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = self.lock().next();
            let Some(next) = next else { return };
            let seat = Seat { seats: self.clone(), servers: next.servers };
            // A waiter that left returns the seat by that.
            let _ = next.seat.send(seat);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SeatState {
    /// Takes out whoever is next, with a seat noted as theirs.
    fn next(&mut self) -> Option<Waiting> {
        if self.free == 0 {
            return None;
        }
        self.waiting.retain(|one| !one.seat.is_closed());
        let first = self.waiting.front()?;
        let at = match first.passed_over >= PASSED_OVER {
            true => 0,
            false => {
                let load = |one: &Waiting| {
                    let busy = one.servers.iter().filter_map(|server| self.busy.get(server));
                    busy.max().copied().unwrap_or(0)
                };
                let looked_at = self.waiting.iter().take(LOOKED_AT).enumerate();
                // The first among equals.
                looked_at.min_by_key(|(_, one)| load(one))?.0
            }
        };
        if at > 0 {
            self.waiting.front_mut()?.passed_over += 1;
        }
        let next = self.waiting.remove(at)?;
        self.free -= 1;
        for server in &next.servers {
            *self.busy.entry(*server).or_default() += 1;
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins a line for each, and says who has a seat.
    fn joined(seats: &Arc<Seats>, servers: &[&[u32]]) -> Vec<oneshot::Receiver<Seat>> {
        servers.iter().map(|servers| seats.join(servers.to_vec())).collect()
    }

    /// The places of those who have got a seat by now, with their seats.
    fn seated(waiting: &mut [oneshot::Receiver<Seat>]) -> Vec<(usize, Seat)> {
        let tried = waiting.iter_mut().enumerate();
        tried.filter_map(|(at, one)| Some((at, one.try_recv().ok()?))).collect()
    }

    fn places(seated: &[(usize, Seat)]) -> Vec<usize> {
        seated.iter().map(|(at, _)| *at).collect()
    }

    /// Two shards of two stripes each, four parts a stripe.
    #[test]
    fn concurrent_reads_spread_over_all_servers() {
        let seats = Seats::new(4);
        // Holds the seats while the parts gather.
        let held = seated(&mut joined(&seats, &[&[], &[], &[], &[]]));
        let parts: [&[u32]; 16] = [
            &[0],
            &[0],
            &[0],
            &[0],
            &[1],
            &[1],
            &[1],
            &[1],
            &[2],
            &[2],
            &[2],
            &[2],
            &[3],
            &[3],
            &[3],
            &[3],
        ];
        let mut waiting = joined(&seats, &parts);
        drop(held);
        let mut read = Vec::new();
        while read.len() < parts.len() {
            let now = seated(&mut waiting);
            let mut servers: Vec<_> = now.iter().map(|(at, _)| parts[*at][0]).collect();
            servers.sort_unstable();
            assert_eq!(servers, [0, 1, 2, 3], "after {read:?}");
            read.extend(places(&now));
        }
        assert!(seats.is_idle());
    }

    #[test]
    fn reads_without_servers_are_first_come_first_served() {
        let seats = Seats::new(1);
        let mut waiting = joined(&seats, &[&[], &[], &[]]);
        for turn in 0..3 {
            let now = seated(&mut waiting);
            assert_eq!(places(&now), [turn]);
            assert_eq!(seats.len(), 2 - turn);
        }
    }

    #[test]
    fn waiting_read_is_passed_over_a_bounded_number_of_times() {
        let seats = Seats::new(2);
        let mut busy = joined(&seats, &[&[7]]);
        let _busy = seated(&mut busy);
        let mut gate = joined(&seats, &[&[]]);
        let gate_seat = seated(&mut gate);
        let mut first = seats.join(vec![7]);
        // Ever more whose server is idle come behind it.
        let idle: &[u32] = &[1];
        let mut others = joined(&seats, &[idle; 20]);
        drop(gate_seat);
        let mut passed = 0;
        while let Err(oneshot::error::TryRecvError::Empty) = first.try_recv() {
            passed += seated(&mut others).len();
            assert!(passed <= PASSED_OVER as usize, "passed over by {passed}");
        }
        assert_eq!(passed, PASSED_OVER as usize);
    }

    #[test]
    fn dropped_read_frees_its_seat() {
        let seats = Seats::new(1);
        let mut waiting = joined(&seats, &[&[1], &[1], &[1]]);
        let last = waiting.pop().unwrap();
        let held = seated(&mut waiting);
        assert_eq!(places(&held), [0]);
        drop(waiting);
        assert_eq!(seats.len(), 1);
        drop(held);
        let mut last = [last];
        assert_eq!(seated(&mut last).len(), 1);
        assert!(seats.is_idle() && seats.lock().busy.is_empty());
    }
}
