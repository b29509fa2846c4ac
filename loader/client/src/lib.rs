//! The trainer's side: connect or start a daemon, map the slab, decode ahead, reconnect.
//!
//! ```text
//!   Loader       batches of tensors, a few ahead                 loader.rs
//!     ├─ Decoder     record → tensor, on threads of its own      forebay-decode
//!     ├─ waits       each wait booked to its causes              waits.rs
//!     ├─ Trace       what each batch went through, as a file     trace.rs
//!     └─ Session     raw batches in the slab, across restarts    session.rs
//!          ├─ Lease      a slot, until the last user is done     lease.rs
//!          ├─ Placing    places of samples, for the daemon  placing.rs
//!          └─ Connection one socket to one daemon                connection.rs
//!               ├─ Documents manifests and member indexes       documents.rs, remote.rs
//!               ├─ Files     what it opens for the daemon      files.rs
//!               ├─ Commands  what it runs for the daemon        commands.rs
//!               ├─ CheckpointWriter, CheckpointReader          checkpoint.rs
//!               ├─ Admin     what admins ask, over HTTP         admin.rs
//!               ├─ Address   which daemon; starts one if none    address.rs, launch.rs
//!               └─ Deadline  until when a wait may last           deadline.rs
//! ```
//! The job outlives the daemon. Whatever happens to the other side, a call here returns
//! a batch, or an error that says what to do, within its time limit.

mod address;
mod admin;
mod cache;
mod checkpoint;
mod commands;
mod connection;
mod counting;
mod deadline;
mod documents;
mod files;
mod launch;
mod lease;
mod leased;
mod loader;
mod members;
mod outage;
mod placing;
mod remote;
mod session;
mod trace;
mod waits;

pub use forebay_wire::checkpoint::{Level, Published, Removed};
pub use forebay_wire::message::RunEnd;

pub use address::{Address, NODE_SOCKET};
pub use admin::Admin;
pub use cache::{CACHE, CAPACITY, cache_directory, capacity, existing, wanted_capacity};
pub use checkpoint::{
    CheckpointPlace, CheckpointReader, CheckpointWriter, Commit, FileId, Push, SaveConfig, Watch,
};
pub use connection::{Connection, unexpected};
pub use deadline::{Deadline, TIMEOUT_MAX};
pub use documents::{Documents, Locator, is_same_object};
pub use launch::{Capacity, LOG_MAX, Launch, RuntimeDirectory};
pub use lease::Lease;
pub use loader::{Batch, Extent, Loader, LoaderConfig, Next, Rows, Stats, Tally, View};
pub use members::ShardPart;
pub use placing::{Parts, Passing};
pub use remote::RemoteReads;
pub use session::{RawBatch, SessionConfig};
pub use trace::{EVENTS_MAX, TRACE, Trace, Traced};
pub use waits::{WaitReport, Waits};
