//! One sync of a directory for all who renamed a file in it before the sync began.
//!
//! A sync takes milliseconds, whatever it makes durable. A caller whose rename came after the
//! start of the running sync waits for the next one, which it shares with all others that wait.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Syncs of one directory. Calls block.
#[derive(Debug, Default)]
pub(super) struct SharedSync {
    state: Mutex<SyncState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Number of syncs that began.
    begun: u64,
    is_running: bool,
    /// The last sync that ended, and its outcome.
    last: (u64, Option<Arc<io::Error>>),
}

impl SharedSync {
    /// Waits for a sync that begins after this call. `sync`: called by one of those who wait.
    ///
    /// # Errors
    /// The error of that sync, or of a later one.
    pub(super) fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        let wanted = state.begun + 1;
        loop {
            let (ended, outcome) = &state.last;
            if *ended >= wanted {
                return outcome.as_ref().map_or(Ok(()), |error| Err(copy(error)));
            }
            if !state.is_running {
                break;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.begun += 1;
        state.is_running = true;
        let number = state.begun;
        drop(state);
        // Ends even if the call panics: others must not wait for ever.
        let mut running = RunningSync { syncs: self, number, outcome: Some(interrupted()) };
        let outcome = sync();
        running.outcome = outcome.as_ref().err().map(|error| Arc::new(copy(error)));
        drop(running);
        outcome
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
        state.is_running = false;
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
    fn callers_that_wait_share_the_next_sync() {
        let (syncs, calls) = (&SharedSync::default(), &AtomicU64::new(0));
        let (begun, has_begun) = mpsc::channel();
        let (go, may_end) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let first = syncs.sync(|| {
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
                        syncs.sync(|| {
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
        syncs.sync(|| Ok(())).unwrap();
    }
}
