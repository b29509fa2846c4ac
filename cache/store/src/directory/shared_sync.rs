//! One sync of a directory for all who renamed a file in it before the sync began.
//!
//! A sync takes milliseconds, whatever it makes durable. A caller whose rename came after the
//! start of the running sync waits for the next one, which it shares with all others that wait. A
//! sync begins once all that were about to rename a file then have done so: they are one write
//! away, and would need the next.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Syncs of one directory. Calls block.
#[derive(Debug, Default)]
pub(super) struct SharedSync {
    state: Mutex<SyncState>,
    ended: Condvar,
    /// Waited for by the caller that syncs next.
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Number of syncs that began.
    begun: u64,
    /// True while a caller syncs, or waits for others to begin.
    is_led: bool,
    /// Number of callers that are about to rename a file, ever,
    announced: u64,
    /// and those of them that have not come yet.
    coming: BTreeSet<u64>,
    /// The last sync that ended, and its outcome.
    last: (u64, Option<Arc<io::Error>>),
}

/// A caller that is about to rename a file. Dropped, it does not come.
pub(super) struct Coming<'a> {
    syncs: &'a SharedSync,
    number: u64,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.syncs.arrive(&mut self.syncs.lock(), self.number);
    }
}

impl Coming<'_> {
    /// Waits for a sync that begins after this call. `sync`: called by one of those who wait.
    ///
    /// # Errors
    /// The error of that sync, or of a later one.
    pub(super) fn sync(self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let syncs = self.syncs;
        let mut state = syncs.lock();
        let wanted = state.begun + 1;
        syncs.arrive(&mut state, self.number);
        loop {
            let (ended, outcome) = &state.last;
            if *ended >= wanted {
                return outcome.as_ref().map_or(Ok(()), |error| Err(copy(error)));
            }
            if !state.is_led {
                break;
            }
            state = syncs.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_led = true;
        let until = state.announced;
        let is_short = |state: &mut SyncState| state.coming.range(..until).next().is_some();
        state = syncs.arrived.wait_while(state, is_short).unwrap_or_else(PoisonError::into_inner);
        state.begun += 1;
        let number = state.begun;
        drop(state);
        // Ends even if the call panics: others must not wait for ever.
        let mut running = RunningSync { syncs, number, outcome: Some(interrupted()) };
        let outcome = sync();
        running.outcome = outcome.as_ref().err().map(|error| Arc::new(copy(error)));
        drop(running);
        outcome
    }
}

impl SharedSync {
    /// Announces a caller that is about to rename a file and to sync.
    pub(super) fn announce(&self) -> Coming<'_> {
        let mut state = self.lock();
        let number = state.announced;
        state.announced += 1;
        state.coming.insert(number);
        Coming { syncs: self, number }
    }

    /// Notes that an announced caller has come, or does not come.
    fn arrive(&self, state: &mut SyncState, number: u64) {
        if state.coming.remove(&number) {
            self.arrived.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sync until it ends.
struct RunningSync<'a> {
    syncs: &'a SharedSync,
    number: u64,
    outcome: Option<Arc<io::Error>>,
}

impl Drop for RunningSync<'_> {
    fn drop(&mut self) {
        let mut state = self.syncs.lock();
        state.is_led = false;
        state.last = (self.number, self.outcome.take());
        drop(state);
        self.syncs.ended.notify_all();
    }
}

/// The same error for another caller.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

fn interrupted() -> Arc<io::Error> {
    Arc::new(io::Error::other("the sync of a directory panicked"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn sync_begins_once_all_announced_have_come() {
        let (syncs, calls) = (&SharedSync::default(), &AtomicU64::new(0));
        let sync = || {
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let (first, second, gone) = (syncs.announce(), syncs.announce(), syncs.announce());
        std::thread::scope(|scope| {
            scope.spawn(|| first.sync(sync).unwrap());
            while !syncs.lock().is_led {
                std::thread::yield_now();
            }
            // One that is announced later is not waited for.
            let later = syncs.announce();
            drop(gone);
            assert_eq!(syncs.lock().begun, 0, "one is coming");
            second.sync(sync).unwrap();
            assert_eq!(calls.load(Ordering::Relaxed), 1, "both share it");
            later.sync(sync).unwrap();
        });
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert!(syncs.lock().coming.is_empty());
    }

    #[test]
    fn callers_that_wait_share_the_next_sync() {
        let (syncs, calls) = (&SharedSync::default(), &AtomicU64::new(0));
        let (begun, has_begun) = mpsc::channel();
        let (go, may_end) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let first = syncs.announce().sync(|| {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                    Ok(())
                });
                first.unwrap();
            });
            has_begun.recv().unwrap();
            let later: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(move || {
                        syncs.announce().sync(|| {
                            calls.fetch_add(1, Ordering::Relaxed);
                            Err(io::Error::from_raw_os_error(5))
                        })
                    })
                })
                .collect();
            // Nobody may share a sync that began before the call.
            assert!(later.iter().all(|waiting| !waiting.is_finished()));
            go.send(()).unwrap();
            for waiting in later {
                assert_eq!(waiting.join().unwrap().unwrap_err().raw_os_error(), Some(5));
            }
        });
        let calls = calls.load(Ordering::Relaxed);
        assert!((1..=8).contains(&calls), "{calls}");
        syncs.announce().sync(|| Ok(())).unwrap();
    }
}
