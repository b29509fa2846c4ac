//! Random numbers of augmentation: a pure function of their purpose.
//!
//! No state. A sample's crop depends on (seed, epoch, stream, position, field, view) and
//! nothing else, so it is the same on every rank, thread, machine and after every resume. The
//! generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"),
//! which a GPU evaluates as cheaply as a CPU:
//!
//! * key = `splitmix64` chained over seed, epoch, stream, field and view, as two words, low first;
//! * counter = position (low, high), purpose, block number;
//! * each block gives two 64-bit numbers, low word first.
//!
//! Changing any of this changes every run's crops: raise [`DRAW_VERSION`] and the golden vectors.

/// Version of the mapping from a [`Draw`] to numbers; saved with states, so that runs are
/// comparable.
pub const DRAW_VERSION: u32 = 1;

/// Identity of a draw: one image field of one sample in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// Data set of the mixture that the sample is from.
    pub stream: u64,
    /// The sample's position in the global order.
    pub position: u64,
    /// The field, see [`field_id`].
    pub field: u64,
    /// Number of the crop of the same image, from 0.
    pub view: u64,
}

/// Purpose of a number. Each purpose has its own sequence: a new one does not change the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Position and size of the crop.
    Crop = 0,
    /// Mirroring of the image.
    Flip = 1,
}

/// Returns the field number of the output `name`: FNV-1a, so it does not depend on other fields.
#[must_use]
pub fn field_id(name: &str) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    name.bytes().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

impl Draw {
    /// Returns the numbers of `purpose`.
    #[must_use]
    pub fn numbers(&self, purpose: Purpose) -> Numbers {
        let parts = [self.seed, self.epoch, self.stream, self.field, self.view];
        let key = parts.into_iter().fold(0, |key, part| splitmix64(key ^ part));
        Numbers { key: halves(key), position: self.position, purpose, block: 0, spare: None }
    }
}

/// Endless sequence of numbers, equal for equal draw and purpose.
#[derive(Debug, Clone)]
pub struct Numbers {
    key: [u32; 2],
    position: u64,
    purpose: Purpose,
    block: u32,
    spare: Option<u64>,
}

impl Numbers {
    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let [low, high] = halves(self.position);
        let [a, b, c, d] = philox([low, high, self.purpose as u32, self.block], self.key);
        self.block = self.block.wrapping_add(1);
        self.spare = Some(join(c, d));
        join(a, b)
    }

    /// Returns the next number, uniform in [0, 1): the upper 53 bits, all that a double holds.
    pub fn unit(&mut self) -> f64 {
        const ULP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.bits() >> 11) as f64 * ULP
    }

    /// Returns the next number, uniform in [`low`, `high`).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns the next integer, uniform in 0..`end`; 0 if `end` is 0. The bias is below `end` ·
    /// 2⁻⁶⁴.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// One step of Steele, Lea and Flood's SplitMix64, used as a mixing function.
fn splitmix64(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Philox4x32 with 10 rounds: four random words from a counter and a key.
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const ROUNDS: usize = 10;
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let [low0, high0] = halves(u64::from(MULTIPLIERS[0]) * u64::from(c0));
        let [low1, high1] = halves(u64::from(MULTIPLIERS[1]) * u64::from(c2));
        [c0, c1, c2, c3] = [high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0];
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors published with the algorithm (Random123, `philox4x32 10`).
    #[test]
    fn philox_matches_the_published_vectors() {
        let zero = philox([0; 4], [0; 2]);
        assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
        );
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    const DRAW: Draw = Draw { seed: 1, epoch: 2, stream: 3, position: 4, field: 5, view: 6 };

    #[test]
    fn numbers_depend_on_each_part_of_a_draw_and_its_purpose() {
        let first = |draw: Draw, purpose| draw.numbers(purpose).bits();
        let base = first(DRAW, Purpose::Crop);
        let others = [
            Draw { seed: 9, ..DRAW },
            Draw { epoch: 9, ..DRAW },
            Draw { stream: 9, ..DRAW },
            Draw { position: 9, ..DRAW },
            Draw { field: 9, ..DRAW },
            Draw { view: 9, ..DRAW },
            Draw { seed: 2, epoch: 1, ..DRAW },
        ];
        for other in others {
            assert_ne!(first(other, Purpose::Crop), base, "{other:?}");
        }
        assert_ne!(first(DRAW, Purpose::Flip), base);
        assert_eq!(first(DRAW, Purpose::Crop), base);
    }

    #[test]
    fn numbers_stay_in_their_ranges_and_fill_them() {
        let mut numbers = DRAW.numbers(Purpose::Crop);
        let mut seen = [0_u32; 7];
        let mut sum = 0.0;
        for _ in 0..7000 {
            let unit = numbers.unit();
            assert!((0.0..1.0).contains(&unit));
            sum += unit;
            seen[numbers.below(7) as usize] += 1;
        }
        assert!((sum / 7000.0 - 0.5).abs() < 0.02, "{sum}");
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(numbers.below(0), 0);
        assert_eq!(numbers.below(1), 0);
    }
}
