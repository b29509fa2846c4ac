//! Shards of different lengths, and assertions about their samples.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_testkit::shard;

use crate::origin::Origin;
use crate::trainer::Epoch;

/// Sizes of the images: large enough for few samples a shard, small enough that neighbours share
/// sectors.
pub const SIZES: Range<usize> = 20_000..60_000;

/// A bucket of shards `0.tar`, `1.tar`, … that differ in length.
pub struct Catalog {
    /// Origin of the shards.
    pub origin: Origin,
    /// Samples of each shard.
    pub samples: Vec<u64>,
    /// Bytes of each shard.
    pub lengths: Vec<u64>,
}

impl Catalog {
    /// A bucket with a shard of each of these sample counts, some 40 KB a sample.
    #[must_use]
    pub fn new(samples: &[u64]) -> Self {
        let origin = Origin::new();
        let put = |(n, samples): (u64, &u64)| {
            let tar = shard(*samples, n, &SIZES);
            origin.put(&format!("{n}.tar"), &tar);
            tar.len() as u64
        };
        let lengths = (0..).zip(samples).map(put).collect();
        Self { origin, samples: samples.to_vec(), lengths }
    }

    /// Bytes of all shards.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lengths.iter().sum()
    }

    /// URLs of the shards.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        Origin::urls(self.samples.len() as u64)
    }

    /// Asserts that an epoch over these shards, in this order, has each sample once with the right
    /// bytes.
    ///
    /// # Panics
    /// If it has not.
    pub fn assert_whole(&self, epoch: &Epoch, shards: &[u32]) {
        assert_eq!(epoch.errors, []);
        let mut got: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for sample in &epoch.samples {
            got.entry(sample.shard).or_default().push(&sample.key);
        }
        for (at, shard) in (0..).zip(shards) {
            let mut keys = got.remove(&at).unwrap_or_default();
            keys.sort_unstable();
            let all = (0..self.samples[*shard as usize]).map(|i| format!("{i:06}"));
            assert!(keys.into_iter().eq(all), "samples of shard {shard} are missing, or doubled");
        }
        assert!(got.is_empty());
        self.assert_right(epoch, shards);
    }

    /// Asserts that the samples received by a job over these shards equal the origin's.
    ///
    /// # Panics
    /// If one differs.
    pub fn assert_right(&self, epoch: &Epoch, shards: &[u32]) {
        for sample in &epoch.samples {
            let seed = u64::from(shards[sample.shard as usize]);
            let i = sample.key.parse().expect("keys are numbers");
            let right = BTreeMap::from([
                ("jpg".to_owned(), forebay_testkit::image(seed, i, &SIZES)),
                ("cls".to_owned(), forebay_testkit::label(seed, i).into_bytes()),
            ]);
            assert!(sample.fields == right, "sample {seed}/{i} differs from its origin's");
        }
    }

    /// Asserts that a file of the cache equals the origin's object of this URL.
    ///
    /// # Panics
    /// If it differs.
    pub fn assert_file(&self, data: &std::path::Path, url: &str) {
        let name = url.rsplit('/').next().expect("a URL has a name");
        let bytes = std::fs::read(data).expect("a whole shard can be read");
        assert!(bytes == self.origin.bytes(name), "{url} differs on the disk");
    }
}
