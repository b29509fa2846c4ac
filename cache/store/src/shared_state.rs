//! State shared by all tiers of a store.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_error::Result;
use forebay_histogram::Histogram;
use forebay_shard::Origin;
use forebay_source::Source;
use forebay_uring::Arena;
use lru::LruCache;

use crate::counters::Tally;
use crate::directory::ShardName;
use crate::fill::{Fill, Flights, Running};
use crate::forecast::Forecast;
use crate::identity::Identity;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::open_shards::OpenShards;
use crate::pins::Pins;
use crate::repeats::Repeats;
use crate::shard::Shard;
use crate::shares::{CurrentShares, Shares};
use crate::small_copies::SmallCopies;
use crate::traffic::{Traffic, Traffics};

/// Maximum number of identities: a URL and a version are some 200 bytes, so 13 MB at most.
const IDENTITIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Maximum number of unpacked lengths: a name and a number are some 150 bytes, so 10 MB at most.
const UNPACKED: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Maximum number of places remembered as silent: more than a node's jobs read from.
const SILENT: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// State shared by all tiers of a store.
pub(crate) struct SharedState {
    pub(crate) frames: Arena,
    /// Copies of small shards in idle frames.
    pub(crate) small_copies: Arc<SmallCopies>,
    /// Turns of fills.
    pub(crate) flights: Flights,
    /// Shares under the current rules.
    pub(crate) shares: Arc<CurrentShares>,
    /// Shards pinned by admins, beside those pinned by data sets' rules.
    pub(crate) pins: Pins,
    /// Announced reads of jobs.
    pub(crate) forecast: Arc<Forecast>,
    /// Wakes the task that moves shards between tiers.
    pub(crate) moves: tokio::sync::Notify,
    /// Open shards that no tier holds, read from their origin.
    pub(crate) through: Mutex<OpenShards>,
    /// Bytes of their reads.
    pub(crate) traffic: Traffics,
    /// Shards that no tier accepted.
    pub(crate) unaccepted: Repeats,
    /// Counters of these shards.
    pub(crate) past: Tally,
    /// Waits for samples that had not arrived, on all tiers.
    pub(crate) waits: Arc<Histogram>,
    /// Times of fetches, from their turn until a tier had the shard durably.
    pub(crate) fetches: Histogram,
    /// Answers of origins about objects.
    pub(crate) identities: Mutex<LruCache<(String, String), Identity>>,
    /// Stores and folders that failed to confirm the version of a known shard, with the time.
    silent: Mutex<LruCache<String, Instant>>,
    /// Unpacked lengths of compressed shards; a lower bound if unpacking failed.
    pub(crate) unpacked: Mutex<LruCache<ShardName, u64>>,
    /// Capacity of the largest tier.
    pub(crate) largest_tier: AtomicU64,
    /// True if a shard is here that the rules do not want, and could not be removed yet.
    pub(crate) leftover: AtomicBool,
    /// Costs of fetches.
    pub(crate) ledger: Arc<Ledger>,
    /// Journal of arriving shards.
    pub(crate) journal: Journal,
}

impl SharedState {
    /// `largest_tier`: capacity of the largest tier.
    pub(crate) fn new(frames: Arena, shares: Shares, pins: Pins, largest_tier: u64) -> Arc<Self> {
        let waits = Arc::<Histogram>::default();
        Arc::new(Self {
            small_copies: SmallCopies::new(frames.clone()),
            flights: Flights::new(frames.capacity()),
            frames,
            shares: CurrentShares::new(shares),
            pins,
            forecast: Arc::new(Forecast::new()),
            moves: tokio::sync::Notify::new(),
            through: Mutex::new(OpenShards::new()),
            traffic: Traffics::new(waits.clone()),
            unaccepted: Repeats::default(),
            past: Tally::default(),
            waits,
            fetches: Histogram::default(),
            identities: Mutex::new(LruCache::new(IDENTITIES)),
            silent: Mutex::new(LruCache::new(SILENT)),
            unpacked: Mutex::new(LruCache::new(UNPACKED)),
            leftover: AtomicBool::new(false),
            ledger: Arc::default(),
            journal: Journal::new(),
            largest_tier: AtomicU64::new(largest_tier),
        })
    }

    /// Keeps a shard readable from its origin after its tier lost it.
    pub(crate) fn read_through(&self, shard: &Shard) {
        let name = ShardName::new(&shard.origin());
        self.through().keep(name, &shard.read_only_through(&self.traffic_of(&shard.url)));
    }

    /// Name of the data set of a shard.
    pub(crate) fn dataset_of(&self, url: &str) -> String {
        self.shares.current().name_of(url).to_owned()
    }

    /// Counters for reads of a shard past all tiers.
    pub(crate) fn traffic_of(&self, url: &str) -> Arc<Traffic> {
        self.traffic.of(&self.dataset_of(url))
    }

    /// Waits for a turn to fetch a shard.
    pub(crate) async fn begin<'a>(&'a self, fill: &'a Fill) -> Result<Running<'a>> {
        let (source, rank) = (&*fill.request.source, &fill.request.rank);
        self.flights.begin(source, fill.url(), rank, fill.size()).await
    }

    pub(crate) fn forget_identity(&self, source: &dyn Source, url: &str) {
        self.identities().pop(&(source.scope().to_owned(), url.to_owned()));
    }

    /// Unpacked length of a compressed shard, or a lower bound of it, from its last fill.
    pub(crate) fn unpacked(&self, name: &ShardName) -> Option<u64> {
        let mut known = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).copied()
    }

    pub(crate) fn note_unpacked(&self, origin: &Origin, bytes: u64) {
        let mut known = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = known.get(&ShardName::new(origin)).map_or(bytes, |before| bytes.max(*before));
        known.put(ShardName::new(origin), bytes);
    }

    pub(crate) fn through(&self) -> MutexGuard<'_, OpenShards> {
        self.through.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn silent(&self) -> MutexGuard<'_, LruCache<String, Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn identities(&self) -> MutexGuard<'_, LruCache<(String, String), Identity>> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
