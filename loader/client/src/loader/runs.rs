//! Runs of a loader: the one whose batches its consumer takes, and the next one, begun ahead.
//!
//! A run's first batch takes a round trip, reads and decoding. So a loader begins the next epoch
//! once all batches of this one have arrived, and its first batches are ready when the consumer
//! comes for them. It does so if the consumer went on at once from the epoch before this one: a job
//! of one epoch, or one that pauses between epochs, holds no memory and no shards for a next one.
//!
//! Numbers of runs grow. Items of a run with a lower number than the consumer's are stale.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_wire::message::Begin;

/// A pause between two epochs up to which the second follows the first at once, however short these
/// are. An epoch begun ahead in vain is kept for about as long as the one before it took: the pause
/// may also be that long.
const PAUSE: Duration = Duration::from_secs(1);

/// A run, and its place in the job's order, if it has one.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u64,
    epoch: u64,
    /// None for picked samples and leased shards, which no run follows by itself.
    begin: Option<Begin>,
}

#[derive(Debug)]
struct State {
    current: Run,
    /// Start of the current run, and its end, once the consumer has got it.
    begun: Instant,
    ended: Option<Instant>,
    /// True if the current run followed the one before it at once.
    goes_on: bool,
    /// True if the current run was begun ahead, and the daemon has not confirmed it yet.
    is_unconfirmed: bool,
    ahead: Option<Run>,
    /// The highest number so far.
    latest: u64,
}

/// Runs of a loader.
#[derive(Debug)]
pub(super) struct Runs(Mutex<State>);

