//! Numbers that look random and are the same for the same seed.
//!
//! A test that rolls dice says its seed when it fails, and takes one from its environment, so
//! that whatever it met can be met again.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// SplitMix64: any seed will do, zero too.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that roll what `seed` says.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
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
        self.roll() % limit
    }

    /// A number of a range.
    ///
    /// # Panics
    /// If it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = self.below(of.len() as u64);
        &of[usize::try_from(at).expect("an index fits")]
    }

    /// Dice for somebody else, who does not disturb these.
    pub fn split(&mut self) -> Self {
        Self::new(self.roll())
    }
}

/// Runs `test` for each of `rounds` seeds, or for the one that the variable `seed` names; the variable
/// `count` names another number of rounds. Says the seed of the round that fails.
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
            // The panic's own words are printed already.
            say(&format!("again with {seed}={number}"));
            resume_unwind(panic)
        }
    };
    seeds.map(run).collect()
}

/// Prints a line that a test's reader needs: cargo shows it of tests that fail, and of all when asked.
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
            let mut dice = Dice::new(seed);
            (0..100).map(|_| dice.within(10..20)).collect::<Vec<_>>()
        };
        assert_eq!(of(0), of(0));
        assert_ne!(of(0), of(1));
        assert!((10..20).all(|number| of(0).contains(&number)));
    }
}
