//! Waiting for a condition in another process, which can notify nobody here.

use std::time::{Duration, Instant};

/// Far above what any step takes on a busy machine; reaching it is the test's failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks: short beside any step, long beside the cost of a look.
const LOOK: Duration = Duration::from_millis(5);

/// Looks until `condition` holds.
///
/// # Panics
/// If it does not within [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "this never came to be: {what}");
        std::thread::park_timeout(LOOK);
    }
}
