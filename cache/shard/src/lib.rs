//! Format of shards: tar index, WebDataset key rules, sidecar, manifest, URL lists and packing.
//! Pure logic: nothing here opens a connection or waits on anything but the reader it was
//! given, and no byte that came from a disk, a network or a user can make it panic or allocate
//! without a bound.
//! | part | answers |
//! |---|---|
//! | [`key`] | which sample and which field is this member? |
//! | [`Indexer`] | where in the tar does each field of each sample lie, and what is its checksum? |
//! | [`Sidecar`] | how is that knowledge stored beside a cached shard? |
//! | [`Manifest`] | which shards make up a data set, and how many samples has each? |
//! | [`Excerpt`] | which bytes are a tar of some members of a shard? |
//! | [`members`] | where are key, members and columns of each sample of a data set? |
//! | [`expand`](fn@expand) | which shards does one line of text mean? |
//! | [`pack`] | how are shards written? |

pub mod checksum;
mod excerpt;
mod expand;
mod index;
mod index_part;
mod indexer;
pub mod key;
mod manifest;
pub mod members;
pub mod pack;
mod packed;
mod sidecar;

pub use excerpt::{Excerpt, ExcerptRequest};
pub use expand::{Commands, List, MAX_URLS, expand, expand_list};
pub use index::{Index, Member, Sample, wanted_members};
pub use index_part::IndexPart;
pub use indexer::{Indexer, Plain, ShardBytes, UNKNOWN};
pub use manifest::{Listed, Manifest, ManifestShard};
pub use packed::{Catalogue, Packed};
pub use sidecar::{BLOCK_BYTES, HEAD_BYTES, Head, Origin, Partial, Sidecar};
