//! Other nodes of a cluster: what they ask each other, and shards read from the node that owns
//! them.
//!
//! | part | holds |
//! |---|---|
//! | [`message`] | requests and replies between nodes |
//! | [`PeerTls`] | certificates by which nodes know each other |
//! | [`Peers`] | the client: routes, connections, failures and their counts |
//! | [`Peered`] | an origin whose shards may come from other nodes |
//!
//! One hop: a node that serves another asks no third one, except for a copy that is there. So no
//! request goes round in circles, whatever lists the nodes have.

mod client;
pub mod message;
mod peer;
mod peered;
mod report;
mod tls;

pub use client::{IndexStream, Peers, Route};
pub use peer::{Fallback, Peer, PeerReport};
pub use peered::{Hop, Peered};
pub use report::{ClusterReport, OwnerReport, ServingReport};
pub use tls::{PeerPem, PeerTls, PeerTlsFiles};
