//! How fast something goes, as far as was seen.

/// Over how many usual shards it is averaged: enough that a link whose speed varies threefold from shard to shard is known to
/// some percent, few enough that a change is known within a minute.
const MEMORY: f64 = 64.0;

/// Microseconds of a second.
const SECOND: f64 = 1e6;

/// Bytes a second, learnt by looking.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Seconds that a byte takes.
    per_byte: f64,
    /// By how much what was seen differs from that.
    spread: f64,
}

impl Pace {
    /// One that is taken to be `rate` bytes a second at first.
    pub(super) fn new(rate: f64) -> Self {
        Self { per_byte: rate.max(1.0).recip(), spread: 0.0 }
    }

    /// `bytes` took so many microseconds; `usual` are those of a shard.
    pub(super) fn saw(&mut self, bytes: u64, took: u64, usual: u64) {
        if bytes == 0 {
            return;
        }
        let seen = took as f64 / SECOND / bytes as f64;
        let share = 1.0 - (-(bytes as f64) / (MEMORY * usual.max(1) as f64)).exp();
        self.spread += share * ((seen - self.per_byte).abs() - self.spread);
        self.per_byte += share * (seen - self.per_byte);
    }

    /// Microseconds that `bytes` take.
    pub(super) fn takes(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.per_byte * SECOND) as u64
    }

    /// The same, and by how much the average may be wrong: its standard error.
    pub(super) fn takes_at_most(&self, bytes: u64) -> u64 {
        let per_byte = self.per_byte + self.spread / MEMORY.sqrt();
        (bytes as f64 * per_byte * SECOND) as u64
    }
}
