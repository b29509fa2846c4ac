//! Configuration of a tier.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_uring::Engine;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::encryption::Encryption;
use crate::files::{Files, LocalFiles};

/// Class of storage, fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Memory of the daemon.
    Memory,
    /// NVMe drives.
    Nvme,
    /// SATA and SAS solid-state drives.
    Ssd,
    /// Spinning disks.
    Hdd,
}

/// Shares of the capacity between which a tier is kept, ahead of need.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watermarks {
    /// Eviction stops at this share.
    pub low: f64,
    /// Eviction starts above this share.
    pub high: f64,
}

/// Configuration of a tier.
#[derive(Debug, Clone)]
pub struct TierConfig {
    /// Name, for admins.
    pub name: String,
    /// Class of the storage.
    pub class: Class,
    /// Maximum bytes.
    pub capacity: u64,
    /// If given, shards are evicted ahead of need.
    pub watermarks: Option<Watermarks>,
    /// Disk of the tier; none for memory.
    pub disk: Option<DiskConfig>,
}

/// Disk of a tier.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Directory, created if missing.
    pub path: PathBuf,
    /// Part of the file system left to others.
    pub keep_free: KeepFree,
    /// Bytes per day that may be written for shards nobody waits for.
    pub writes_per_day: Option<u64>,
    /// I/O engine of the device.
    pub engine: Engine,
    /// File system calls that change the directory.
    pub files: Arc<dyn Files>,
    /// True if the directory must not lie on the root's file system.
    pub require_mount: bool,
    /// Encryption of the files; none: they lie there as they are.
    pub encryption: Option<Encryption>,
}

impl DiskConfig {
    /// Returns a directory that may fill its disk, with nothing else asked of it.
    #[must_use]
    pub fn at(path: PathBuf, engine: Engine) -> Self {
        Self {
            path,
            keep_free: KeepFree::Bytes(0),
            writes_per_day: None,
            engine,
            files: Arc::new(LocalFiles),
            require_mount: false,
            encryption: None,
        }
    }
}

/// Part of a file system left to others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeepFree {
    /// A number of bytes.
    Bytes(u64),
    /// A share of its size, 0 to 1.
    Share(f64),
}

impl KeepFree {
    pub(super) fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => (total as f64 * share) as u64,
        }
    }
}
