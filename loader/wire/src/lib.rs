//! Interface between daemon and trainer: messages, frames with descriptors, and the mapped slab.
//!
//! Control travels over a Unix stream socket as length-prefixed [`frame`]s of [`message`]s; payload
//! never does. Payload is in a [`slab`]: a sealed memfd that the daemon writes and the trainer maps
//! read-only. The daemon acts on nothing it reads from the slab, and the trainer checks every range
//! in a message before it touches the map. The kernel identifies a client ([`credentials`]).

mod batch;
mod binning;
pub mod checkpoint;
pub mod clock;
pub mod commands;
pub mod credentials;
pub mod files;
pub mod fork;
pub mod frame;
mod joined;
pub mod leases;
mod left_out;
pub mod lent;
mod members;
pub mod message;
mod metered;
mod mixture;
mod progress;
mod request_kind;
mod shared_map;
pub mod slab;
pub mod socket;

/// Protocol of both sides; each side also accepts its predecessor.
///
/// Raised with every change of [`message`] that an older release could not read.
pub const PROTOCOL: u32 = 4;

/// Oldest protocol that this build accepts.
pub const PROTOCOL_OLDEST: u32 = 3;

/// First protocol in which a run starts at any position or at chosen samples, jobs mix data sets or
/// share a queue, checkpoints are saved, samples are chosen, shards are joined, and both sides
/// report bad samples and decoders ([`message::Request::Play`], [`message::Request::Pick`],
/// [`message::Request::Mix`], [`message::Request::Share`], [`message::Request::Checkpoint`],
/// [`message::Request::Bad`], [`message::Request::Progress`], [`message::Request::Choose`],
/// [`message::Request::Members`], [`message::Request::Join`], [`message::Request::Bin`],
/// [`message::Request::Borrow`], [`message::Request::PlayAhead`], [`message::Reply::Placed`]).
pub const PROTOCOL_POSITIONS: u32 = 4;
