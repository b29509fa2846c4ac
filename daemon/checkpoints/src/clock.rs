//! Time of records.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the milliseconds since 1970; 0 under a clock before it.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
