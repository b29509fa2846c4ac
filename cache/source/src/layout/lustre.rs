//! Lustre's layouts as its client tells them: the value of the extended attribute `lustre.lov`.
//!
//! Every offset, length and count in there is compared with what is there before it is
//! used. A file system's client is trusted no further than any other source of bytes.
//!
//! ```text
//!   lov_user_md_v1        magic 0BD10BD0 · pattern · object id (16) · stripe size · count (2) · (2) · objects
//!   lov_user_md_v3        the same with magic 0BD30BD0 and the name of a pool (16) before the objects
//!   lov_user_ost_data_v1  object id (16) · generation (4) · index of the OST (4)
//!   lov_comp_md_v1        magic 0BD60BD0 · size · (4) · flags (2) · entries (2) · mirrors (2) · (14) · entries
//!   lov_comp_md_entry_v1  id (4) · flags (4) · from (8) · to (8) · offset (4) · size (4) · (16)
//! ```
//! Little-endian: Lustre's client tells them in the machine's order, and Forebay runs on no other.

use forebay_error::{Error, ErrorKind, Result};

use super::Striped;

/// One layout for the whole file …
const V1: u32 = 0x0BD1_0BD0;

/// … in a pool of OSTs …
const V3: u32 = 0x0BD3_0BD0;

/// … or one for each stretch of it (PFL), perhaps several of each (FLR).
const COMPOSITE: u32 = 0x0BD6_0BD0;

/// The sizes of the structures above.
const V1_BYTES: usize = 32;
const POOL_BYTES: usize = 16;
const OBJECT_BYTES: usize = 24;
const COMPOSITE_BYTES: usize = 32;
const ENTRY_BYTES: usize = 48;

/// Lustre's smallest stripe, of which all are multiples.
const STRIPE_MIN: u64 = 64 << 10;

/// Patterns: stripes over OSTs, also several on one; or all of it on the metadata server. Higher
/// bits say what else is the matter: a file that was moved to an archive has no objects.
const RAID0: u32 = 0x1;
const ON_MDT: u32 = 0x100;
const OVERSTRIPED: u32 = 0x200;
const RELEASED: u32 = 0x8000_0000;

/// Flags of an entry: another mirror has newer bytes; this one is preferred for reading; it has
/// objects.
const STALE: u32 = 0x1;
const PREFERRED: u32 = 0x2;
const HAS_OBJECTS: u32 = 0x10;

/// The bits of an entry's id that name its mirror.
const MIRROR: u32 = 0x7FFF_0000;

/// The striped stretches of a file, in order.
pub(super) fn parse(value: &[u8]) -> Result<Vec<Striped>> {
    let stretches = match u32_at(value, 0)? {
        V1 | V3 => vec![plain(value, 0, u64::MAX)?],
        COMPOSITE => composite(value)?,
        magic => {
            return Err(wrong("of an unknown kind").at("magic", format!("{magic:#x}")));
        }
    };
    Ok(stretches.into_iter().flatten().collect())
}

/// The stretch from `start` to `end`, as one structure says; `None` where it has no stripes.
fn plain(value: &[u8], start: u64, end: u64) -> Result<Option<Striped>> {
    let objects_at = match u32_at(value, 0)? {
        V1 => V1_BYTES,
        V3 => V1_BYTES + POOL_BYTES,
        magic => {
            return Err(wrong("with an unknown part").at("magic", format!("{magic:#x}")));
        }
    };
    let pattern = u32_at(value, 4)?;
    let stripe = u64::from(u32_at(value, 24)?);
    let count = usize::from(u16_at(value, 28)?);
    if stripe == 0 || !stripe.is_multiple_of(STRIPE_MIN) {
        return Err(wrong("with an impossible stripe size").at("stripe", stripe));
    }
    if pattern & RELEASED != 0 {
        return Ok(None);
    }
    if pattern & ON_MDT != 0 {
        return Ok(Some(Striped { start, end, stripe, servers: Vec::new() }));
    }
    if pattern & (RAID0 | OVERSTRIPED) == 0 {
        return Err(wrong("of an unknown pattern").at("pattern", format!("{pattern:#x}")));
    }
    let objects = value.get(objects_at..).unwrap_or_default();
    if count == 0 || objects.len() / OBJECT_BYTES < count {
        let error = wrong("with a wrong number of objects");
        return Err(error.at("says", count).at("has", objects.len() / OBJECT_BYTES));
    }
    let objects = objects.chunks_exact(OBJECT_BYTES).take(count);
    let servers = objects.map(|object| u32_at(object, OBJECT_BYTES - 4)).collect::<Result<_>>()?;
    Ok(Some(Striped { start, end, stripe, servers }))
}

/// The stretches of the mirror that is best read from; a file that is not mirrored is one.
fn composite(value: &[u8]) -> Result<Vec<Option<Striped>>> {
    let (size, count) = (u32_at(value, 4)?, usize::from(u16_at(value, 14)?));
    let value = usize::try_from(size).ok().and_then(|size| value.get(..size));
    let value =
        value.ok_or_else(|| wrong("that is shorter than its header says").at("says", size))?;
    let entries = value.get(COMPOSITE_BYTES..).unwrap_or_default();
    if entries.len() / ENTRY_BYTES < count {
        return Err(wrong("with too few entries").at("says", count));
    }
    let (mut found, mut taken) = (Vec::with_capacity(count), 0);
    for entry in entries.chunks_exact(ENTRY_BYTES).take(count) {
        let (id, flags) = (u32_at(entry, 0)?, u32_at(entry, 4)?);
        let (start, end) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
        if start >= end {
            return Err(wrong("with a stretch that ends before it begins").at("start", start));
        }
        if flags & STALE != 0 || flags & HAS_OBJECTS == 0 {
            // Other bytes than the file's, or none yet.
            continue;
        }
        let (offset, size) = (u32_at(entry, 24)?, u32_at(entry, 28)?);
        let part = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
        let part = part.and_then(|(offset, size)| value.get(offset..offset.checked_add(size)?));
        let part =
            part.ok_or_else(|| wrong("with an entry beyond its end").at("offset", offset))?;
        // Many entries for one part would make much of little.
        taken += part.len();
        if taken > value.len() {
            return Err(wrong("with parts that overlap").at("offset", offset));
        }
        found.push((id & MIRROR, flags & PREFERRED != 0, plain(part, start, end)?));
    }
    let preferred = found.iter().find(|(_, is_preferred, _)| *is_preferred).or(found.first());
    let Some(mirror) = preferred.map(|(mirror, ..)| *mirror) else { return Ok(Vec::new()) };
    found.retain(|(of, ..)| *of == mirror);
    let mut stretches: Vec<_> = found.into_iter().filter_map(|(.., striped)| striped).collect();
    stretches.sort_by_key(|striped| striped.start);
    if stretches.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(wrong("with stretches that overlap"));
    }
    Ok(stretches.into_iter().map(Some).collect())
}

fn u16_at(value: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(*bytes_at(value, at)?))
}

fn u32_at(value: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(*bytes_at(value, at)?))
}

fn u64_at(value: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(*bytes_at(value, at)?))
}

fn bytes_at<const N: usize>(value: &[u8], at: usize) -> Result<&[u8; N]> {
    let rest = value.get(at..).and_then(<[u8]>::first_chunk);
    rest.ok_or_else(|| wrong("that is truncated").at("bytes", value.len()))
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("a layout {what}"))
}
