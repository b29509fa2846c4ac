//! The same work for many things, on a few threads.
//!
//! The first failure stops all, and is the one that is told.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_error::{Error, ErrorKind, Result};

/// Set to stop the work.
pub(super) type Stop = AtomicBool;

/// Runs `work` for each number below `count`, and returns the results in order; they are begun in
/// that order, too.
pub(super) fn each<T: Send>(
    count: usize,
    threads: NonZero<usize>,
    work: impl Fn(usize, &Stop) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (next, stop) = (AtomicUsize::new(0), Stop::new(false));
    let outcome = Mutex::new((Vec::with_capacity(count), None));
    let lock = || outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let run = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let made = work(number, &stop);
            let (done, failed) = &mut *lock();
            match made {
                Ok(made) => done.push((number, made)),
                Err(error) => {
                    failed.get_or_insert(error);
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        // This thread is one of them.
        for _ in 1..threads.get().min(count) {
            scope.spawn(run);
        }
        run();
    });
    let (mut done, failed) = std::mem::take(&mut *lock());
    match failed {
        Some(error) => Err(error),
        None => {
            done.sort_unstable_by_key(|(number, _)| *number);
            Ok(done.into_iter().map(|(_, made)| made).collect())
        }
    }
}

/// Returns the error of a stopped thread: another one failed, and its error is reported.
pub(super) fn given_up() -> Error {
    Error::new(ErrorKind::Closed, "the work was cancelled")
}
