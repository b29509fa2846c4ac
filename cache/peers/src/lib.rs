//! Other nodes of a cluster: what they ask each other, and shards read from the node that owns
//! them.
//!
//! | part | holds |
//! |---|---|
//! | [`message`] | requests and replies between nodes |
//! | [`PeerTls`] | certificates by which nodes know each other |
//! | [`Peers`] | the client: connections, failures and their counts |
//! | [`Route`] | the nodes to ask for a shard |
//! | [`greet_members`] | clocks and rules of the members, compared with this node's |
//! | [`Peered`] | an origin whose shards may come from other nodes |
//! | [`replicas`] | second copies of checkpoints' files |
//!
//! One hop: a node that serves another asks no third one, except for a copy that is there. So no
//! request goes round in circles, whatever lists the nodes have.

mod certificate;
mod client;
mod greetings;
pub mod message;
mod peer;
mod peered;
mod ranges;
pub mod replicas;
mod report;
mod routes;
mod tls;

pub use certificate::CertificateReport;
pub use client::{Denied, IndexStream, Peers};
pub use greetings::{MAX_CLOCK_SKEW, greet_members};
pub use peer::{Fallback, Greeted, Peer, PeerReport};
pub use peered::{Hop, Peered};
pub use report::{
    ClusterReport, DrainReport, HolderReport, OwnerReport, PlacementReport, ServingReport,
};
pub use routes::{CANDIDATES, Part, Route};
pub use tls::{PeerPem, PeerTls, PeerTlsFiles};
