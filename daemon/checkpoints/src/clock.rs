//! Time of records.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the milliseconds since 1970; 0 under a clock before it.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time now, or the next millisecond after `last` if that is later: a clock that was
/// set back must not make a new save older than one before it.
pub(crate) fn now_after_ms(last: Option<u64>) -> u64 {
    now_ms().max(last.map_or(0, |last| last.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_under_a_clock_that_was_set_back() {
        let ahead = now_ms() + 3_600_000;
        assert_eq!(now_after_ms(Some(ahead)), ahead + 1);
        let now = now_ms();
        assert!((now..ahead).contains(&now_after_ms(Some(1))));
        assert!((now..ahead).contains(&now_after_ms(None)));
    }
}
