//! Boundaries between shards.
//!
//! No shard is longer than the limit, and any two differ by the largest sample at most, in the
//! limited quantity: samples or bytes. So no shard is left over with next to nothing in it.

use forebay_error::{Error, ErrorKind};

use super::archive::END_BYTES;

/// Largest size of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most samples in one shard.
    pub samples: u64,
    /// The most bytes of one shard's file.
    pub bytes: u64,
}

impl Default for Limits {
    /// WebDataset's own: 100 000 samples or 3 GB, whichever comes first.
    fn default() -> Self {
        Self { samples: 100_000, bytes: 3_000_000_000 }
    }
}

/// The ends of shards: how many samples lie before each.
type Ends = Vec<usize>;

/// Divides samples of these lengths (above zero, in bytes of tar), in their order, into as few
/// shards as `limits` allow if they are to be balanced.
///
/// # Errors
/// The position of a sample that fits into no shard, and the limit that would do.
pub(super) fn divide(lengths: &[u64], limits: Limits) -> Result<Ends, (usize, u64)> {
    let room = limits.bytes.saturating_sub(END_BYTES);
    if let Some(at) = lengths.iter().position(|&bytes| bytes > room) {
        return Err((at, lengths[at].saturating_add(END_BYTES)));
    }
    let sums: Vec<u64> = std::iter::once(0)
        .chain(lengths.iter().scan(0u64, |sum, &bytes| {
            *sum = sum.saturating_add(bytes);
            Some(*sum)
        }))
        .collect();
    let count = lengths.len() as u64;
    let (by_count, by_bytes) = (count.div_ceil(limits.samples), sums[lengths.len()].div_ceil(room));
    let counts: Vec<u64>;
    let weights = match by_count >= by_bytes {
        true => {
            counts = (0..=count).collect();
            &counts
        }
        false => &sums,
    };
    let fits = |ends: &Ends| {
        let mut start = 0;
        ends.iter().all(|&end| {
            let (samples, bytes) = ((end - start) as u64, sums[end] - sums[start]);
            start = end;
            samples <= limits.samples && bytes <= room
        })
    };
    let even = |shards: usize| Some(even(weights, shards)).filter(fits);
    Ok(fewest(by_count.max(by_bytes) as usize, lengths.len(), even))
}

/// The ends for the fewest shards, from `least` to `most`, for which `even` finds some. It is asked
/// at growing distances, and then between the last two: large samples may need many more than the
/// least.
fn fewest(least: usize, most: usize, even: impl Fn(usize) -> Option<Ends>) -> Ends {
    let (mut without, mut step) = (least, 1);
    let mut found = match even(least) {
        Some(ends) => return ends,
        None => loop {
            let shards = (least + step).min(most);
            match even(shards) {
                Some(ends) => break ends,
                // Each sample by itself fits.
                None if shards == most => break (1..=most).collect(),
                None => (without, step) = (shards, step * 2),
            }
        },
    };
    while found.len() - without > 1 {
        let between = without + (found.len() - without) / 2;
        match even(between) {
            Some(ends) => found = ends,
            None => without = between,
        }
    }
    found
}

/// Cuts a sequence into `parts` whose weights differ by the largest element at most. `sums` are the
/// weights of all beginnings, from the empty one; they grow with every element, of which there are
/// as many as parts or more.
///
/// With `least` the largest weight that all parts can have at least, and `spread` the largest
/// element, parts of `least ..= least + spread` exist: where the i-th cut may lie is a range
/// without holes, because each element is `spread` at most; and the end is in the last range,
/// because with one more than `least` even the earliest cuts come too late. Among those cuts the
/// ones nearest to equal parts are taken, from the last to the first.
fn even(sums: &[u64], parts: usize) -> Ends {
    let elements = sums.len() - 1;
    let total = sums[elements];
    let spread = sums.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let (mut least, mut above) = (0, total / parts as u64 + 1);
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        match earliest(sums, parts, middle) {
            Some(_) => least = middle,
            None => above = middle,
        }
    }
    let first = earliest(sums, parts, least).unwrap_or_default();
    let most = least.saturating_add(spread);
    let mut last = Vec::with_capacity(parts);
    let mut at = 0;
    for _ in 0..parts {
        let reach = sums[at].saturating_add(most);
        at = sums.partition_point(|&sum| sum <= reach) - 1;
        last.push(at);
    }
    let mut ends = vec![elements; parts];
    for part in (1..parts).rev() {
        let next = sums[ends[part]];
        let from = sums.partition_point(|&sum| sum < next.saturating_sub(most));
        let to = sums.partition_point(|&sum| sum <= next.saturating_sub(least)) - 1;
        let ideal = (u128::from(total) * part as u128).div_ceil(parts as u128) as u64;
        let above = sums.partition_point(|&sum| sum < ideal);
        let below = above.saturating_sub(1);
        let near = if sums[above] - ideal < ideal - sums[below] { above } else { below };
        ends[part - 1] = near.max(from.max(first[part - 1])).min(to.min(last[part - 1]));
    }
    ends
}

