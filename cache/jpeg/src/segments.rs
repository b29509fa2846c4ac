//! Segments of a file before its scan (ITU-T T.81, annex B), found as libjpeg finds them.

/// First byte of each marker. It may be repeated, as fill.
const MARKS: u8 = 0xff;

/// Markers, without that byte, that have no segment.
const TEMPORARY: u8 = 0x01;
const RESTART_FIRST: u8 = 0xd0;
const BEGIN: u8 = 0xd8;

/// Markers that end the search.
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// Returns the segments of a JPEG before its first scan: marker without its 0xff, and content.
/// Stray bytes between segments are skipped; a segment that is cut off ends the search.
pub fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        loop {
            let at = rest.iter().position(|byte| *byte == MARKS)?;
            let marker = at + rest[at..].iter().position(|byte| *byte != MARKS)?;
            let (kind, after) = (rest[marker], &rest[marker + 1..]);
            match kind {
                0 | TEMPORARY | RESTART_FIRST..=BEGIN => rest = after,
                END | SCAN => return None,
                _ => {
                    let length = usize::from(u16::from_be_bytes(*after.first_chunk()?));
                    let (segment, after) = after.split_at_checked(length)?;
                    rest = after;
                    // The length counts itself.
                    return Some((kind, segment.get(2..)?));
                }
            }
        }
    })
}
