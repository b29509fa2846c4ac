//! Numbers that look random and are the same in every run.

/// A repeatable stream of numbers (xorshift).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Streams of different seeds differ; 0 and 1 are the same seed, as nothing comes of 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
