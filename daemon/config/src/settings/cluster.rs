//! Settings of a node in a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

pub use forebay_peers::PeerTlsFiles;

/// Settings by which a node shares its cache with the other nodes of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Name in the node's certificate.
    pub name: String,
    /// Address that its peer server listens on.
    pub listen: SocketAddr,
    /// Host and port by which other nodes reach that server.
    pub address: String,
    /// Certificate, key and authority of connections between nodes.
    pub tls: PeerTlsFiles,
    /// Name of the cluster: nodes of other groups are no members.
    pub group: String,
    /// Slots of the node in placement; none: by the capacity of its tiers.
    pub weight: Option<u16>,
    /// Bytes per second that the node sends to others, at most.
    pub serve: Option<u64>,
    /// Source of the member list.
    pub members: MembersSource,
}

/// Source of a member list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersSource {
    /// A file with a line for each member.
    File(PathBuf),
    /// A DNS name whose addresses are the members.
    Dns {
        /// The name.
        name: String,
        /// Port of each member's peer server.
        port: u16,
    },
    /// The Redis or Valkey server where members register, as in `redis://host:6379`.
    Redis(String),
}