impl Runs {
    pub(super) fn new() -> Self {
        let current = Run { number: 0, epoch: 0, begin: None };
        Self(Mutex::new(State {
            current,
            begun: Instant::now(),
            ended: None,
            goes_on: false,
            is_unconfirmed: false,
            ahead: None,
            latest: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete wherever it could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the consumer's run.
    pub(super) fn current(&self) -> u64 {
        self.lock().current.number
    }

    /// Returns the epoch of a run; `None` if it is stale.
    pub(super) fn epoch_of(&self, run: u64) -> Option<u64> {
        let state = self.lock();
        let runs = [Some(state.current), state.ahead];
        runs.into_iter().flatten().find(|one| one.number == run).map(|one| one.epoch)
    }

    /// Makes the run that was begun ahead at `begin` the consumer's, if there is one and the daemon
    /// is asked to `confirm` it; returns false if the run is to be begun.
    pub(super) fn adopt(
        &self,
        begin: Begin,
        now: Instant,
        confirm: impl FnOnce(u64) -> bool,
    ) -> bool {
        let mut state = self.lock();
        let is_wanted = |run: &Run| run.begin == Some(begin) && confirm(run.number);
        let Some(run) = state.ahead.take().filter(is_wanted) else { return false };
        state.turn_to(run, now);
        state.is_unconfirmed = true;
        true
    }

    /// Returns the consumer's run and its start, if the daemon has not confirmed it yet.
    pub(super) fn unconfirmed(&self) -> Option<(u64, Begin)> {
        let state = self.lock();
        state
            .current
            .begin
            .filter(|_| state.is_unconfirmed)
            .map(|begin| (state.current.number, begin))
    }

    /// Notes that the daemon has confirmed the consumer's run.
    pub(super) fn confirm(&self) {
        self.lock().is_unconfirmed = false;
    }

    /// Begins the consumer's run once more, as it was not confirmed; returns its new number.
    pub(super) fn begin_again(&self) -> u64 {
        let mut state = self.lock();
        state.current.number = state.next_number();
        state.is_unconfirmed = false;
        state.current.number
    }

    /// Makes a new run the consumer's, and all others stale; returns its number.
    pub(super) fn begin(&self, epoch: u64, begin: Option<Begin>, now: Instant) -> u64 {
        let mut state = self.lock();
        let number = state.next_number();
        state.ahead = None;
        state.turn_to(Run { number, epoch, begin }, now);
        number
    }

    /// Notes that the consumer has got the end of its run.
    pub(super) fn end(&self, now: Instant) {
        self.lock().ended = Some(now);
    }

    /// Begins the next epoch ahead, if the consumer is expected to go on with it and the current
    /// run `has_arrived`; returns the new run.
    pub(super) fn look_ahead(&self, has_arrived: impl FnOnce(u64) -> bool) -> Option<(u64, Begin)> {
        let mut state = self.lock();
        if !state.goes_on || state.ahead.is_some() || state.ended.is_some() {
            return None;
        }
        let begin = next(state.current.begin?)?;
        if !has_arrived(state.current.number) {
            return None;
        }
        let number = state.next_number();
        state.ahead = Some(Run { number, epoch: begin.epoch, begin: Some(begin) });
        Some((number, begin))
    }

    /// Makes the run that was begun ahead stale, as its batches will not all come.
    pub(super) fn forget_ahead(&self) {
        self.lock().ahead = None;
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    fn turn_to(&mut self, run: Run, now: Instant) {
        let is_next = run.begin.is_some() && run.begin == self.current.begin.and_then(next);
        self.goes_on = is_next
            && self.ended.is_some_and(|ended| {
                let took = ended.saturating_duration_since(self.begun);
                now.saturating_duration_since(ended) <= took.max(PAUSE)
            });
        (self.current, self.begun, self.ended) = (run, now, None);
        self.is_unconfirmed = false;
    }
}

/// Returns the same place of the next epoch.
fn next(begin: Begin) -> Option<Begin> {
    Some(Begin { epoch: begin.epoch.checked_add(1)?, ..begin })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(epoch: u64) -> Begin {
        Begin::at(epoch, 0)
    }

    /// Begins an epoch as a loader does; true if it was begun ahead.
    fn start(runs: &Runs, begin: Begin, now: Instant) -> bool {
        let is_ahead = runs.adopt(begin, now, |_| true);
        if !is_ahead {
            runs.begin(begin.epoch, Some(begin), now);
        }
        is_ahead
    }

    /// Plays epochs with a pause between each two, and a second each; returns those begun ahead.
    fn played(pauses: &[Duration]) -> Vec<bool> {
        let (runs, mut now) = (Runs::new(), Instant::now());
        let all = pauses.iter().chain([&Duration::ZERO]).enumerate().map(|(epoch, pause)| {
            let is_ahead = start(&runs, at(epoch as u64), now);
            runs.look_ahead(|_| true);
            now += SECOND;
            runs.end(now);
            now += *pause;
            is_ahead
        });
        all.collect()
    }

    #[test]
    fn epochs_are_begun_ahead_for_consumers_that_go_on_at_once() {
        assert_eq!(played(&[Duration::ZERO; 4]), [false, false, true, true, true]);
        assert_eq!(played(&[100 * SECOND; 3]), [false; 4]);
        // A single pause does not lose what was begun, and nothing is begun behind it.
        let pauses = [Duration::ZERO, SECOND, 9 * SECOND, Duration::ZERO, Duration::ZERO];
        assert_eq!(played(&pauses), [false, false, true, true, false, true]);
    }

    #[test]
    fn pause_may_be_as_long_as_the_epoch_was() {
        let (runs, start_of_all) = (Runs::new(), Instant::now());
        for (epoch, begun) in [0, 90, 180].into_iter().enumerate() {
            start(&runs, at(epoch as u64), start_of_all + begun * SECOND);
            runs.end(start_of_all + (begun + 50) * SECOND);
        }
        start(&runs, at(3), start_of_all + 270 * SECOND);
        assert!(runs.look_ahead(|_| true).is_some());
    }

    #[test]
    fn only_what_was_begun_ahead_is_taken_over() {
        let begins = [
            at(4),
            at(2),
            Begin { base: 8, ..at(3) },
            Begin { step: 2, ..at(3) },
            Begin { batch: 1, ..at(3) },
        ];
        for wrong in begins {
            let (runs, now) = (Runs::new(), Instant::now());
            for epoch in 1..3 {
                start(&runs, at(epoch), now);
                runs.end(now);
            }
            start(&runs, at(2), now);
            assert_eq!(runs.look_ahead(|_| true), None, "epoch 2 was played before");
            runs.end(now);
            start(&runs, at(3), now);
            runs.end(now);
            assert!(!start(&runs, wrong, now), "{wrong:?}");
        }
    }

    #[test]
    fn run_ahead_that_failed_is_begun_again() {
        let (runs, now) = (Runs::new(), Instant::now());
        for epoch in 0..2 {
            start(&runs, at(epoch), now);
            runs.end(now);
        }
        // Ended runs are followed by what the consumer begins.
        assert_eq!(runs.look_ahead(|_| true), None);
        start(&runs, at(2), now);
        assert_eq!(runs.look_ahead(|_| false), None);
        let (ahead, begin) = runs.look_ahead(|_| true).unwrap();
        assert_eq!((begin, runs.epoch_of(ahead)), (at(3), Some(3)));
        // One at a time.
        assert_eq!(runs.look_ahead(|_| true), None);
        runs.end(now);
        assert!(!runs.adopt(at(3), now, |run| run != ahead));
        let again = runs.begin(3, Some(at(3)), now);
        assert!(again > ahead);
        assert_eq!((runs.epoch_of(ahead), runs.epoch_of(again)), (None, Some(3)));
    }

    #[test]
    fn run_that_is_not_confirmed_is_begun_again() {
        let (runs, now) = (Runs::new(), Instant::now());
        for epoch in 0..2 {
            start(&runs, at(epoch), now);
            assert_eq!(runs.unconfirmed(), None);
            runs.look_ahead(|_| true);
            runs.end(now);
        }
        for confirmed in [true, false] {
            let epoch = if confirmed { 2 } else { 3 };
            assert!(start(&runs, at(epoch), now));
            let (run, begin) = runs.unconfirmed().unwrap();
            assert_eq!((begin, run), (at(epoch), runs.current()));
            match confirmed {
                true => runs.confirm(),
                false => assert!(runs.begin_again() > run),
            }
            assert_eq!(runs.unconfirmed(), None);
            assert_eq!(runs.epoch_of(run).is_some(), confirmed);
            assert_eq!(runs.epoch_of(runs.current()), Some(epoch));
            // The consumer goes on, whatever became of its run.
            assert!(runs.look_ahead(|_| true).is_some());
            runs.end(now);
        }
    }

    #[test]
    fn broken_off_epoch_is_not_followed_by_itself() {
        let (runs, now) = (Runs::new(), Instant::now());
        for epoch in 0..5 {
            assert!(!start(&runs, at(epoch), now));
            assert_eq!(runs.look_ahead(|_| true), None);
        }
        // Neither are picked samples, nor the last epoch there is.
        for _ in 0..3 {
            runs.begin(0, None, now);
            runs.end(now);
            assert_eq!(runs.look_ahead(|_| true), None);
        }
        for epoch in [u64::MAX - 1, u64::MAX] {
            start(&runs, at(epoch), now);
            runs.look_ahead(|_| true);
            runs.end(now);
        }
        assert!(!start(&runs, at(0), now));
    }
}
