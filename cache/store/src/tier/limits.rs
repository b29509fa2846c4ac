//! Limits of a tier, which may change at run time.
//!
//! Invalid limits are rejected before anything changes. Bytes above a lower limit leave like
//! bytes above a watermark.

use std::path::Path;
use std::sync::PoisonError;

use forebay_error::{Error, ErrorKind, Result};

use super::new_charges::NewCharges;
use super::{Class, KeepFree, Medium, Tier, TierConfig, Watermarks};
use crate::device::ANSWER_TIMEOUT;
use crate::files::Extent;
use crate::shares::Provenance;
use crate::sizes::PART_BYTES;

/// Limits of a tier.
#[derive(Debug, Clone, PartialEq)]
pub struct TierLimits {
    /// Name of the tier.
    pub name: String,
    /// Maximum bytes. In memory they cannot change.
    pub capacity: u64,
    /// Part of its file system left to others; ignored in memory.
    pub keep_free: KeepFree,
    /// If given, shards are evicted ahead of need.
    pub watermarks: Option<Watermarks>,
}

/// Limits that a tier can keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size {
    pub(crate) capacity: u64,
    pub(super) keep_free: KeepFree,
    /// Bytes of its disk left to others.
    pub(super) left_free: u64,
    /// Bytes it may use now.
    limit: u64,
    pub(super) watermarks: Option<Watermarks>,
}

impl TierConfig {
    pub(crate) fn limits(&self) -> TierLimits {
        TierLimits {
            name: self.name.clone(),
            capacity: self.capacity,
            keep_free: self.disk.as_ref().map_or(KeepFree::Bytes(0), |disk| disk.keep_free),
            watermarks: self.watermarks,
        }
    }
}

impl TierLimits {
    /// Rejects invalid limits.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |key: &str, what: &str| {
            Err(Error::new(ErrorKind::Invalid, what).at("tier", &self.name).at("key", key))
        };
        if self.capacity == 0 {
            return refuse("capacity", "a tier needs a capacity above 0");
        }
        if let Some(marks) = self.watermarks
            && !(0.0 < marks.low && marks.low <= marks.high && marks.high <= 1.0)
        {
            return refuse("watermarks", "watermarks must be 0 < low <= high <= 1");
        }
        if let KeepFree::Share(share) = self.keep_free
            && !(0.0..1.0).contains(&share)
        {
            return refuse("keep_free", "keep_free must be at least 0 and below 1");
        }
        Ok(())
    }

    /// Limits on this disk.
    ///
    /// # Errors
    /// `Invalid` if they exceed it.
    pub(super) fn on(&self, directory: &Path, extent: Extent, used: u64) -> Result<Size> {
        let left_free = self.keep_free.of(extent.total);
        if self.capacity.saturating_add(left_free) > extent.total {
            return Err(Error::new(ErrorKind::Invalid, "the tier is larger than its disk")
                .at("tier", &self.name)
                .at("directory", directory.display())
                .at("capacity", self.capacity)
                .at("keep_free", left_free)
                .at("disk", extent.total)
                .advise("lower the tier's capacity: sidecars need room beside it"));
        }
        let ours = used.saturating_add(extent.available).saturating_sub(left_free);
        Ok(Size {
            capacity: self.capacity,
            keep_free: self.keep_free,
            left_free,
            limit: ours.min(self.capacity),
            watermarks: self.watermarks,
        })
    }

    /// Limits of a tier whose disk is not there: nothing may be added.
    pub(super) fn absent(&self) -> Size {
        let (capacity, keep_free) = (self.capacity, self.keep_free);
        Size { capacity, keep_free, left_free: 0, limit: 0, watermarks: self.watermarks }
    }

    /// Limits of a tier without a disk.
    pub(super) fn in_memory(&self, capacity: u64) -> Size {
        let keep_free = KeepFree::Bytes(0);
        Size { capacity, keep_free, left_free: 0, limit: capacity, watermarks: self.watermarks }
    }
}

impl Tier {
    pub(super) fn size(&self) -> Size {
        *self.0.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks limits against this tier.
    ///
    /// # Errors
    /// `Invalid` if they are invalid, exceed its disk, or change a memory tier; the error of its
    /// disk.
    pub(crate) async fn size_by(&self, limits: &TierLimits) -> Result<Size> {
        limits.check()?;
        let now = self.size();
        let capacity = match self.0.medium {
            Medium::Disk(_) => limits.capacity,
            Medium::Memory(_) => whole_parts(limits.capacity),
        };
        let keeps = match self.0.medium {
            Medium::Disk(_) => limits.keep_free,
            Medium::Memory(_) => now.keep_free,
        };
        if (capacity, keeps) == (now.capacity, now.keep_free) {
            // A disk that does not answer must not block other changes.
            return Ok(Size { watermarks: limits.watermarks, ..now });
        }
        let Some(disk) = self.disk().filter(|_| self.class() != Class::Memory) else {
            let what = "the capacity of a memory tier cannot change while the daemon runs";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("tier", self.name())
                .at("capacity", now.capacity)
                .advise("keep its capacity, or restart the daemon"));
        };
        let extent = self.on_disk(|directory| directory.extent());
        let late = |_| {
            let what = "the disk does not answer: its size is unknown";
            Error::new(ErrorKind::Unavailable, what).at("tier", self.name())
        };
        let extent = tokio::time::timeout(ANSWER_TIMEOUT, extent).await.map_err(late)??;
        limits.on(disk.path(), extent, self.0.budget.used())
    }

    /// Provenance of every present shard.
    pub(crate) fn provenances(&self) -> Vec<Provenance> {
        self.table().provenances()
    }

    /// Sets limits that hold for a disk that was not there.
    pub(super) fn set_limits(&self, size: Size) {
        *self.0.size.lock().unwrap_or_else(PoisonError::into_inner) = size;
        self.0.budget.set_capacity(size.capacity, size.limit);
    }

    fn resize(&self, size: Size) {
        let before = self.size();
        *self.0.size.lock().unwrap_or_else(PoisonError::into_inner) = size;
        if (before.capacity, before.keep_free) != (size.capacity, size.keep_free) {
            self.0.budget.set_capacity(size.capacity, size.limit);
        }
    }
}

/// Bytes of memory that shards can use: blocks of one size leave no holes.
pub(super) fn whole_parts(bytes: u64) -> u64 {
    bytes / PART_BYTES as u64 * PART_BYTES as u64
}

/// Puts other rules in force, while the tables of all tiers are locked.
pub(crate) fn reconfigure(tiers: &[Tier], judged: &NewCharges, sizes: &[Size]) {
    let Some(first) = tiers.first() else { return };
    {
        let mut tables: Vec<_> = tiers.iter().map(Tier::table).collect();
        first.0.shared.shares.replace(judged.shares.clone());
        for (tier, (table, size)) in tiers.iter().zip(tables.iter_mut().zip(sizes)) {
            tier.resize(*size);
            table.recharge(judged);
            table.find_unwanted(tier.name());
        }
    }
    // Tasks that wait for room look again.
    tiers.iter().for_each(|tier| tier.0.budget.wake());
}

#[cfg(test)]
mod tests;
