//! Shards with predictable contents.
//!
//! The contents of a sample follow from its number and the seed, so a test knows them without
//! keeping a copy.

use std::ops::Range;

use ::tar::{Builder, Header};

/// The bytes of `field` of sample `i`: `len` pseudo-random bytes that depend on all arguments.
#[must_use]
pub fn field(seed: u64, i: u64, field: &str, len: usize) -> Vec<u8> {
    let mut state = mix(seed ^ mix(i));
    for byte in field.bytes() {
        state = mix(state ^ u64::from(byte));
    }
    let words = std::iter::from_fn(|| {
        state = state.wrapping_add(GOLDEN);
        Some(mix(state))
    });
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// The bytes of sample `i`'s `jpg` field (not a JPEG) in [`shard`] with the same arguments.
#[must_use]
pub fn image(seed: u64, i: u64, sizes: &Range<usize>) -> Vec<u8> {
    let spread = (sizes.end - sizes.start).max(1) as u64;
    let len = sizes.start + (mix(seed ^ mix(!i)) % spread) as usize;
    field(seed, i, "jpg", len)
}

/// The text of sample `i`'s `cls` field in [`shard`].
#[must_use]
pub fn label(seed: u64, i: u64) -> String {
    /// Number of classes, as in ImageNet.
    const CLASSES: u64 = 1000;
    (mix(seed.wrapping_add(i)) % CLASSES).to_string()
}

/// A WebDataset tar of `samples` samples, keys `000000`, `000001`, …: each a `jpg` field with a
/// length in `sizes` ([`image`]) and a `cls` field ([`label`]).
#[must_use]
pub fn shard(samples: u64, seed: u64, sizes: &Range<usize>) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for i in 0..samples {
        append(&mut builder, &format!("{i:06}.jpg"), &image(seed, i, sizes));
        append(&mut builder, &format!("{i:06}.cls"), label(seed, i).as_bytes());
    }
    builder.into_inner().expect("writing to memory cannot fail")
}

fn append(builder: &mut Builder<Vec<u8>>, name: &str, data: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, data).expect("writing to memory cannot fail");
}

/// 2^64 divided by the golden ratio: SplitMix64's step.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's output function: every input bit reaches every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn shard_holds_the_requested_samples() {
        let sizes = 100..2000;
        let tar = shard(5, 7, &sizes);
        assert_eq!(tar, shard(5, 7, &sizes));
        assert_ne!(tar, shard(5, 8, &sizes));
        let mut archive = ::tar::Archive::new(&tar[..]);
        let mut seen = 0;
        for (n, entry) in archive.entries().unwrap().enumerate() {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            let i = n as u64 / 2;
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            if n % 2 == 0 {
                assert_eq!((name, &data), (format!("{i:06}.jpg"), &image(7, i, &sizes)));
                assert!(sizes.contains(&data.len()));
            } else {
                assert_eq!((name, data), (format!("{i:06}.cls"), label(7, i).into_bytes()));
            }
            seen += 1;
        }
        assert_eq!(seen, 10);
        assert_eq!(image(7, 0, &(64..64)).len(), 64);
    }
}
