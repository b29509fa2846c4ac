//! Documents of the admin API: what a daemon reports, and what an admin sends.
//!
//! Types and their text; nothing here looks at a node.

pub mod applied;
pub mod cluster;
pub mod configuration;
pub mod costs;
pub mod datasets;
pub mod gpus;
pub mod progress;
pub mod requests;
pub mod scrubs;
pub mod status;
pub mod warm;
