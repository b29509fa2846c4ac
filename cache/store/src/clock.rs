//! Clock of copies' ages.
//!
//! Rule: within a run ages follow the monotonic clock, so a step of the wall clock neither keeps a
//! copy for longer nor makes it stale. Across runs they follow the files' times; one that lies in
//! the future was written under a wrong clock and counts as now.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

/// Wall clock at the first look, and the moment of it.
static START: LazyLock<(SystemTime, Instant)> =
    LazyLock::new(|| (SystemTime::now(), Instant::now()));

/// Returns the wall clock's time at the start of this process, plus the time since.
pub(crate) fn now() -> SystemTime {
    let (wall, moment) = *START;
    wall + moment.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        let mut last = now();
        for _ in 0..1000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}
