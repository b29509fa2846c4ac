//! Progress of scrubs.

use forebay_error::Problem;
use forebay_store::Scrub;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Progress of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrubbing {
    /// Number on this daemon.
    pub number: u64,
    /// Counters.
    #[serde(flatten)]
    pub scrub: Scrub,
    /// Reason it ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}
