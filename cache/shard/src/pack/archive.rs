//! Tars as they are written, piece by piece.
//!
//! The length of each piece is known before it is written, and a header tells nothing of
//! when, where and by whom.

use std::io::{self, Write};

use tar::{EntryType, Header};

/// The unit of a tar.
const BLOCK: u64 = 512;

/// The most bytes of a name that a header has room for.
const NAME: usize = 100;

/// GNU tar's name of the member that holds the next one's long name.
const LONG_NAME: &str = "././@LongLink";

/// Two blocks of zeros end a tar.
pub(super) const END_BYTES: u64 = 2 * BLOCK;

/// Returns the bytes of a member: its headers, its data, and the padding behind it.
pub(super) fn member_bytes(name: &str, len: u64) -> u64 {
    let long = match name.len() > NAME {
        true => BLOCK + padded(name.len() as u64 + 1),
        false => 0,
    };
    (long + BLOCK).saturating_add(padded(len))
}

/// Writes what comes before a member's `len` bytes of data.
pub(super) fn begin(to: &mut impl Write, name: &str, len: u64) -> io::Result<()> {
    if name.len() > NAME {
        // The name and a zero behind it.
        let long = name.len() as u64 + 1;
        to.write_all(header(LONG_NAME, long, EntryType::GNULongName).as_bytes())?;
        to.write_all(name.as_bytes())?;
        to.write_all(&[0])?;
        pad(to, long)?;
    }
    let shown = &name[..name.floor_char_boundary(NAME)];
    to.write_all(header(shown, len, EntryType::Regular).as_bytes())
}

/// Fills the last block of `len` bytes of data.
pub(super) fn pad(to: &mut impl Write, len: u64) -> io::Result<()> {
    let missing = padded(len) - len;
    to.write_all(&[0; BLOCK as usize][..missing as usize])
}

/// Ends the tar.
pub(super) fn end(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&[0; END_BYTES as usize])
}

fn padded(len: u64) -> u64 {
    len.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

/// A header for a `name` that fits into it. The name is not taken apart and put together anew, as
/// `Header::set_path` would: `./a.jpg` has another key than `a.jpg`.
fn header(name: &str, len: u64, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(len);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    header
}
