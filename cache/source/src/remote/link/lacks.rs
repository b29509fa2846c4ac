//! Memory of what a server was found unable to do.
//!
//! Each finding concerns one object or one folder, and is forgotten after [`REMEMBERED`]: a server
//! may be mended, and one odd answer says nothing of other objects.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

/// Time that a finding holds: an epoch does not ask in vain at each shard, and a server that was
/// mended is asked as usual soon after.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);

/// Findings that are kept: of more objects at once than jobs of a node read.
const FINDINGS: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not zero");

/// Ability that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::remote) enum Lack {
    /// An object has no byte ranges.
    Ranges,
    /// An object's HEAD is refused, or says no length.
    Head,
    /// A folder's objects cannot be asked for by `If-Match`.
    Conditions,
}

/// Findings, by what they concern.
#[derive(Debug)]
pub(in crate::remote) struct Lacks(Mutex<LruCache<(Lack, u64), Instant>>);

impl Default for Lacks {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(FINDINGS)))
    }
}

impl Lacks {
    /// Returns true if `of`, an object or a folder, was found to lack this of late.
    pub(in crate::remote) fn know(&self, lack: Lack, of: &str) -> bool {
        self.know_at(lack, of, Instant::now())
    }

    fn know_at(&self, lack: Lack, of: &str, now: Instant) -> bool {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = found.get(&(lack, super::hash(of)));
        since.is_some_and(|since| now.saturating_duration_since(*since) < REMEMBERED)
    }

    /// Notes a finding; true if it is new.
    pub(in crate::remote) fn find(&self, lack: Lack, of: &str) -> bool {
        let now = Instant::now();
        let was_known = self.know_at(lack, of, now);
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.put((lack, super::hash(of)), now);
        !was_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_concern_one_object_and_are_forgotten() {
        let lacks = Lacks::default();
        assert!(lacks.find(Lack::Ranges, "a") && !lacks.find(Lack::Ranges, "a"));
        assert!(lacks.know(Lack::Ranges, "a"));
        assert!(!lacks.know(Lack::Ranges, "b") && !lacks.know(Lack::Head, "a"));
        assert!(!lacks.know_at(Lack::Ranges, "a", Instant::now() + REMEMBERED));
    }
}
