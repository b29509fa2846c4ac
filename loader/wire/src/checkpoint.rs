//! Messages about checkpoints.
//!
//! A connection carries one file at a time. Its bytes lie in memory that the daemon lends to the
//! client ([`crate::lent`]): the client fills a range and names it, or names a range to be filled.
//! Offsets and lengths are bytes.

use std::collections::BTreeMap;

use forebay_error::Error;
use serde::{Deserialize, Serialize};

/// Unit of checksums and transfers in bytes. The last block of a file may be shorter.
pub const BLOCK: u64 = 4 << 20;

/// Identity of a file, chosen by its writer at random.
pub type FileId = [u8; 16];

/// Requests about checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Begins to save a file. Answered by [`Reply::Ready`].
    Save(Save),
    /// A block is in lent memory. Answered by [`Reply::Done`] once the memory may be used again.
    Write(Block),
    /// All blocks are sent: makes the file durable. Answered by [`Reply::Staged`].
    Seal {
        /// Length of the file.
        len: u64,
        /// Publication that this file completes, if it is the checkpoint's `.metadata`.
        commit: Option<Commit>,
    },
    /// Begins to read a file of a published checkpoint. Answered by [`Reply::Found`].
    Load(Place),
    /// Asks for a block in lent memory. Answered by [`Reply::Done`].
    Read {
        /// The block; its checksum is ignored.
        block: Block,
        /// True if the block came with wrong bytes before: it is read from the store.
        is_distrusted: bool,
    },
    /// Waits until a checkpoint has reached a level on this node. Answered by [`Reply::Reached`].
    Await {
        /// The checkpoint.
        place: Place,
        /// The level.
        level: Level,
    },
    /// Asks for the newest published checkpoint below a prefix. Answered by [`Reply::Latest`].
    Latest(Place),
    /// Asks for the files of a published checkpoint. Answered by [`Reply::Published`].
    List(Place),
    /// Supplies credentials to uploads that wait for some. Answered by [`Reply::Resumed`].
    Resume(Place),
    /// Removes a checkpoint: what waits on this node, and what is published. Answered by
    /// [`Reply::Removed`].
    Remove {
        /// The checkpoint.
        place: Place,
        /// True to report only what would be removed.
        dry_run: bool,
    },
}

/// Place in a store, and the credentials to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// URL of the checkpoint, or of a prefix of checkpoints.
    pub url: String,
    /// Key of a file below it; empty for the checkpoint itself.
    pub name: String,
    /// Endpoint and credentials (an allow-list of the client's environment).
    pub origin: BTreeMap<String, String>,
}

/// A file to save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    /// Place of the file.
    pub place: Place,
    /// Identity of the file.
    pub id: FileId,
    /// Length, or a lower bound: so much room is reserved before the first byte.
    pub expected: u64,
    /// True for a file of its own, which is visible once it is uploaded.
    pub is_lone: bool,
    /// Name of the job, shown to admins.
    pub job: String,
}

/// A block of a file and its place in lent memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Number in the file, from 0.
    pub number: u64,
    /// Start in lent memory, a multiple of 4 KiB.
    pub memory: u64,
    /// Length: [`BLOCK`], except for the last one.
    pub len: u64,
    /// CRC32C of the bytes.
    pub crc: u32,
}

/// Publication of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// All other files of the checkpoint, on all nodes.
    pub files: Vec<FileId>,
    /// Step of the training run, if it is known.
    pub step: Option<u64>,
    /// True if an earlier checkpoint of this URL may be replaced.
    pub overwrite: bool,
}

/// Durability of a checkpoint. The order is that of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    /// Durable on the nodes that wrote it.
    Staged,
    /// All files of this node are in the store.
    Uploaded,
    /// Visible as a whole in the store.
    Published,
    /// On the disks of two nodes, or in the store.
    Replicated,
}

/// Answers about checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Answers [`Request::Save`]. With the first answer on a connection comes the descriptor of
    /// the lent memory.
    Ready {
        /// Length of the lent memory, of which [`Reply::Backed`] may be used.
        memory: u64,
    },
    /// Answers [`Request::Write`] and [`Request::Read`]; of a read that fails, [`Reply::Unread`].
    Done {
        /// Number of the block.
        number: u64,
    },
    /// Answers [`Request::Seal`].
    Staged,
    /// Answers [`Request::Load`]. With the first answer on a connection comes the descriptor of
    /// the lent memory.
    Found {
        /// Length of the lent memory, of which [`Reply::Backed`] may be used.
        memory: u64,
        /// Length of the file.
        len: u64,
        /// CRC32C of each block; none for a checkpoint that Forebay did not publish.
        blocks: Option<Vec<u32>>,
    },
    /// Answers [`Request::Await`].
    Reached,
    /// Answers [`Request::Latest`]; `None` if there is none.
    Latest(Option<String>),
    /// Answers [`Request::List`].
    Published(Published),
    /// Answers [`Request::Resume`].
    Resumed {
        /// Files of the checkpoint that are not in the store yet.
        files: u64,
    },
    /// Answers [`Request::Remove`].
    Removed(Removed),
    /// Tells that lent memory may be used, without a request: the daemon has backed it. The first
    /// comes right after the descriptor.
    Backed {
        /// Bytes from the start on that may be used.
        bytes: u64,
        /// True if another of these follows.
        grows: bool,
    },
    /// Answers [`Request::Read`] if the block cannot be read.
    Unread {
        /// Number of the block.
        number: u64,
        /// Reason.
        error: Error,
    },
}

/// A published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Time of the publication in milliseconds since 1970; none for a checkpoint that Forebay did
    /// not publish.
    pub at_ms: Option<u64>,
    /// Step of the training run, if it is known.
    pub step: Option<u64>,
    /// Files, `.metadata` last.
    pub files: Vec<FileFacts>,
}

/// A file of a published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Key below the checkpoint's URL.
    pub name: String,
    /// Length.
    pub len: u64,
    /// True if its checksums are known: a restore compares them.
    pub is_checked: bool,
}

/// Parts of a checkpoint that were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Files on this node's tiers.
    pub local_files: u64,
    /// Bytes of them.
    pub local_bytes: u64,
    /// Files in the store.
    pub stored_files: u64,
    /// Bytes of them.
    pub stored_bytes: u64,
}
