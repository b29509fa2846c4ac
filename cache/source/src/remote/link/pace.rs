//! Usual duration of an endpoint's requests, to detect late ones.
//!
//! It uses medians of the last requests. A slow tail, which is what it detects, moves no median.

use std::time::Duration;

/// Requests remembered: at 50 a second, what happened in the last second or two.
const REMEMBERED: usize = 64;

/// Fewer say nothing.
const ENOUGH: usize = 4;

/// The last so many values, in the order in which they came.
#[derive(Debug, Default)]
struct Recent {
    values: Vec<f64>,
    next: usize,
}

impl Recent {
    fn add(&mut self, value: f64) {
        if self.values.len() < REMEMBERED {
            self.values.push(value);
        } else {
            self.values[self.next] = value;
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    fn median(&self) -> Option<f64> {
        if self.values.len() < ENOUGH {
            return None;
        }
        let mut sorted = self.values.clone();
        let middle = sorted.len() / 2;
        let (_, median, _) = sorted.select_nth_unstable_by(middle, f64::total_cmp);
        Some(*median)
    }
}

/// The usual times of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Seconds from asking to the first byte.
    first_byte: Recent,
    /// Seconds per byte after that.
    per_byte: Recent,
}

impl Pace {
    /// Notes a request whose first byte came after `first_byte`, and `bytes` in `rest` after that.
    pub(super) fn note(&mut self, first_byte: Duration, bytes: u64, rest: Duration) {
        self.first_byte.add(first_byte.as_secs_f64());
        if bytes > 0 {
            self.per_byte.add(rest.as_secs_f64() / bytes as f64);
        }
    }

    /// Returns the usual duration for `bytes`, the wait for the first byte included; `None` while
    /// too little is known.
    pub(super) fn usual(&self, bytes: u64) -> Option<Duration> {
        let seconds = self.first_byte.median()? + self.per_byte.median()? * bytes as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Returns the bytes that arrive in the usual wait for the first one.
    pub(super) fn bytes_per_wait(&self) -> Option<u64> {
        let per_byte = self.per_byte.median()?.max(f64::MIN_POSITIVE);
        Some((self.first_byte.median()? / per_byte) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn slow_tail_does_not_change_the_usual_pace() {
        let mut pace = Pace::default();
        for n in 0..200 {
            let slow = if n % 10 == 0 { 100 } else { 1 };
            assert_eq!(pace.usual(1 << 20).is_some(), n >= ENOUGH);
            pace.note(MS * 5 * slow, 1 << 20, MS * 20 * slow);
        }
        let usual = pace.usual(2 << 20).unwrap();
        assert!(usual > MS * 44 && usual < MS * 46, "{usual:?}");
        let bytes = pace.bytes_per_wait().unwrap();
        assert!((260_000..264_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn lasting_change_becomes_the_usual_pace() {
        let mut pace = Pace::default();
        (0..REMEMBERED).for_each(|_| pace.note(MS, 1000, MS));
        (0..REMEMBERED).for_each(|_| pace.note(MS * 9, 1000, MS));
        assert_eq!(pace.usual(0), Some(MS * 9));
    }
}
