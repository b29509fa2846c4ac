//! Fetch stalls told from prep stalls by what an epoch takes without them (after DS-Analyzer, VLDB
//! 2021).
//!
//! ```text
//! synthetic  batches are there from the beginning          computing alone
//! cached     shards are in the cache                       computing and what making tensors takes longer
//! cold       shards come from their origin                 all of it
//! ```
//! Like with like. All three play as many steps.

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;

use super::report::{EpochReport, Temperature};

/// The share of what a cold epoch delivers that has to be fetched in it: were half of it cached,
/// half of the fetch stall would be missing.
const COLD: f64 = 0.95;

/// Parts of a step's time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Differential {
    /// Seconds a step takes where batches are there from the beginning.
    pub synthetic_step_seconds: f64,
    /// Seconds a step takes where shards are in the cache.
    pub cached_step_seconds: f64,
    /// Seconds a step takes where shards come from their origin.
    pub cold_step_seconds: f64,
    /// Time per step for batches of cached shards: reading, decoding, handover.
    pub prep_stall_seconds: f64,
    /// Time per step for fetching.
    pub fetch_stall_seconds: f64,
    /// Waits of each cold step for `origin`, `peer` and `index`: the same by another way.
    pub booked_fetch_seconds: f64,
}

impl Differential {
    /// By the times of single steps; what is negative shows how large the noise is.
    ///
    /// # Errors
    /// `Invalid` unless `cold` was cold and `cached` was warm, over as many steps.
    pub(super) fn of(synthetic: f64, cached: &EpochReport, cold: &EpochReport) -> Result<Self> {
        if (cold.temperature, cached.temperature) != (Temperature::Cold, Temperature::Warm) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "separating fetch and prep stalls needs a cold and a warm epoch",
            )
            .at("first", cold.temperature)
            .at("last", cached.temperature)
            .advise(
                "start with an empty cache (FOREBAY_CACHE=$(mktemp -d), --daemon embedded) that has room for all shards",
            ));
        }
        if (cold.fetched_bytes as f64) < COLD * cold.delivered_bytes as f64 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the first epoch found some of its shards in the cache",
            )
            .at("fetched_bytes", cold.fetched_bytes)
            .at("delivered_bytes", cold.delivered_bytes)
            .advise("start with an empty cache (FOREBAY_CACHE=$(mktemp -d), --daemon embedded)"));
        }
        if cold.steps != cached.steps {
            return Err(Error::new(ErrorKind::Invalid, "the epochs differ in their steps")
                .at("cold", cold.steps)
                .at("warm", cached.steps));
        }
        let (cold_step, cached_step) = (cold.step_wall(), cached.step_wall());
        let booked =
            ["origin", "peer", "index"].map(|cause| cold.wait.of_cause(cause)).iter().sum::<f64>();
        Ok(Self {
            synthetic_step_seconds: synthetic,
            cached_step_seconds: cached_step,
            cold_step_seconds: cold_step,
            prep_stall_seconds: cached_step - synthetic,
            fetch_stall_seconds: cold_step - cached_step,
            booked_fetch_seconds: booked / cold.steps as f64,
        })
    }
}
