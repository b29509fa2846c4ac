//! Locks by place: of two files for one object, one is uploaded at a time, and no checkpoint is
//! published while files of its names are written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Locks of the places in use.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<String, Weak<RwLock<()>>>>);

impl Places {
    /// Waits until nobody else holds the place.
    pub(crate) async fn lock(&self, place: &str) -> OwnedRwLockWriteGuard<()> {
        self.of(place).write_owned().await
    }

    /// Waits until nobody holds the place alone, and shares it with others who do this.
    pub(crate) async fn share(&self, place: &str) -> OwnedRwLockReadGuard<()> {
        self.of(place).read_owned().await
    }

    fn of(&self, place: &str) -> Arc<RwLock<()>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = places.get(place).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        places.insert(place.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn place_is_held_by_one_at_a_time() {
        let places = Places::default();
        let held = places.lock("a").await;
        assert!(places.lock("a").now_or_never().is_none());
        drop(places.lock("b").now_or_never().unwrap());
        drop(held);
        let shared = [places.share("a").now_or_never().unwrap(), places.share("a").await];
        assert!(places.lock("a").now_or_never().is_none());
        drop(shared);
        drop(places.lock("a").now_or_never().unwrap());
        places.of("c");
        assert_eq!(places.0.lock().unwrap().len(), 1, "unused places are forgotten");
    }
}
