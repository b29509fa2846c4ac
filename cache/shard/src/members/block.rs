//! Blocks of members and of keys.

use std::collections::HashMap;

use forebay_error::Result;

use super::FIELDS_MAX;
use super::coding::{Bytes, put, put_packed, unzigzag, wrong, zigzag};
use crate::index::Member;

/// Tar's unit: headers are one, data begins on one.
const TAR_BLOCK: u64 = 512;

/// Most members of a sample: a directory of a tar of a terabyte has fewer.
const MEMBERS_MAX: usize = 1 << 20;

/// Bytes of a member's CRC32C.
const SUM_BYTES: usize = 4;

/// Longest key in bytes: longer than any path of a tar.
const KEY_MAX: usize = 1 << 16;

/// Members of one sample, and true if it is bad.
pub(super) type Row = (Vec<Member>, bool);

/// Returns the usual start of the data of the member behind `member`: one header is between.
fn behind(member: &Member) -> u64 {
    // Any number does where there is no such place, as long as it is the same to both sides.
    member.end().checked_next_multiple_of(TAR_BLOCK).unwrap_or(0).wrapping_add(TAR_BLOCK)
}

/// Writes the members of a block's samples. Ends of members must not exceed `i64::MAX`.
///
/// A member's place is the difference to where the one before lets expect it, which is 0 in most
/// tars; lengths are kept by field, whose lengths are alike.
pub(super) fn put_members(rows: &[Row]) -> Vec<u8> {
    let mut into = Vec::new();
    let mut layouts: Vec<Vec<u32>> = Vec::new();
    let mut numbers: HashMap<Vec<u32>, u64> = HashMap::new();
    let mut of_samples = Vec::with_capacity(rows.len());
    for (members, _) in rows {
        let layout: Vec<u32> = members.iter().map(|member| member.field).collect();
        let next = layouts.len() as u64;
        let number = *numbers.entry(layout).or_insert_with_key(|layout| {
            layouts.push(layout.clone());
            next
        });
        of_samples.push(number);
    }
    put(layouts.len() as u64, &mut into);
    for layout in &layouts {
        put(layout.len() as u64, &mut into);
        layout.iter().for_each(|field| put(u64::from(*field), &mut into));
    }
    put_packed(&of_samples, &mut into);
    let bad: Vec<u64> = rows.iter().map(|(_, bad)| u64::from(*bad)).collect();
    put_packed(&bad, &mut into);
    let members: Vec<&Member> = rows.iter().flat_map(|(members, _)| members).collect();
    let Some(first) = members.first() else { return into };
    put(first.offset, &mut into);
    let gap = |pair: &[&Member]| zigzag(pair[1].offset.wrapping_sub(behind(pair[0])) as i64);
    put_packed(&members.windows(2).map(gap).collect::<Vec<_>>(), &mut into);
    for field in fields_of(&layouts) {
        let of_field = members.iter().filter(|member| member.field == field);
        put_packed(&of_field.map(|member| member.len).collect::<Vec<_>>(), &mut into);
    }
    into.extend(members.iter().flat_map(|member| member.crc32c.to_le_bytes()));
    into
}

