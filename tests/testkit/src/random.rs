//! Random numbers from a seed.
//!
//! A randomised test prints its seed when it fails and takes one from its environment, so
//! that a failure can be repeated.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// SplitMix64: any seed is good, zero too.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// If there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A number of a range.
    ///
    /// # Panics
    /// If it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Returns true with this chance in percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Picks one of a list.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = self.below(of.len() as u64);
        &of[usize::try_from(at).expect("an index fits")]
    }

    /// An independent generator, seeded by this one.
    pub fn split(&mut self) -> Self {
        Self::new(self.number())
    }
}

/// Runs `test` for each of `rounds` seeds, or for the one in the variable `seed`; the variable
/// `count` holds another number of rounds. Prints the seed of a round that fails.
///
/// # Panics
/// As the test does; if a variable is not a number.
pub fn for_seeds<T: Debug>(
    seed: &str,
    count: &str,
    rounds: u64,
    mut test: impl FnMut(u64) -> T,
) -> Vec<T> {
    let number = |name: &str| {
        let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    };
    let seeds = match number(seed) {
        Some(one) => one..one + 1,
        None => 0..number(count).unwrap_or(rounds),
    };
    let run = |number| match catch_unwind(AssertUnwindSafe(|| test(number))) {
        Ok(done) => done,
        Err(panic) => {
            // The panic's message is printed already.
            say(&format!("again with {seed}={number}"));
            resume_unwind(panic)
        }
    };
    seeds.map(run).collect()
}

/// Prints a line for the reader of a test: cargo shows it for tests that fail, or with --nocapture.
#[allow(clippy::print_stderr, reason = "this is what a test says")]
pub fn say(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_draw_equal_numbers() {
        let of = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.within(10..20)).collect::<Vec<_>>()
        };
        assert_eq!(of(0), of(0));
        assert_ne!(of(0), of(1));
        assert!((10..20).all(|number| of(0).contains(&number)));
    }
}
