//! Shards kept open between uses.

use std::sync::Arc;

use lru::LruCache;

use crate::directory::ShardName;
use crate::shard::Shard;

/// Shards kept open while unused: a file descriptor each, a quarter of the usual limit of 1,024.
pub const OPEN_SHARDS: usize = 256;

/// Bytes of their indexes. A sample takes some 150 bytes, so this holds 1.7 million: all shards of
/// a large window.
const OPEN_INDEX_BYTES: usize = 256 << 20;

/// Shards kept open between uses.
pub(crate) struct OpenShards {
    by_use: LruCache<ShardName, (Arc<Shard>, usize)>,
    index_bytes: usize,
}

impl OpenShards {
    pub(crate) fn new() -> Self {
        Self { by_use: LruCache::unbounded(), index_bytes: 0 }
    }

    pub(crate) fn get(&mut self, name: &ShardName) -> Option<Arc<Shard>> {
        self.by_use.get(name).map(|(shard, _)| shard.clone())
    }

    pub(crate) fn contains(&self, name: &ShardName) -> bool {
        self.by_use.contains(name)
    }

    /// Notes a use, so that the shard is closed last.
    pub(crate) fn promote(&mut self, name: &ShardName) {
        self.by_use.promote(name);
    }

    pub(crate) fn forget_url(&mut self, url: &str) {
        let shards = self.by_use.iter().filter(|(_, (shard, _))| shard.url() == url);
        let names: Vec<_> = shards.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.forget(name));
    }

    pub(crate) fn keep(&mut self, name: ShardName, shard: &Arc<Shard>) {
        let bytes = shard.index().bytes();
        self.forget(&name);
        self.by_use.put(name, (shard.clone(), bytes));
        self.index_bytes += bytes;
        while self.by_use.len() > OPEN_SHARDS
            || (self.index_bytes > OPEN_INDEX_BYTES && self.by_use.len() > 1)
        {
            let Some((_, (_, bytes))) = self.by_use.pop_lru() else { break };
            self.index_bytes -= bytes;
        }
    }

    pub(crate) fn forget(&mut self, name: &ShardName) {
        if let Some((_, bytes)) = self.by_use.pop(name) {
            self.index_bytes -= bytes;
        }
    }
}
