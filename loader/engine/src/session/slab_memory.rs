//! Memory for the slabs of a node's sessions: one limit, and the queue of those that wait for it.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Memory for the slabs of all sessions of a node: a hard limit, reserved before anything is
/// mapped.
#[derive(Debug, Clone)]
pub struct SlabMemory(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    limit: usize,
    used: Mutex<usize>,
    freed: Notify,
    /// Held by the session that is next to take memory others give back; others queue behind it.
    queue: tokio::sync::Mutex<()>,
}

/// Reserved slab memory, until dropped.
#[derive(Debug)]
pub struct Grant {
    pool: SlabMemory,
    bytes: usize,
}

impl SlabMemory {
    /// Makes a pool of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Pool {
            limit,
            used: Mutex::new(0),
            freed: Notify::new(),
            queue: tokio::sync::Mutex::default(),
        }))
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        *self.used_mut()
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Reserves `batches` times `each` bytes, or for as many fewer batches as fit, down to one.
    pub(super) fn take(&self, each: usize, batches: u32) -> Option<(Grant, u32)> {
        let mut used = self.used_mut();
        let left = self.0.limit - *used;
        let fit = u32::try_from(left / each.max(1)).unwrap_or(u32::MAX).min(batches);
        let bytes = each * fit as usize;
        *used += bytes;
        (fit > 0).then(|| (Grant { pool: self.clone(), bytes }, fit))
    }

    /// Reserves `bytes`, if they are free.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<Grant> {
        self.take(bytes, 1).map(|(grant, _)| grant)
    }

    /// Reserves `bytes`, behind all who wait already.
    ///
    /// # Errors
    /// `Full` for more than the pool has.
    pub async fn reserve_in_turn(&self, bytes: usize) -> Result<Grant> {
        if bytes > self.limit() {
            return Err(Error::new(ErrorKind::Full, "the daemon's memory is smaller than that")
                .at("bytes", bytes)
                .at("memory", self.limit())
                .advise("raise `memory`"));
        }
        Ok(self.take_in_turn(bytes, 1).await.0)
    }

    /// Waits until a session gives memory back.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.0.freed.notified()
    }

    /// True if sessions wait for memory of others.
    pub(super) fn has_queue(&self) -> bool {
        self.0.queue.try_lock().is_err()
    }

    /// Reserves memory as [`SlabMemory::take`], behind all sessions that wait already.
    pub(super) async fn take_in_turn(&self, each: usize, batches: u32) -> (Grant, u32) {
        let _turn = self.0.queue.lock().await;
        loop {
            let mut freed = pin!(self.freed());
            freed.as_mut().enable();
            if let Some(taken) = self.take(each, batches) {
                return taken;
            }
            freed.await;
        }
    }

    /// Reserves `each` bytes, if as much for every one of `batches` fits beside them.
    pub(super) fn take_beside(&self, each: usize, batches: u32) -> Option<Grant> {
        let mut used = self.used_mut();
        let all = each.checked_mul(batches as usize + 1)?;
        if self.0.limit - *used < all {
            return None;
        }
        *used += each;
        Some(Grant { pool: self.clone(), bytes: each })
    }

    /// Reserves `bytes`, if half of all memory stays free.
    pub(super) fn reserve_beside_half(&self, bytes: usize) -> Option<Grant> {
        let mut used = self.used_mut();
        let all = used.checked_add(bytes).filter(|all| *all <= self.0.limit / 2)?;
        *used = all;
        Some(Grant { pool: self.clone(), bytes })
    }

    fn used_mut(&self) -> MutexGuard<'_, usize> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grant {
    /// Bytes of it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `bytes` more, if they are free.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let mut used = self.pool.used_mut();
        let is_free = bytes <= self.pool.limit() - *used;
        if is_free {
            *used += bytes;
            self.bytes += bytes;
        }
        is_free
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        *self.pool.used_mut() -= self.bytes;
        self.pool.0.freed.notify_waiters();
    }
}
