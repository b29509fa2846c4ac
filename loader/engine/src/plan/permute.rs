//! Permutations without memory: the place of item i of n under a key.
//!
//! A balanced Feistel network over the smallest even number of bits that holds n, walked until it
//! lands inside [0, n) (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). The walk
//! is short: the domain is less than four times n. Rounds mix with the finaliser of SplitMix64
//! (Steele, Lea, Flood 2014). The functions are frozen: golden vectors in the tests pin them,
//! because saved states depend on them.

/// Feistel rounds: four make a pseudorandom permutation in theory (Luby and Rackoff 1988); small
/// domains have few bits per round, so twice as many are used.
const ROUNDS: u64 = 8;

/// 2^64 divided by the golden ratio: SplitMix64's increment, which decorrelates small inputs.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A key derived from (seed, epoch, …) by absorbing one number after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Makes the key of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(GOLDEN)))
    }

    /// Derives the key for `part` from this key.
    #[must_use]
    pub fn with(self, part: u64) -> Self {
        Self(mix(self.0 ^ mix(part.wrapping_add(GOLDEN))))
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the place of item `i` of `n`: a bijection of [0, n).
///
/// # Panics
/// If `i` is not below `n`: the caller uses an invalid position.
#[must_use]
pub fn permute(key: Key, i: u64, n: u64) -> u64 {
    assert!(i < n, "item {i} of {n} does not exist");
    if n == 1 {
        return 0;
    }
    let bits = u64::BITS - (n - 1).leading_zeros();
    let half = bits.div_ceil(2);
    let mask = (1_u64 << half) - 1;
    let mut x = i;
    loop {
        let (mut left, mut right) = (x >> half, x & mask);
        for round in 0..ROUNDS {
            let f = mix(key.0.wrapping_add(round.wrapping_mul(GOLDEN)) ^ mix(right)) & mask;
            (left, right) = (right, left ^ f);
        }
        x = (left << half) | right;
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn permutation_matches_its_golden_vectors() {
        let key = Key::new(42).with(3).with(7);
        let small: Vec<u64> = (0..10).map(|i| permute(key, i, 10)).collect();
        assert_eq!(small, GOLDEN_TEN);
        let large: Vec<u64> = (0..4).map(|i| permute(key, i, 1_000_000_007)).collect();
        assert_eq!(large, GOLDEN_BILLION);
    }

    const GOLDEN_TEN: [u64; 10] = [9, 7, 8, 6, 4, 2, 3, 1, 5, 0];
    const GOLDEN_BILLION: [u64; 4] = [97_871_723, 487_129_470, 456_124_616, 479_729_437];

    proptest! {
        #[test]
        fn permutation_is_a_bijection(seed: u64, n in 1_u64..2000) {
            let key = Key::new(seed);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let to = permute(key, i, n) as usize;
                prop_assert!(!std::mem::replace(&mut seen[to], true));
            }
        }
    }

    #[test]
    fn places_are_uniform() {
        // 64 items, 6400 keys: each (item, place) pair is expected 100 times. A χ² over one item's
        // 64 places has 63 degrees of freedom; 120 is beyond its 99.99th percentile (115).
        let n = 64;
        for item in [0, 1, 31, 63] {
            let mut hits = vec![0_f64; n as usize];
            for seed in 0..6400 {
                hits[permute(Key::new(seed), item, n) as usize] += 1.0;
            }
            let chi: f64 = hits.iter().map(|have| (have - 100.0).powi(2) / 100.0).sum();
            assert!(chi < 120.0, "item {item}: χ² {chi}");
        }
    }

    #[test]
    fn neighbours_are_separated() {
        // In a random permutation of n items about two adjacent pairs stay adjacent.
        let key = Key::new(5);
        let n = 10_000;
        let kept =
            (1..n).filter(|&i| permute(key, i, n).abs_diff(permute(key, i - 1, n)) == 1).count();
        assert!(kept <= 12, "{kept} adjacent pairs stayed adjacent");
    }
}
