//! Requests and answers of the admin API that are no part of the status.

use std::collections::BTreeMap;

use forebay_error::{Error, Problem, Result};
use forebay_peers::PlacementReport;
use forebay_store::{Checked, CopyState, Explained, Mode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A shard's story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The shard, without what may be secret in its URL.
    pub url: String,
    /// Reasons for its place.
    pub why: Vec<String>,
    /// Next steps.
    pub next: Vec<String>,
    /// Nodes of the cluster that may have it; none outside of a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementReport>,
    /// Facts behind the answer.
    #[serde(flatten)]
    pub facts: Explained,
}

/// Shards to pin.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// URLs, as jobs name them; patterns of URLs (`*`, `**`, `[ab]`); names of data sets.
    pub pins: Vec<String>,
}

/// A pin.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Pin {
    /// The pinned pattern or URL.
    pub pin: String,
    /// Number of its shards that are cached.
    pub shards: u64,
}

/// Configuration to apply.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// The file; none: the daemon's own, as it is now.
    #[serde(default)]
    pub file: Option<ConfigurationFile>,
}

/// A configuration file as somebody sends it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigurationFile {
    /// Name of the file: the extension selects the language.
    pub name: String,
    /// Content of the file.
    pub text: String,
}

/// Shards that are here.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Shards {
    /// URLs, as jobs name them; patterns of URLs (`*`, `**`, `[ab]`); names of data sets.
    pub urls: Vec<String>,
}

/// Result for a shard's copies.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Evicted {
    /// The shard.
    pub url: String,
    /// Number of copies, on all tiers.
    pub copies: u64,
    /// True if they were dropped.
    pub dropped: bool,
}

/// Shards to be compared with their origins.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Shards, by their URLs.
    #[schema(min_items = 1)]
    pub urls: Vec<String>,
    /// Endpoint and credentials to reach them, by the names of their environment variables.
    #[serde(default)]
    pub origin: BTreeMap<String, String>,
    /// Every byte of whole copies is read, and compared with what the origin sent.
    #[serde(default)]
    pub verify: bool,
}

/// A shard, here and at its origin.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// The shard.
    pub url: String,
    /// State of the copy; if the origin gives no version, every copy is `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyState>,
    /// The tier that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Bytes of the origin's object, if it told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bytes that are here of one that is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here_bytes: Option<u64>,
    /// Excerpts of it: members that jobs wanted, without the rest.
    #[serde(default)]
    pub excerpts: u64,
    /// The origin's error, if it gave no version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Problem>,
    /// Difference between the copy and the origin's bytes, if the check found one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flaw: Option<Problem>,
    /// Reason the shard cannot be requested at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

impl Finding {
    /// The result of a comparison.
    #[must_use]
    pub fn of(url: String, found: Result<Checked>) -> Self {
        let problem = |error: &Error| Problem::from(error);
        match found {
            Ok(Checked { copy, tier, bytes, here, excerpts, origin, flaw }) => Self {
                url,
                copy: Some(copy),
                tier,
                bytes,
                here_bytes: here,
                excerpts,
                origin: origin.as_ref().map(problem),
                flaw: flaw.as_ref().map(problem),
                error: None,
            },
            Err(error) => Self {
                url,
                copy: None,
                tier: None,
                bytes: None,
                here_bytes: None,
                excerpts: 0,
                origin: None,
                flaw: None,
                error: Some(problem(&error)),
            },
        }
    }
}

/// Shards to fetch.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// Shards, by their URLs.
    #[schema(min_items = 1, max_items = 1_000_000)]
    pub urls: Vec<String>,
    /// Endpoint and credentials to reach them, by the names of their environment variables.
    #[serde(default)]
    pub origin: BTreeMap<String, String>,
    /// Bytes a second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_u64)]
    pub bandwidth: Option<u64>,
}

/// Place of the node in its cluster from now on.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterUse {
    /// True if it leaves in good order; false if it comes back.
    pub draining: bool,
}

/// The use of a tier from now on.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierUse {
    /// Mode.
    pub mode: Mode,
}
