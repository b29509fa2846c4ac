//! One test at a time, where tests measure what all tests of a process share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Holds up each test of this process that also calls it, until the guard is dropped.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