/// The earliest cuts after which each part weighs `least` or more, if there are so many.
fn earliest(sums: &[u64], parts: usize, least: u64) -> Option<Ends> {
    let mut ends = Vec::with_capacity(parts);
    let mut at = 0;
    for _ in 0..parts {
        let reach = sums[at].checked_add(least)?;
        at = sums.partition_point(|&sum| sum < reach);
        if at == sums.len() {
            return None;
        }
        ends.push(at);
    }
    Some(ends)
}

/// Returns the error for a sample that [`divide`] found too large.
pub(super) fn too_large(needed: u64, limits: Limits) -> Error {
    Error::new(ErrorKind::Invalid, "a sample is larger than a shard may be")
        .at("limit", limits.bytes)
        .advise(format!("a sample is never split: give --bytes {needed} or more"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The fewest shards that any division keeps the limits with.
    fn greedy(lengths: &[u64], limits: Limits) -> usize {
        let (mut shards, mut samples, mut bytes) = (0, u64::MAX, 0);
        for length in lengths {
            if samples >= limits.samples || bytes + length > limits.bytes - END_BYTES {
                (shards, samples, bytes) = (shards + 1, 0, 0);
            }
            (samples, bytes) = (samples + 1, bytes + length);
        }
        shards
    }

    fn shards(ends: &[usize], lengths: &[u64]) -> Vec<(u64, u64)> {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let shard = |(start, &end): (usize, &usize)| {
            ((end - start) as u64, lengths[start..end].iter().sum())
        };
        starts.zip(ends).map(shard).collect()
    }

    #[test]
    fn sample_counts_of_shards_differ_by_at_most_one() {
        let ends = divide(&[1024; 11], Limits { samples: 5, bytes: u64::MAX }).unwrap();
        assert_eq!(ends, [4, 8, 11]);
        let ends = divide(&[1024; 10], Limits { samples: 5, bytes: u64::MAX }).unwrap();
        assert_eq!(ends, [5, 10]);
    }

    /// Cuts chosen one by one, each nearest to equal parts, would make the middle shard of three
    /// larger.
    #[test]
    fn cuts_are_balanced_together() {
        let ones = |count| vec![512; count];
        let lengths = [ones(17), vec![7 * 512], ones(12), vec![7 * 512], ones(17)].concat();
        let limits = Limits { samples: u64::MAX, bytes: 26 * 512 + END_BYTES };
        let ends = divide(&lengths, limits).unwrap();
        let bytes: Vec<u64> = shards(&ends, &lengths).iter().map(|shard| shard.1 / 512).collect();
        assert_eq!(bytes.len(), 3);
        assert!(bytes.iter().max().unwrap() - bytes.iter().min().unwrap() <= 7, "{bytes:?}");
    }

    #[test]
    fn sample_larger_than_a_shard_is_reported() {
        let limits = Limits { samples: 5, bytes: 3072 };
        assert_eq!(divide(&[1024, 2048, 2560], limits), Err((2, 3584)));
        assert_eq!(divide(&[2048, 2048], limits), Ok(vec![1, 2]));
    }

    #[test]
    fn large_sample_costs_at_most_two_more_shards() {
        let mut lengths = vec![1024; 100_000];
        lengths[50_000] = 1 << 20;
        let limits = Limits { samples: u64::MAX, bytes: (1 << 20) + END_BYTES };
        let ends = divide(&lengths, limits).unwrap();
        let least = greedy(&lengths, limits);
        assert!(ends.len() <= least + 2, "{} instead of {least}", ends.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn shards_keep_limits_and_differ_by_one_sample_at_most(
            blocks in prop::collection::vec(prop_oneof![4 => 1u64..5, 1 => 1u64..200], 1..120),
            samples in prop_oneof![Just(u64::MAX), 1u64..40],
            // The largest sample, of 199 blocks, and an archive's end of 2 fit.
            room in prop_oneof![Just(u64::MAX / 512), 201u64..2000],
        ) {
            let lengths: Vec<u64> = blocks.iter().map(|blocks| blocks * 512).collect();
            let limits = Limits { samples, bytes: room * 512 };
            let ends = divide(&lengths, limits).unwrap();
            let shards = shards(&ends, &lengths);
            prop_assert_eq!(shards.iter().map(|shard| shard.0).sum::<u64>(), lengths.len() as u64);
            for (count, bytes) in &shards {
                prop_assert!(*count > 0 && *count <= samples);
                prop_assert!(bytes + END_BYTES <= limits.bytes);
            }
            let spread = |of: fn(&(u64, u64)) -> u64| {
                let all = || shards.iter().map(of);
                all().max().unwrap() - all().min().unwrap()
            };
            let total: u64 = lengths.iter().sum();
            let by_count = (lengths.len() as u64).div_ceil(samples)
                >= total.div_ceil(limits.bytes - END_BYTES);
            match by_count {
                true => prop_assert!(spread(|shard| shard.0) <= 1),
                false => prop_assert!(spread(|shard| shard.1) <= *lengths.iter().max().unwrap()),
            }
            prop_assert!(shards.len() >= greedy(&lengths, limits));
        }
    }
}
