//! Progress of scrubs.

use forebay_error::Problem;
use forebay_store::Scrub;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far a scrub has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrubbing {
    /// Its number on this daemon.
    pub number: u64,
    /// What it counted.
    #[serde(flatten)]
    pub scrub: Scrub,
    /// Why it ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}
