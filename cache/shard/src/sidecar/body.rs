//! The sidecar's body: the index as bytes.
//!
//! A decoded index is valid: every member lies inside the shard, every field number names a field,
//! and the samples own all members in order. So a reader may use it
//! without further checks.

use forebay_error::{Error, ErrorKind, Result};

use super::reader::Reader;
use super::{BLOCK_BYTES, Head, damaged};
use crate::index::{Index, Member, Sample};

/// Bytes of one block's checksum.
const BLOCK_CRC_BYTES: usize = 4;
/// Bytes of one member: field, offset, length, checksum.
const MEMBER_BYTES: usize = 24;
/// The least a sample takes: member count, key length, reason length.
const SAMPLE_MIN_BYTES: usize = 12;
/// The least a field takes: its length.
const FIELD_MIN_BYTES: usize = 4;
/// The reason length of a sample that is good.
const GOOD: u32 = u32::MAX;

/// Appends the checksums of a shard that is `len` bytes long.
pub(super) fn encode_blocks(blocks: &[u32], len: u64, into: &mut Vec<u8>) -> Result<()> {
    if blocks.len() as u64 != len.div_ceil(BLOCK_BYTES) {
        return Err(contradiction("it does not have one checksum per block"));
    }
    into.extend(blocks.iter().flat_map(|crc| crc.to_le_bytes()));
    Ok(())
}

/// Appends the index of a shard that is `len` bytes long.
pub(super) fn encode(index: &Index, len: u64, into: &mut Vec<u8>) -> Result<()> {
    for field in &index.fields {
        put_text(field, into)?;
    }
    for member in &index.members {
        into.extend_from_slice(&member.field.to_le_bytes());
        into.extend_from_slice(&member.offset.to_le_bytes());
        into.extend_from_slice(&member.len.to_le_bytes());
        into.extend_from_slice(&member.crc32c.to_le_bytes());
    }
    let mut next = 0;
    for sample in &index.samples {
        if sample.members.start != next || sample.members.end <= next {
            return Err(contradiction("its samples do not own its members in order"));
        }
        next = sample.members.end;
        into.extend_from_slice(&(sample.members.end - sample.members.start).to_le_bytes());
        put_text(&sample.key, into)?;
        match &sample.bad {
            Some(reason) => put_text(reason, into)?,
            None => into.extend_from_slice(&GOOD.to_le_bytes()),
        }
    }
    if next as usize != index.members.len() {
        return Err(contradiction("its samples do not own all its members"));
    }
    members_fit(&index.members, index.fields.len(), len).map_err(contradiction)
}

/// Reads the checksums and the index that `head` announces.
pub(super) fn decode(body: &[u8], head: &Head) -> Result<(Vec<u32>, Index)> {
    let mut reader = Reader::new(body);
    let count = u32::try_from(head.len.div_ceil(BLOCK_BYTES))
        .map_err(|_| damaged("its shard is larger than any"))?;
    let mut blocks = room(count, BLOCK_CRC_BYTES, &reader)?;
    for _ in 0..count {
        blocks.push(reader.u32()?);
    }
    let mut fields = room(head.fields, FIELD_MIN_BYTES, &reader)?;
    for _ in 0..head.fields {
        let len = reader.u32()? as usize;
        fields.push(reader.text(len)?);
    }
    let mut members = room(head.members, MEMBER_BYTES, &reader)?;
    for _ in 0..head.members {
        let (field, offset) = (reader.u32()?, reader.u64()?);
        members.push(Member { field, offset, len: reader.u64()?, crc32c: reader.u32()? });
    }
    members_fit(&members, fields.len(), head.len).map_err(damaged)?;
    let mut samples = room(head.samples, SAMPLE_MIN_BYTES, &reader)?;
    let mut next = 0;
    for _ in 0..head.samples {
        let sample = sample(&mut reader, &members, next)?;
        next = sample.members.end;
        samples.push(sample);
    }
    if next != head.members || reader.left() != 0 {
        return Err(damaged("its parts do not add up"));
    }
    Ok((blocks, Index { fields, members, samples }))
}

fn sample(reader: &mut Reader<'_>, members: &[Member], first: u32) -> Result<Sample> {
    let count = reader.u32()?;
    let last = first.checked_add(count).filter(|_| count > 0);
    let own = last.and_then(|last| members.get(first as usize..last as usize));
    let (Some([head, ..]), Some([.., tail])) = (own, own) else {
        return Err(damaged("a sample names members that do not exist"));
    };
    let len = reader.u32()? as usize;
    let key = reader.text(len)?;
    let bad = match reader.u32()? {
        GOOD => None,
        len => Some(reader.text(len as usize)?),
    };
    let members = first..first + count;
    Ok(Sample { key, offset: head.offset, end: tail.end(), members, bad })
}

/// An empty vector with room for `count` items, if the bytes left can hold that many.
fn room<T>(count: u32, item_bytes: usize, reader: &Reader<'_>) -> Result<Vec<T>> {
    if (count as usize).checked_mul(item_bytes).is_none_or(|bytes| bytes > reader.left()) {
        return Err(damaged("it announces more items than it has bytes for"));
    }
    Ok(Vec::with_capacity(count as usize))
}

/// Returns true if every member lies behind the one before it, as in a tar without links.
pub(super) fn is_ordered(index: &Index) -> bool {
    index.members.is_sorted_by(|before, member| before.end() <= member.offset)
}

fn members_fit(members: &[Member], fields: usize, len: u64) -> Result<(), &'static str> {
    for member in members {
        if member.field as usize >= fields {
            return Err("a member has a field without a name");
        }
        if member.offset.checked_add(member.len).is_none_or(|end| end > len) {
            return Err("a member has an impossible offset");
        }
    }
    Ok(())
}

/// A count as the sidecar stores it.
pub(super) fn count(count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| contradiction("it has more than 4294967295 items"))
}

fn put_text(text: &str, into: &mut Vec<u8>) -> Result<()> {
    into.extend_from_slice(&count(text.len())?.to_le_bytes());
    into.extend_from_slice(text.as_bytes());
    Ok(())
}

fn contradiction(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("an index cannot be written: {what}"))
}
