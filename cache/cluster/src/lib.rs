//! Members of a cluster, and the placement of shards on them. Pure logic: nothing here opens,
//! connects or waits.
//!
//! Placement is a function of the member list alone. Nodes with the same list agree on the owner
//! of every shard without a message, and a change of the list moves only the shards of the members
//! that came or left.

mod key;
mod member;
mod ring;

pub use key::ObjectKey;
pub use member::{MAX_MEMBERS, MAX_SLOTS, Member, parse_members, slots_of};
pub use ring::Ring;
