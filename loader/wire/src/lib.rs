//! What daemon and trainer agree on: messages, frames with descriptors, and the mapped slab.
//!
//! Control travels over a Unix stream socket as length-prefixed [`frame`]s of [`message`]s;
//! payload never does. Payload rests in a [`slab`]: a sealed memfd that the daemon writes and the
//! trainer maps read-only. The daemon acts on nothing it reads from the slab, and the trainer
//! checks every range a message names before it touches the map. Who a peer is, the kernel says ([`peer`]).

pub mod clock;
pub mod commands;
pub mod files;
pub mod fork;
pub mod frame;
pub mod leases;
pub mod message;
pub mod peer;
pub mod slab;

/// The protocol both sides speak; a side also accepts its predecessor.
///
/// Raised with every change of [`message`] that an older peer could not read.
pub const PROTOCOL: u32 = 4;

/// The oldest protocol this build still speaks.
pub const PROTOCOL_OLDEST: u32 = 3;

/// The first protocol in which a run begins at any position or has samples of the client's choice, jobs
/// mix data sets or lease shards, and both sides tell of bad samples and decoders ([`message::Request::Play`],
/// [`message::Request::Pick`], [`message::Request::Mix`], [`message::Request::Share`],
/// [`message::Request::Bad`], [`message::Request::Decoded`], [`message::Reply::Placed`]).
pub const PROTOCOL_POSITIONS: u32 = 4;
