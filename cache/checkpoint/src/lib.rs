//! Checkpoints: documents of their files, publication, retention. Pure logic: nothing here opens,
//! connects or waits.
//!
//! An attempt is one save of one checkpoint: files of many ranks, and one commit. Its files become
//! visible together, with `.metadata`, which is put last. A document seals itself, so a flipped bit
//! or a truncated copy is `Corrupt` and never half a checkpoint.
//!
//! | part | decides or describes |
//! |---|---|
//! | [`FileName`], [`FileId`], [`object_url`] | the place of a file below the checkpoint's URL |
//! | [`BLOCK_BYTES`], [`part_bytes`] | units of checksums and of uploads |
//! | [`Record`] | a staged file on a tier, and the progress of its upload |
//! | [`Receipt`], [`Manifest`] | an uploaded file and a whole attempt, at the origin |
//! | [`Level`] | durability that a user can wait for |
//! | [`Publication`] | the next step of an attempt's publication |
//! | [`Keep`], [`removal`], [`replaced`], [`is_leftover`] | checkpoints and files that may be deleted |

mod blocks;
mod id;
mod keys;
mod level;
mod manifest;
mod name;
mod parts;
mod publication;
mod receipt;
mod record;
mod retention;
#[cfg(test)]
mod samples;
mod sealed;

pub use blocks::{BLOCK_BYTES, block_count};
pub use id::FileId;
pub use keys::{MANIFEST, object_url, receipt_name};
pub use level::Level;
pub use manifest::{Entry, Manifest};
pub use name::{FileName, METADATA};
pub use parts::{FILE_BYTES_MAX, PARTS_MAX, part_bytes};
pub use publication::{Publication, Step};
pub use receipt::Receipt;
pub use record::{Commit, Progress, Record};
pub use retention::{Keep, LEFTOVER, Published, is_leftover, removal, replaced};
pub use sealed::DOCUMENT_BYTES_MAX;
