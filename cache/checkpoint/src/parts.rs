//! Parts of an upload, within the limits of stores.

/// Smallest part: few requests for a usual file, and little to send again after a failure.
const PART_BYTES_MIN: u64 = 16 << 20;

/// Unit of a part's length, so that parts begin where blocks of disks do.
const PART_BYTES_STEP: u64 = 1 << 20;

/// Parts of one upload, at most, by the limits of S3. Azure takes 50,000 blocks.
pub const PARTS_MAX: u64 = 10_000;

/// Largest part of S3. All but the last must have 5 MiB, which [`PART_BYTES_MIN`] is above.
const PART_BYTES_MAX: u64 = 5 << 30;

/// Largest file that parts of S3 can hold: 48.8 TiB.
pub const FILE_BYTES_MAX: u64 = PARTS_MAX * PART_BYTES_MAX;

/// Returns the bytes of each part of a file that is `len` bytes long, the last one shorter.
#[must_use]
pub const fn part_bytes(len: u64) -> u64 {
    let least = len.div_ceil(PARTS_MAX).next_multiple_of(PART_BYTES_STEP);
    if least > PART_BYTES_MIN { least } else { PART_BYTES_MIN }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_grow_with_files_beyond_the_limit_of_parts() {
        let at_least = PARTS_MAX * PART_BYTES_MIN;
        for (len, part) in [
            (0, PART_BYTES_MIN),
            (at_least, PART_BYTES_MIN),
            (at_least + 1, PART_BYTES_MIN + PART_BYTES_STEP),
            (FILE_BYTES_MAX, PART_BYTES_MAX),
        ] {
            assert_eq!(part_bytes(len), part, "{len}");
        }
        assert!(part_bytes(u64::MAX) > PART_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn parts_of_any_file_are_within_the_limits(len in 0..=FILE_BYTES_MAX) {
            let part = part_bytes(len);
            prop_assert!((PART_BYTES_MIN..=PART_BYTES_MAX).contains(&part));
            prop_assert!(len.div_ceil(part) <= PARTS_MAX);
            prop_assert_eq!(part % PART_BYTES_STEP, 0);
        }
    }
}