/// Returns the fields of all layouts, in ascending order.
fn fields_of(layouts: &[Vec<u32>]) -> Vec<u32> {
    let mut fields: Vec<u32> = layouts.iter().flatten().copied().collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// Reads the members of `samples` samples of a shard of `bytes` bytes; field numbers are below
/// `fields`.
///
/// # Errors
/// `Corrupt` for bytes that [`put_members`] does not write, or members that the shard cannot have.
pub(super) fn members(block: &[u8], samples: usize, fields: usize, bytes: u64) -> Result<Vec<Row>> {
    let mut block = Bytes(block);
    let layouts = layouts(&mut block, samples, fields)?;
    let numbers = block.packed(samples)?;
    let bad = block.packed(samples)?;
    let mut rows: Vec<Row> = Vec::with_capacity(samples);
    let (mut count, mut of_fields) = (0, HashMap::<u32, usize>::new());
    for (number, bad) in numbers.into_iter().zip(bad) {
        let layout = usize::try_from(number).ok().and_then(|number| layouts.get(number));
        let layout = layout.ok_or_else(|| wrong("a sample has an unknown layout"))?;
        let is_bad = match bad {
            0 => false,
            1 => true,
            _ => return Err(wrong("a sample has an unknown mark")),
        };
        count += layout.len();
        // Each member takes four bytes of checksum: what is not there is not allocated.
        if count > block.0.len() / SUM_BYTES {
            return Err(wrong("it has fewer members than samples need"));
        }
        let member = |field: &u32| {
            *of_fields.entry(*field).or_default() += 1;
            Member { field: *field, offset: 0, len: 0, crc32c: 0 }
        };
        rows.push((layout.iter().map(member).collect(), is_bad));
    }
    if count == 0 {
        block.end()?;
        return Ok(rows);
    }
    let first = block.number()?;
    let gaps = block.packed(count - 1)?;
    let mut lens = HashMap::new();
    for field in fields_of(&layouts) {
        let of_field = of_fields.get(&field).copied().unwrap_or(0);
        lens.insert(field, block.packed(of_field)?.into_iter());
    }
    let mut sums = block.take(count * SUM_BYTES)?.chunks_exact(SUM_BYTES);
    block.end()?;
    let mut gaps = gaps.into_iter();
    let mut expected = None;
    for member in rows.iter_mut().flat_map(|(members, _)| members) {
        member.len = lens.get_mut(&member.field).and_then(Iterator::next).unwrap_or(0);
        member.offset = match expected {
            None => first,
            Some(expected) => {
                let gap = unzigzag(gaps.next().unwrap_or(0));
                u64::wrapping_add_signed(expected, gap)
            }
        };
        if member.offset.checked_add(member.len).is_none_or(|end| end > bytes) {
            return Err(wrong("a member lies outside its shard").at("offset", member.offset));
        }
        let mut sum = [0; SUM_BYTES];
        sum.copy_from_slice(sums.next().unwrap_or(&[0; SUM_BYTES]));
        member.crc32c = u32::from_le_bytes(sum);
        expected = Some(behind(member));
    }
    Ok(rows)
}

/// Reads the lists of fields that samples of a block have.
fn layouts(block: &mut Bytes<'_>, samples: usize, fields: usize) -> Result<Vec<Vec<u32>>> {
    let count = block.up_to(samples)?;
    let mut layouts = Vec::with_capacity(count);
    for _ in 0..count {
        let len = block.up_to(MEMBERS_MAX.min(block.0.len()))?;
        let mut layout = Vec::with_capacity(len);
        for _ in 0..len {
            let field = block.up_to(FIELDS_MAX)?;
            if field >= fields {
                return Err(wrong("a member has a field without a name"));
            }
            layout.push(field as u32);
        }
        layouts.push(layout);
    }
    Ok(layouts)
}

/// Writes the keys of a block's samples.
pub(super) fn put_keys(keys: &[String]) -> Vec<u8> {
    let mut into = Vec::new();
    let mut before: &[u8] = &[];
    for key in keys {
        let key = key.as_bytes();
        let shared = before.iter().zip(key).take_while(|(before, now)| before == now).count();
        put(shared as u64, &mut into);
        put((key.len() - shared) as u64, &mut into);
        into.extend_from_slice(&key[shared..]);
        before = key;
    }
    into
}

/// Reads the keys of `samples` samples.
///
/// # Errors
/// `Corrupt` for bytes that [`put_keys`] does not write.
pub(super) fn keys(block: &[u8], samples: usize) -> Result<Vec<String>> {
    let mut block = Bytes(block);
    let mut keys: Vec<String> = Vec::with_capacity(samples);
    for _ in 0..samples {
        let before = keys.last().map_or(&[][..], |key| key.as_bytes());
        let shared = block.up_to(before.len())?;
        let mut key = before[..shared].to_vec();
        let len = block.up_to(KEY_MAX - shared.min(KEY_MAX))?;
        key.extend_from_slice(block.take(len)?);
        keys.push(String::from_utf8(key).map_err(|_| wrong("a key is not UTF-8"))?);
    }
    block.end()?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::column::Column;
    use super::*;

    const FIELDS: usize = 3;

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let member = (0..FIELDS as u32, 0_u64..1 << 20, 0_u64..1 << 12, any::<u32>());
        let member =
            member.prop_map(|(field, offset, len, crc32c)| Member { field, offset, len, crc32c });
        prop::collection::vec((prop::collection::vec(member, 0..4), any::<bool>()), 0..20)
    }

    proptest! {
        /// Places in any order come back, as those of links.
        #[test]
        fn members_in_any_order_come_back(rows in rows()) {
            let block = put_members(&rows);
            prop_assert_eq!(members(&block, rows.len(), FIELDS, 1 << 21).unwrap(), rows);
        }

        /// Bytes that no writer wrote are rejected, or are members that their shard can have.
        #[test]
        fn hostile_blocks_are_rejected(
            rows in rows(), at: prop::sample::Index, byte: u8, cut in 0_usize..9, samples in 0_usize..30,
            noise in prop::collection::vec(any::<u8>(), 0..40), bytes in 0_u64..1 << 21,
        ) {
            let mut block = put_members(&rows);
            block.truncate(block.len().saturating_sub(cut));
            if !block.is_empty() {
                let place = at.index(block.len());
                block[place] = byte;
            }
            for block in [&block, &noise] {
                if let Ok(read) = members(block, samples, FIELDS, bytes) {
                    let all = read.iter().flat_map(|(members, _)| members);
                    prop_assert!(all.clone().all(|one| one.end() <= bytes));
                    prop_assert!(all.clone().all(|one| (one.field as usize) < FIELDS));
                    prop_assert_eq!(read.len(), samples);
                }
                let _ = keys(block, samples);
                if let Ok(column) = Column::decode(block, samples) {
                    prop_assert_eq!(column.present.len(), samples);
                }
            }
        }
    }

    #[test]
    fn member_outside_its_shard_is_rejected_with_its_place() {
        let member = Member { field: 0, offset: 512, len: 10, crc32c: 7 };
        let block = put_members(&[(vec![member], false)]);
        assert!(members(&block, 1, 1, 522).is_ok());
        let error = members(&block, 1, 1, 521).unwrap_err();
        assert_eq!(error.place("offset"), Some("512"));
        assert!(members(&block, 1, 0, 522).is_err(), "a field without a name");
        let endless = Member { offset: u64::MAX - 5, ..member };
        let block = put_members(&[(vec![member, endless], false)]);
        assert!(members(&block, 1, 1, u64::MAX).is_err());
    }
}
