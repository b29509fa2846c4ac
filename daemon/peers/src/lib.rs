//! Peer server of a node: it serves shards to the other nodes of its cluster.
//!
//! | part | holds |
//! |---|---|
//! | [`PeerServer`] | the port, its connections, and the names of those who may ask |
//! | `answer` | replies about shards, and their bytes |
//! | [`Replicas`] | second copies of checkpoints' files |
//! | `pace` | an end to connections that take nothing |

mod answer;
mod pace;
mod replicas;
mod server;

pub use replicas::Replicas;
pub use server::{Guard, PeerServer, PeerServerConfig};
