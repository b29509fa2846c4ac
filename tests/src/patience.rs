//! Waiting for a condition in another process, which cannot notify this one.

use std::time::{Duration, Instant};

/// Limit of a wait: far above any step on a busy machine. Reaching it fails the test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two checks: short beside any step, long beside the cost of a check.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
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
