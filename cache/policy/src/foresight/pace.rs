//! Estimated speed from past observations.

/// Over how many usual shards it is averaged: enough that a link whose speed varies threefold from
/// shard to shard is known to some percent, few enough that a change is known within a minute.
const MEMORY: f64 = 64.0;

/// Weight of a first guess, in observations of usual shards. The first few observations are
/// averaged as they are, so that a guess is soon forgotten; without any weight, a single odd
/// observation would replace it.
const GUESS: f64 = 0.25;

/// Microseconds of a second.
const SECOND: f64 = 1e6;

/// Bytes a second, learnt by looking.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Seconds that a byte takes.
    per_byte: f64,
    /// By how much what was seen differs from that.
    spread: f64,
    /// Usual shards that were seen, the guess counted in.
    seen: f64,
}

impl Pace {
    /// One that is taken to be `rate` bytes a second at first.
    pub(super) fn new(rate: f64) -> Self {
        Self { per_byte: rate.max(1.0).recip(), spread: 0.0, seen: GUESS }
    }

    /// `bytes` took so many microseconds; `usual` are those of a shard.
    pub(super) fn saw(&mut self, bytes: u64, took: u64, usual: u64) {
        if bytes == 0 {
            return;
        }
        let seen = took as f64 / SECOND / bytes as f64;
        let shards = bytes as f64 / usual.max(1) as f64;
        self.seen += shards;
        let share = (1.0 - (-shards / MEMORY).exp()).max(shards / self.seen);
        self.spread += share * ((seen - self.per_byte).abs() - self.spread);
        self.per_byte += share * (seen - self.per_byte);
    }

    /// Bytes a second.
    pub(super) fn rate(&self) -> f64 {
        self.per_byte.recip()
    }

    /// Microseconds that `bytes` take.
    pub(super) fn takes(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.per_byte * SECOND) as u64
    }

    /// The same, and by how much the average may be wrong: its standard error.
    pub(super) fn takes_at_most(&self, bytes: u64) -> u64 {
        let looks = self.seen.clamp(1.0, MEMORY);
        let per_byte = self.per_byte + self.spread / looks.sqrt();
        (bytes as f64 * per_byte * SECOND) as u64
    }
}
