//! Locks by place: of two files for one object, one is uploaded at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Locks of the places in use.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Places {
    /// Waits until nobody else holds the place.
    pub(crate) async fn lock(&self, place: &str) -> OwnedMutexGuard<()> {
        self.of(place).lock_owned().await
    }

    fn of(&self, place: &str) -> Arc<tokio::sync::Mutex<()>> {
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
        drop(places.lock("a").now_or_never().unwrap());
        places.of("c");
        assert_eq!(places.0.lock().unwrap().len(), 1, "unused places are forgotten");
    }
}
