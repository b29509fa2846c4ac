//! A trainer that takes batches as fast as they come and remembers what it got.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_client::{Address, Batch, Loader, LoaderConfig, Next, Rows, SessionConfig};
use forebay_error::{Error, Result};
use forebay_wire::message::{Begin, Open, Order, Shuffle, Tail};
use serde::{Deserialize, Serialize};

use crate::origin::Origin;

/// Far above what a batch takes; a loader that waits longer has failed its test.
const TIMEOUT: Duration = Duration::from_secs(50);

/// One sample, out of the slab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Its batch.
    pub batch: u64,
    /// Its place in the epoch.
    pub position: u64,
    /// Its shard's place in the list.
    pub shard: u32,
    /// Its key.
    pub key: String,
    /// False for padding.
    pub valid: bool,
    /// Its fields.
    pub fields: BTreeMap<String, Vec<u8>>,
}

/// What an epoch gave.
#[derive(Debug, Default)]
pub struct Epoch {
    /// Every sample, in order.
    pub samples: Vec<Received>,
    /// Samples and shards that could not be used, in order.
    pub errors: Vec<Error>,
    /// Batches and samples of the epoch as announced at its end.
    pub announced: (u64, u64),
}

impl Epoch {
    /// Shard and key of every sample, in order.
    #[must_use]
    pub fn sequence(&self) -> Vec<(u32, String)> {
        self.samples.iter().map(|sample| (sample.shard, sample.key.clone())).collect()
    }

    /// Asserts that every sample is there once with the bytes that the origin's shards were made
    /// of: `shards` shards of `samples` samples, shard `n` from seed `n`, image sizes in `sizes`.
    ///
    /// # Panics
    /// If anything differs.
    pub fn assert_whole(&self, shards: u32, samples: u64, sizes: &std::ops::Range<usize>) {
        assert_eq!(self.errors, []);
        let mut keys = self.sequence();
        keys.sort();
        let all = (0..shards).flat_map(|n| (0..samples).map(move |i| (n, format!("{i:06}"))));
        assert_eq!(keys, all.collect::<Vec<_>>());
        self.assert_bytes(sizes);
    }

    /// Asserts that the samples at hand have the right bytes.
    ///
    /// # Panics
    /// If one has not.
    pub fn assert_bytes(&self, sizes: &std::ops::Range<usize>) {
        for sample in &self.samples {
            let (seed, i) =
                (u64::from(sample.shard), sample.key.parse().expect("keys are numbers"));
            let right = BTreeMap::from([
                ("jpg".to_owned(), forebay_testkit::image(seed, i, sizes)),
                ("cls".to_owned(), forebay_testkit::label(seed, i).into_bytes()),
            ]);
            assert!(sample.fields == right, "sample {}/{} differs", sample.shard, sample.key);
        }
    }
}

/// A job over `urls` in list order, eight samples a batch, one rank.
#[must_use]
pub fn job(origin: &Origin, urls: Vec<String>) -> Open {
    job_with(origin.environment(), urls)
}

/// The same for a job whose environment says this about its store.
#[must_use]
pub fn job_with(environment: BTreeMap<String, String>, urls: Vec<String>) -> Open {
    Open {
        job: "test".to_owned(),
        urls,
        counts: None,
        origin: environment,
        order: Order {
            shuffle: Shuffle::None,
            window: 1,
            seed: 7,
            lanes: None,
            batch_size: 8,
            rank: 0,
            world_size: 1,
            tail: Tail::Even,
            epoch_samples: None,
        },
        fields: None,
        prefetch: 4,
        patience_ms: 0,
    }
}

/// What a loader of every field's bytes is made of, that runs no commands.
#[must_use]
pub fn config(address: Address, open: Open) -> LoaderConfig {
    let session = SessionConfig {
        address,
        open,
        streams: Vec::new(),
        extent: None,
        timeout: TIMEOUT,
        allow_pipe: false,
    };
    LoaderConfig { session, fields: None, views: Vec::new(), threads: 1, device: None, trace: None }
}

/// A loader of every field's bytes, which runs the commands that its job names.
///
/// # Errors
/// Why the job could not be opened.
pub fn loader(address: Address, open: Open) -> Result<Loader> {
    let mut config = config(address, open);
    config.session.allow_pipe = true;
    Loader::open(config)
}

/// Takes the next batch, or the end.
///
/// # Errors
/// What ended the run.
pub fn next(loader: &Loader) -> Result<Next> {
    loader.next::<Error>(|| Ok(()))
}

/// Plays `number` from batch `from` to its end.
///
/// # Errors
/// What ended it early.
pub fn play(loader: &Loader, number: u64, from: u64) -> Result<Epoch> {
    loader.start(Begin::at(number, from))?;
    rest(loader)
}

/// What is left of the epoch that is played.
///
/// # Errors
/// What ended it early.
pub fn rest(loader: &Loader) -> Result<Epoch> {
    let mut epoch = Epoch::default();
    loop {
        match next(loader)? {
            Next::Batch(batch) => epoch.take(&batch),
            Next::End { batches, samples, errors } => {
                epoch.errors.extend(errors);
                epoch.announced = (batches, samples);
                return Ok(epoch);
            }
        }
    }
}

/// Opens a job and plays its first epoch.
///
/// # Errors
/// What ended it early.
pub fn epoch(address: Address, open: Open) -> Result<Epoch> {
    play(&loader(address, open)?, 0, 0)
}

impl Epoch {
    /// Copies a batch out of the slab.
    pub fn take(&mut self, batch: &Batch) {
        self.errors.extend(batch.errors.iter().cloned());
        for row in 0..batch.keys.len() {
            let field = |(name, rows): &(String, Rows)| match rows {
                Rows::Bytes(views) | Rows::Views(views) => {
                    views[row].as_ref().map(|view| (name.clone(), view.to_vec()))
                }
                Rows::Decoded { .. } => None,
            };
            self.samples.push(Received {
                batch: batch.index,
                position: batch.positions[row],
                shard: batch.urls[row],
                key: batch.keys[row].clone(),
                valid: batch.valid[row],
                fields: batch.columns.iter().filter_map(field).collect(),
            });
        }
    }
}

/// What a trainer in a process of its own plays, and what it must find.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    /// The job.
    pub open: Open,
    /// Shards of the job, made from the seeds 0, 1, ….
    pub shards: u32,
    /// Samples of each.
    pub samples: u64,
    /// Sizes of their images.
    pub sizes: std::ops::Range<usize>,
}
