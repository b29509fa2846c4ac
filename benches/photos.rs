//! Shards of members as large as photos, for benchmarks.

#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::io::Write;

use forebay_bench::dice::Dice;

/// Bytes of a member: a photo's.
pub const MEMBER: usize = 110_000;

/// A tar of members that no drive compresses.
///
/// # Panics
/// If the shard cannot be written.
pub fn make_shard(to: impl Write, bytes: usize) {
    let mut archive = tar::Builder::new(to);
    let mut dice = Dice::new(1);
    for number in 0..bytes / MEMBER {
        let words = std::iter::repeat_with(|| dice.roll().to_le_bytes());
        let member: Vec<u8> = words.take(MEMBER / 8).flatten().collect();
        let mut header = tar::Header::new_gnu();
        header.set_size(member.len() as u64);
        archive.append_data(&mut header, format!("{number:06}.jpg"), &member[..]).unwrap();
    }
    archive.finish().unwrap();
}
