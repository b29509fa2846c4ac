//! S3-FIFO: newcomers wait in a small queue; those used there move to the main one, the others go
//! and leave a ghost, and whoever comes back while its ghost is there enters the main queue at once
//! (Yang et al., SOSP 2023). Sizes are counted in bytes, because shards differ.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::list::List;
use super::{Newcomer, Policy, Slot};

/// The share of bytes on probation at which newcomers go before proven ones: the paper's tenth.
const PROBATION: u64 = 10;

/// Uses counted: more tell nothing in a queue that is passed again and again.
const MOST_USES: u8 = 3;

/// Ghosts, at most: 16 bytes and their links each, some 6 MB.
const GHOSTS: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

#[derive(Debug, Clone, Copy, Default)]
struct Resident {
    identity: u64,
    bytes: u64,
    uses: u8,
    proven: bool,
}

pub(super) struct S3Fifo {
    probation: List,
    proven: List,
    residents: Vec<Resident>,
    probation_bytes: u64,
    proven_bytes: u64,
    proven_shards: usize,
    /// Shards evicted from probation, the oldest first out; never looked up to renew.
    ghosts: LruCache<u64, ()>,
}

impl Default for S3Fifo {
    fn default() -> Self {
        Self {
            probation: List::default(),
            proven: List::default(),
            residents: Vec::new(),
            probation_bytes: 0,
            proven_bytes: 0,
            proven_shards: 0,
            ghosts: LruCache::new(GHOSTS),
        }
    }
}

impl S3Fifo {
    fn enter(&mut self, slot: Slot) {
        let resident = &self.residents[slot as usize];
        if resident.proven {
            self.proven.push(slot);
            self.proven_bytes += resident.bytes;
            self.proven_shards += 1;
        } else {
            self.probation.push(slot);
            self.probation_bytes += resident.bytes;
        }
    }

    fn exit(&mut self, slot: Slot) {
        let resident = &self.residents[slot as usize];
        if resident.proven {
            self.proven.remove(slot);
            self.proven_bytes -= resident.bytes;
            self.proven_shards -= 1;
        } else {
            self.probation.remove(slot);
            self.probation_bytes -= resident.bytes;
        }
    }

    /// Goes through probation: who was used more than once is proven, the first other one goes.
    fn of_probation(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = self.probation.oldest();
        while let Some(slot) = at {
            at = self.probation.newer(slot);
            if self.residents[slot as usize].uses > 1 {
                self.exit(slot);
                let resident = &mut self.residents[slot as usize];
                (resident.uses, resident.proven) = (0, true);
                self.enter(slot);
            } else if may_go(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Goes through the proven: each use bought one more round, so no shard is passed more often
    /// than it has uses, and once more to be taken.
    fn of_proven(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut refused = 0;
        for _ in 0..=self.proven_shards * usize::from(MOST_USES) {
            let slot = self.proven.oldest()?;
            if !may_go(slot) {
                // It keeps its uses: only who could have gone pays for staying.
                refused += 1;
                if refused > self.proven_shards {
                    return None;
                }
                self.proven.remove(slot);
                self.proven.push(slot);
                continue;
            }
            refused = 0;
            let uses = self.residents[slot as usize].uses;
            if uses == 0 {
                return Some(slot);
            }
            self.residents[slot as usize].uses = uses - 1;
            self.proven.remove(slot);
            self.proven.push(slot);
        }
        None
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, newcomer: Newcomer) {
        let Newcomer { slot, identity, bytes } = newcomer;
        let at = slot as usize;
        if at >= self.residents.len() {
            self.residents.resize(at + 1, Resident::default());
        }
        let proven = self.ghosts.pop(&identity).is_some();
        self.residents[at] = Resident { identity, bytes, uses: 0, proven };
        self.enter(slot);
    }

    fn hit(&mut self, slot: Slot) {
        let uses = &mut self.residents[slot as usize].uses;
        *uses = (*uses + 1).min(MOST_USES);
    }

    fn resize(&mut self, slot: Slot, bytes: u64) {
        let resident = &mut self.residents[slot as usize];
        let before = std::mem::replace(&mut resident.bytes, bytes);
        let queue = match resident.proven {
            true => &mut self.proven_bytes,
            false => &mut self.probation_bytes,
        };
        *queue = *queue - before + bytes;
    }

    fn remove(&mut self, slot: Slot, evicted: bool) {
        self.exit(slot);
        let resident = self.residents[slot as usize];
        if evicted && !resident.proven {
            self.ghosts.put(resident.identity, ());
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let all = self.probation_bytes + self.proven_bytes;
        if self.probation_bytes > all / PROBATION
            && let Some(slot) = self.of_probation(may_go)
        {
            return Some(slot);
        }
        self.of_proven(may_go).or_else(|| self.of_probation(may_go)).or_else(|| {
            // Only shards with uses are left that may go.
            self.proven.oldest_that(may_go)
        })
    }
}
