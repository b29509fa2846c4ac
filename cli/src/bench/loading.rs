//! Data and loader of `forebay bench`.

use std::path::PathBuf;
use std::time::Duration;

use forebay_client::{Address, LoaderConfig, SessionConfig};
use forebay_decode::FieldSpec;
use forebay_shard::{Commands, Manifest};
use forebay_source::Options;
use forebay_wire::message::{Extent, LeftOut, Open, Order, Shuffle, Tail};
use indicatif::ProgressBar;

use super::starvation::image_fields;
use crate::{Done, Launcher, Named, Target, bar_style, shards};

/// The most decode threads: more than any node has cores.
pub(super) const THREADS_MAX: i64 = 1024;

/// Batches kept ready unless it is said how many: as many as `forebay.DataLoader` keeps.
pub(super) const PREFETCH: u32 = 4;

/// The most batches kept ready: beyond this the memory for them lacks elsewhere.
const PREFETCH_MAX: i64 = 1024;

/// Limit on every wait: five minutes cover a cold shard of a slow store.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Shards, and how they are read.
#[derive(Debug, clap::Args)]
pub(super) struct Loading {
    #[command(flatten)]
    pub(super) target: Target,
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs.
    #[arg(required = true)]
    urls: Vec<String>,
    /// Mix samples exactly over this many shards; 0 keeps the list's order.
    #[arg(long, value_name = "SHARDS", default_value_t = 0)]
    pub(super) window: u32,
    /// A manifest written by `forebay index`.
    #[arg(long, value_name = "FILE")]
    pub(super) manifest: Option<PathBuf>,
    /// Batches to keep ready.
    #[arg(long, value_name = "N", default_value_t = PREFETCH)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PREFETCH_MAX))]
    pub(super) prefetch: u32,
}

/// A job that is known but for how its samples are to be made.
pub(super) struct BenchJob {
    name: &'static str,
    address: Address,
    urls: Vec<String>,
    left_out: LeftOut,
    counts: Option<Vec<u64>>,
    extent: Option<Extent>,
    window: u32,
    prefetch: u32,
}

impl Loading {
    /// The job, once it is known which shards are meant and that there is a daemon.
    pub(super) fn job(&self, name: &'static str, launcher: &Launcher) -> Done<BenchJob> {
        self.job_of(name, self.shards(launcher)?, launcher)
    }

    /// The shards as they were named.
    pub(super) fn named(&self) -> &[String] {
        &self.urls
    }

    /// Returns the shards.
    pub(super) fn shards(&self, launcher: &Launcher) -> Done<Named> {
        shards(&self.urls, Commands::Refused, &self.target, launcher)
    }

    /// The job on these shards, once it is known that there is a daemon.
    pub(super) fn job_of(
        &self,
        name: &'static str,
        Named { urls, left_out }: Named,
        launcher: &Launcher,
    ) -> Done<BenchJob> {
        let manifest = self.manifest.as_deref().map(Manifest::read).transpose()?;
        let listed = manifest.map(|manifest| manifest.of(&urls)).transpose()?;
        let extent = listed.as_ref().and_then(|listed| listed.bytes.clone());
        // A missing daemon is reported apart from a failing job.
        drop(self.target.connect(launcher)?);
        Ok(BenchJob {
            name,
            address: self.target.address(launcher)?,
            urls,
            left_out,
            counts: listed.map(|listed| listed.counts),
            extent: extent.map(|bytes| Extent { bytes, ranks: (0, 1) }),
            window: self.window,
            prefetch: self.prefetch,
        })
    }
}

impl BenchJob {
    /// Leaves out the shards behind the first so many samples, where it is known how many each has:
    /// a daemon fetches what a job will read next, also if it never comes to that. Shards that are
    /// mixed stay together.
    pub(super) fn end_after(&mut self, samples: u64) {
        let Some(counts) = &mut self.counts else { return };
        let mut left = samples;
        let reached = |count: &&u64| {
            let is_reached = left > 0;
            left = left.saturating_sub(**count);
            is_reached
        };
        let kept = counts.iter().take_while(reached).count().max(self.window as usize);
        counts.truncate(kept);
        self.urls.truncate(kept);
        self.extent.iter_mut().for_each(|extent| extent.bytes.truncate(kept));
    }

    /// Returns the keys that the globs match besides.
    pub(super) fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// Returns the shards.
    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// A loader for each rank of the job, all on this node.
    pub(super) fn ranks(
        &self,
        world_size: u32,
        (decoded, threads, batch_size): (bool, usize, u32),
    ) -> Vec<LoaderConfig> {
        let config = |rank| {
            let mut config = self.config(decoded, threads, batch_size);
            let order = &mut config.session.open.order;
            (order.rank, order.world_size) = (rank, world_size);
            if let Some(extent) = &mut config.session.extent {
                extent.ranks = (0, world_size);
            }
            config
        };
        (0..world_size).map(config).collect()
    }

    /// A loader that delivers bytes, or decodes as ResNet-50's training does.
    pub(super) fn config(&self, decoded: bool, threads: usize, batch_size: u32) -> LoaderConfig {
        let fields = decoded.then(image_fields);
        let order = Order {
            shuffle: if self.window > 0 { Shuffle::Window } else { Shuffle::None },
            window: self.window.max(1),
            tail: Tail::Drop,
            ..Order::of_list(batch_size)
        };
        // No patience: a benchmark of a store that does not answer is worth nothing.
        let open = Open {
            counts: self.counts.clone(),
            origin: Options::from_env().into_map(),
            fields: fields.as_ref().map(|fields| FieldSpec::wanted(fields)),
            prefetch: self.prefetch,
            ..Open::new(self.name, self.urls.clone(), order)
        };
        let session = SessionConfig::new(self.address.clone(), open, TIMEOUT);
        let session = SessionConfig { extent: self.extent.clone(), ..session };
        LoaderConfig { fields, threads, ..LoaderConfig::new(session) }
    }
}

/// Decode threads unless it is said how many: one per core.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A bar for work of which nobody knows how much there is.
pub(super) fn bar() -> ProgressBar {
    ProgressBar::no_length()
        .with_style(bar_style("{spinner} {msg}  {pos} samples  {per_sec}  {elapsed}"))
}
