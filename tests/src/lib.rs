//! What tests across crates have in common: a real origin, a real node, a real trainer.
//!
//! Its rule: nothing here knows how a layer works inside. Tests see what an operator or a trainer
//! sees: batches, errors, the status document, and the files on the disk.

mod household;
mod node;
mod origin;
mod patience;
mod rest;
mod scripted;
mod trainer;

pub use household::{Household, Trainer, alive, descriptors, kill};
pub use node::{Daemon, FRAMES, daemon_status, status};
pub use origin::Origin;
pub use patience::{PATIENCE, eventually};
pub use rest::{flip, resting};
pub use scripted::{Peer, Scripted};
pub use trainer::{Epoch, Part, Received, epoch, job, loader, next, play};
