//! What is on the tier, who uses it, and what is kept open.
//!
//! One rule: a shard is in use while anybody holds its `Arc`, whatever the list of open shards has
//! forgotten meanwhile. So no shard is opened twice, and none is evicted under a lease.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use forebay_error::Result;
use futures::future::{BoxFuture, Shared};
use lru::LruCache;

use super::Urgency;
use super::identity::Identity;
use crate::budget::Reservation;
use crate::directory::ShardName;
use crate::shard::Shard;

/// Shards kept open though nobody reads them now: a file descriptor each, a quarter of the usual
/// limit of 1,024.
const OPEN_SHARDS: usize = 256;

/// Bytes of indexes kept with them. A sample takes some 150 bytes, so this holds 1.7 million: all
/// shards of a large window.
const OPEN_INDEX_BYTES: usize = 256 << 20;

/// Identities remembered: a URL and a version are some 200 bytes, so 13 MB at most.
const IDENTITIES: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// The outcome of opening or beginning a shard, for everybody who asked meanwhile.
pub(super) type Opened = BoxFuture<'static, Result<Arc<Shard>>>;

/// The end of a removal.
pub(super) type Gone = BoxFuture<'static, ()>;

pub(super) struct Table {
    /// Every shard on the tier, arriving ones included, by recency.
    pub(super) entries: LruCache<ShardName, Entry>,
    open: OpenShards,
    /// Shards being opened or begun, and who asked first.
    pub(super) opening: HashMap<ShardName, (Urgency, Shared<Opened>)>,
    /// Shards whose files are being removed; their names are free again afterwards.
    pub(super) leaving: HashMap<ShardName, Shared<Gone>>,
    /// Shards whose files could not be removed: their bytes are still there.
    pub(super) stuck: Vec<Entry>,
    pub(super) identities: LruCache<(String, String), Identity>,
    pub(super) claims: HashMap<ShardName, usize>,
}

/// One shard on the tier.
pub(super) struct Entry {
    /// False while its bytes arrive.
    pub(super) whole: bool,
    pub(super) reservation: Arc<Reservation>,
    /// The shard, while it arrives or is open.
    pub(super) shard: Weak<Shard>,
}

/// Shards open ahead of their next use.
struct OpenShards {
    by_use: LruCache<ShardName, (Arc<Shard>, usize)>,
    index_bytes: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: LruCache::unbounded(),
            open: OpenShards { by_use: LruCache::unbounded(), index_bytes: 0 },
            opening: HashMap::new(),
            leaving: HashMap::new(),
            stuck: Vec::new(),
            identities: LruCache::new(IDENTITIES),
            claims: HashMap::new(),
        }
    }

    /// The shard, if it is arriving or open; using it makes it recent.
    pub(super) fn in_use(&mut self, name: &ShardName) -> Option<Arc<Shard>> {
        let shard = self.entries.get(name)?.shard.upgrade()?;
        self.open.by_use.promote(name);
        Some(shard)
    }

    /// A shard was opened, or begun.
    pub(super) fn opened(&mut self, shard: &Arc<Shard>) {
        let Some(entry) = self.entries.peek_mut(shard.name()) else { return };
        entry.shard = Arc::downgrade(shard);
        if entry.whole {
            self.open.keep(shard);
        }
    }

    /// A shard's bytes are all there, as far as they will ever be.
    pub(super) fn whole(&mut self, shard: &Arc<Shard>) {
        if let Some(entry) = self.entries.peek_mut(shard.name()) {
            entry.whole = true;
            self.open.keep(shard);
        }
    }

    /// Takes a shard out; whoever reads it still may.
    pub(super) fn forget(&mut self, name: &ShardName) -> Option<Entry> {
        self.open.forget(name);
        self.entries.pop(name)
    }

    /// Whether bytes are on their way that will be evictable once they are here.
    pub(super) fn is_arriving(&self) -> bool {
        self.entries.iter().any(|(_, entry)| !entry.whole)
    }

    /// The shard that goes next, if any may go.
    pub(super) fn victim(&self, urgency: Urgency) -> Option<ShardName> {
        let idle = |name: &ShardName, entry: &Entry| {
            let kept = usize::from(self.open.by_use.contains(name));
            entry.whole && entry.shard.strong_count() <= kept && !self.opening.contains_key(name)
        };
        let idle_shards = || {
            let oldest_first = self.entries.iter().rev();
            oldest_first.filter(|(name, entry)| idle(name, entry)).map(|(name, _)| name)
        };
        let unclaimed = idle_shards().find(|name| !self.claims.contains_key(*name));
        let last_resort = || idle_shards().next().filter(|_| urgency == Urgency::Needed);
        unclaimed.or_else(last_resort).cloned()
    }
}

impl OpenShards {
    fn keep(&mut self, shard: &Arc<Shard>) {
        let bytes = shard.index().bytes();
        self.forget(shard.name());
        self.by_use.put(shard.name().clone(), (shard.clone(), bytes));
        self.index_bytes += bytes;
        while self.by_use.len() > OPEN_SHARDS
            || (self.index_bytes > OPEN_INDEX_BYTES && self.by_use.len() > 1)
        {
            let Some((_, (_, bytes))) = self.by_use.pop_lru() else { break };
            self.index_bytes -= bytes;
        }
    }

    fn forget(&mut self, name: &ShardName) {
        if let Some((_, bytes)) = self.by_use.pop(name) {
            self.index_bytes -= bytes;
        }
    }
}
