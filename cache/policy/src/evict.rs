//! Eviction order, and admission of new shards.
//!
//! A policy only orders. Constraints on eviction (pins, leases, a data set's minimum) apply
//! outside, under every policy alike: the policy is asked for its first evictable shard. A shard
//! that is not admitted still passes through the tier, because batches are read from there: it is
//! *passing*, and is evicted before any other as soon as no reader needs it.
//! | policy | evicted first | admitted |
//! |---|---|---|
//! | `clairvoyant` | shards no job announced, as `sieve`; then the one needed last | all |
//! | `lru` | the least recently used | all |
//! | `lfu` | the least frequently used, with dynamic aging | all |
//! | `sieve` | the oldest not used since the hand passed | all |
//! | `s3fifo` | the oldest used at most once | all, new ones on probation |
//! | `static` | the newest | shards that came while there was room |
//! | `none` | the oldest | none |

mod fixed;
mod lfu;
mod list;
mod lru;
mod none;
mod s3fifo;
mod sieve;

pub use list::List;

use std::str::FromStr;

use forebay_error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A shard's place in its tier's table: small, dense, used again after the shard is gone.
pub type Slot = u32;

/// A shard that comes in.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer {
    /// Slot in the table.
    pub slot: Slot,
    /// Identity across evictions: a hash of its name.
    pub identity: u64,
    /// Bytes on the tier.
    pub bytes: u64,
}

/// Eviction order of a tier's shards.
///
/// Every shard inserted is removed exactly once; the tables are the caller's to keep straight.
pub trait Policy: Send {
    /// Returns true if an incoming shard is admitted, false if it only passes. `room`: it fits
    /// without an eviction.
    fn admits(&self, room: bool) -> bool {
        let _ = room;
        true
    }

    /// A shard that stays has come in.
    fn insert(&mut self, newcomer: Newcomer);

    /// A shard was used.
    fn hit(&mut self, slot: Slot);

    /// A shard takes `bytes` now: one that is unpacked on its way in grows.
    fn resize(&mut self, slot: Slot, bytes: u64) {
        let _ = (slot, bytes);
    }

    /// A shard is gone. `evicted`: this policy named it; otherwise somebody removed it.
    fn remove(&mut self, slot: Slot, evicted: bool);

    /// The most dispensable shard for which `may_go` holds. It stays inserted until removed.
    ///
    /// `may_go` fails for few shards (leased, just being opened): the search passes over them one
    /// by one.
    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot>;
}

/// A policy's name, as in a configuration file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Evict {
    /// Evicts the shard needed last, as far as jobs announced; see [`crate::Foresight`].
    #[default]
    Clairvoyant,
    /// Least recently used.
    Lru,
    /// Least frequently used, with dynamic aging.
    Lfu,
    /// One queue, one hand, one bit.
    Sieve,
    /// Three queues: newcomers, proven ones, ghosts.
    S3fifo,
    /// First come, first kept.
    Static,
    /// Nothing is kept longer than it is needed.
    None,
}

impl Evict {
    /// Every policy, as a benchmark or a simulation goes through them.
    pub const ALL: [Self; 7] = [
        Self::Clairvoyant,
        Self::Static,
        Self::Sieve,
        Self::S3fifo,
        Self::Lfu,
        Self::Lru,
        Self::None,
    ];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clairvoyant => "clairvoyant",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Sieve => "sieve",
            Self::S3fifo => "s3fifo",
            Self::Static => "static",
            Self::None => "none",
        }
    }

    /// An empty policy of this name; of `clairvoyant`, the one for what no job told of.
    #[must_use]
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::<lru::Lru>::default(),
            Self::Lfu => Box::<lfu::Lfu>::default(),
            Self::Clairvoyant | Self::Sieve => Box::<sieve::Sieve>::default(),
            Self::S3fifo => Box::<s3fifo::S3Fifo>::default(),
            Self::Static => Box::<fixed::Static>::default(),
            Self::None => Box::<none::None>::default(),
        }
    }
}

impl FromStr for Evict {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|evict| evict.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|evict| evict.name()).collect();
            Error::new(ErrorKind::Invalid, "unknown eviction policy")
                .at("policy", name)
                .advise(format!("use one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests;
