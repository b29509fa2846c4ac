//! Reports on a node's part in its cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::certificate::CertificateReport;
use crate::message::Presence;
use crate::peer::PeerReport;

/// A node's part in its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterReport {
    /// Name of the node.
    pub node: String,
    /// Name of the cluster.
    pub group: String,
    /// Address and port of its peer server.
    pub address: String,
    /// All members, by name, as this node sees them.
    pub members: Vec<PeerReport>,
    /// Source of the member list, without secrets.
    pub source: String,
    /// True if the source gave no good list last: the list in force is an older one.
    pub is_frozen: bool,
    /// Reason why the list is frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list_error: Option<String>,
    /// True if it leaves the cluster in good order.
    #[serde(default)]
    pub is_draining: bool,
    /// True if it is in the member list.
    #[serde(default)]
    pub is_listed: bool,
    /// Digest of its rules for data sets and sources.
    #[serde(default)]
    pub rules: String,
    /// Certificate of this node.
    #[serde(default)]
    pub certificate: CertificateReport,
    /// Counts of its peer server.
    pub serving: ServingReport,
}

/// Counts of a peer server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServingReport {
    /// Requests answered, errors included.
    pub requests: u64,
    /// Bytes of shards sent.
    pub sent_bytes: u64,
    /// Requests that found the serving memory full.
    pub busy: u64,
    /// Requests that failed on a shard.
    pub failed: u64,
    /// Connections and requests rejected for their certificate.
    pub rejected: u64,
}

/// Departure of a node from its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainReport {
    /// Name of the node.
    pub node: String,
    /// True if it leaves in good order.
    pub is_draining: bool,
    /// True if the member list, as this node sees it, has it.
    pub is_listed: bool,
    /// Change that an administrator has to make; none if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// Nodes that may have a shard, and what each has of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacementReport {
    /// Node that owns it; none if nodes do not share it.
    pub owner: Option<HolderReport>,
    /// Node that is asked for its copy if the owner has none.
    pub next: Option<HolderReport>,
}

/// A node that may have a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HolderReport {
    /// Name of the node.
    pub node: String,
    /// True if it is this node.
    pub is_self: bool,
    /// Part of the shard that it has; none if it did not say.
    pub presence: Option<Presence>,
    /// Reason why it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Placement of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerReport {
    /// URL of the shard.
    pub url: String,
    /// Node that owns it; none if nodes do not share it.
    pub owner: Option<String>,
    /// Node that is asked for its copy if the owner has none, and that owns the shard if the owner
    /// leaves.
    pub next: Option<String>,
    /// True if this node owns it.
    pub is_self: bool,
}
