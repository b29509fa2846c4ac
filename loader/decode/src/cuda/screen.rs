//! Choice of images that a GPU decodes, by their headers alone.
//!
//! A file takes the same way on every machine and under every load, so that pixels never
//! depend on timing. Files that are not plain go to the CPU, which decodes everything, and are
//! counted with their reason.

use super::view::Stored;
use crate::image::{self, SIDE_MAX};
use crate::routes::Reason;

/// Longest side that JPEG engines accept, in pixels.
const ENGINE_SIDE_MAX: u32 = 16_384;

/// Returns the storage layout of the JPEG in `bytes`, if a GPU is to decode it.
///
/// # Errors
/// The reason for the CPU.
pub(crate) fn screen(bytes: &[u8]) -> Result<Stored, Reason> {
    if !bytes.starts_with(image::JPEG_MAGIC) {
        return Err(Reason::Format);
    }
    let header = Header::read(bytes)?;
    let stored = header.stored()?;
    let (height, width) = stored.size;
    if height == 0 || width == 0 || height > SIDE_MAX || width > SIDE_MAX {
        return Err(Reason::Header);
    }
    if height > ENGINE_SIDE_MAX || width > ENGINE_SIDE_MAX {
        return Err(Reason::Size);
    }
    if !image::ends_after_its_scan(bytes) {
        return Err(Reason::End);
    }
    Ok(stored)
}

/// Markers of JPEG (ITU-T T.81, table B.1), without their 0xff.
mod marker {
    pub(super) const BASELINE: u8 = 0xc0;
    pub(super) const EXTENDED: u8 = 0xc1;
    pub(super) const PROGRESSIVE: u8 = 0xc2;
    pub(super) const HUFFMAN_TABLES: u8 = 0xc4;
    pub(super) const EXTENSION: u8 = 0xc8;
    pub(super) const ARITHMETIC_CONDITIONS: u8 = 0xcc;
    pub(super) const FRAME_LAST: u8 = 0xcf;
    pub(super) const RESTART_FIRST: u8 = 0xd0;
    pub(super) const END: u8 = 0xd9;
    pub(super) const SCAN: u8 = 0xda;
    /// JFIF's.
    pub(super) const APP0: u8 = 0xe0;
    /// Adobe's.
    pub(super) const APP14: u8 = 0xee;
    /// Stands alone, without meaning.
    pub(super) const TEMPORARY: u8 = 0x01;
}

/// One component of a frame: its name, and its sampling factors across and down.
#[derive(Debug, Clone, Copy, Default)]
struct Component {
    name: u8,
    sampling: (u8, u8),
}

/// Relevant facts from everything before the first scan.
#[derive(Debug, Default)]
struct Header {
    size: (u32, u32),
    components: Vec<Component>,
    is_jfif: bool,
    /// Adobe's colour transform, if present.
    transform: Option<u8>,
    /// Components in the first scan.
    scanned: u8,
}

/// Components of a frame that are examined: one more than the most that is accepted.
const COMPONENTS_MAX: usize = 4;

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, Reason> {
        let mut header = Self::default();
        let mut rest = &bytes[2..];
        loop {
            // Any number of 0xff may come before a marker.
            let (marker, after) = match rest {
                [0xff, 0xff, ..] => {
                    rest = &rest[1..];
                    continue;
                }
                [0xff, marker, after @ ..] => (*marker, after),
                _ => return Err(Reason::Header),
            };
            rest = match marker {
                marker::TEMPORARY => {
                    rest = after;
                    continue;
                }
                marker::RESTART_FIRST..=marker::END | 0 => return Err(Reason::Header),
                _ => after,
            };
            let [high, low, after @ ..] = rest else { return Err(Reason::Header) };
            let length = usize::from(u16::from_be_bytes([*high, *low])).checked_sub(2);
            let (segment, after) =
                length.and_then(|length| after.split_at_checked(length)).ok_or(Reason::Header)?;
            match marker {
                marker::SCAN => {
                    header.scanned = *segment.first().ok_or(Reason::Header)?;
                    return Ok(header);
                }
                marker::HUFFMAN_TABLES | marker::EXTENSION => {}
                marker::ARITHMETIC_CONDITIONS => return Err(Reason::Coding),
                marker::PROGRESSIVE => return Err(Reason::Scans),
                marker::BASELINE | marker::EXTENDED => header.frame(segment)?,
                marker::BASELINE..=marker::FRAME_LAST => return Err(Reason::Coding),
                marker::APP0 => header.is_jfif |= segment.starts_with(b"JFIF\0"),
                marker::APP14 if segment.starts_with(b"Adobe") => {
                    header.transform = segment.get(11).copied();
                }
                _ => {}
            }
            rest = after;
        }
    }

    /// Reads a frame's header: depth, height, width, and three bytes for each component.
    fn frame(&mut self, segment: &[u8]) -> Result<(), Reason> {
        let [depth, h0, h1, w0, w1, count, rest @ ..] = segment else { return Err(Reason::Header) };
        if !self.components.is_empty() || rest.len() != usize::from(*count) * 3 {
            return Err(Reason::Header);
        }
        if *depth != 8 {
            return Err(Reason::Depth);
        }
        let side = |high, low| u32::from(u16::from_be_bytes([high, low]));
        self.size = (side(*h0, *h1), side(*w0, *w1));
        let component =
            |bytes: &[u8]| Component { name: bytes[0], sampling: (bytes[1] >> 4, bytes[1] & 15) };
        self.components = rest.chunks_exact(3).take(COMPONENTS_MAX).map(component).collect();
        Ok(())
    }

    fn stored(&self) -> Result<Stored, Reason> {
        let Self { size, components, .. } = self;
        let sampling = match components[..] {
            [] => return Err(Reason::Header),
            // libjpeg ignores the factors of a single component; a GPU's decoder need not.
            [Component { sampling: (1, 1), .. }] => (1, 1),
            [_] => return Err(Reason::Sampling),
            [_, _, _] if !self.is_brightness_and_colors() => return Err(Reason::Colors),
            [bright, Component { sampling: (1, 1), .. }, Component { sampling: (1, 1), .. }] => {
                bright.sampling
            }
            [_, _, _] => return Err(Reason::Sampling),
            _ => return Err(Reason::Colors),
        };
        let (across, down) = (u32::from(sampling.0), u32::from(sampling.1));
        if !(1..=2).contains(&across) || !(1..=2).contains(&down) {
            return Err(Reason::Sampling);
        }
        if usize::from(self.scanned) != components.len() {
            return Err(Reason::Scans);
        }
        let components = components.len() as u32;
        Ok(Stored { size: *size, components, sampling: (across, down) })
    }

    /// True for three components that libjpeg takes as brightness and colour: JFIF files, files
    /// that Adobe marks so, and others by their component names.
    fn is_brightness_and_colors(&self) -> bool {
        let names = || self.components.iter().map(|component| component.name);
        self.is_jfif || self.transform.map_or(!names().eq(*b"RGB"), |transform| transform != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::data;

    /// Returns the file with its frame's segment changed by `change`, which gets the bytes after
    /// the marker.
    fn reframed(name: &str, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut bytes = data(name);
        let at = bytes.windows(2).position(|pair| pair == [0xff, marker::BASELINE]).unwrap();
        change(&mut bytes[at + 1..]);
        bytes
    }

    fn stored(name: &str) -> (u32, (u32, u32)) {
        let stored = screen(&data(name)).unwrap();
        (stored.components, stored.sampling)
    }

    #[test]
    fn plain_jpegs_are_decoded_by_the_gpu() {
        assert_eq!(stored("wide-420.jpg"), (3, (2, 2)));
        assert_eq!(stored("tall-422.jpg"), (3, (2, 1)));
        assert_eq!(stored("tall-444.jpg"), (3, (1, 1)));
        assert_eq!(stored("gray.jpg"), (1, (1, 1)));
        assert_eq!(stored("exif-6.jpg").0, 3);
    }

    #[test]
    fn other_files_go_to_the_cpu_with_a_reason() {
        let refused = |bytes: &[u8]| screen(bytes).unwrap_err();
        let frame =
            |at: usize, value: u8| refused(&reframed("wide-420.jpg", |frame| frame[at] = value));
        assert_eq!(refused(&data("rgb.png")), Reason::Format);
        assert_eq!(refused(b"\xff\xd8\xff"), Reason::Header);
        assert_eq!(refused(&data("wide-420.jpg")[..30]), Reason::Header);
        assert_eq!(refused(&data("wide-progressive.jpg")), Reason::Scans);
        assert_eq!(frame(0, 0xc9), Reason::Coding);
        assert_eq!(frame(3, 12), Reason::Depth);
        assert_eq!(refused(&data("cmyk.jpg")), Reason::Colors);
        assert_eq!(frame(10, 0x41), Reason::Sampling);
        assert_eq!(frame(10, 0x01), Reason::Sampling);
        assert_eq!(frame(13, 0x21), Reason::Sampling);
        assert_eq!(refused(&reframed("gray.jpg", |frame| frame[10] = 0x22)), Reason::Sampling);
        assert_eq!(frame(4, 0x41), Reason::Size);
        assert_eq!(frame(8, 2), Reason::Header);
        let whole = data("wide-420.jpg");
        assert_eq!(refused(&whole[..whole.len() - 2]), Reason::End);
    }

    #[test]
    fn color_spaces_are_guessed_as_libjpeg_does() {
        let header = |is_jfif, transform, names: &[u8; 3]| {
            let component = |name: &u8| Component { name: *name, sampling: (1, 1) };
            let components = names.iter().map(component).collect();
            Header { size: (1, 1), components, is_jfif, transform, scanned: 3 }.stored().is_ok()
        };
        assert!(header(true, Some(0), b"RGB"), "JFIF goes first");
        assert!(!header(false, Some(0), &[1, 2, 3]), "Adobe's own red, green and blue");
        assert!(header(false, Some(1), b"RGB"));
        assert!(!header(false, None, b"RGB"));
        assert!(header(false, None, &[0, 1, 2]));
    }

    #[test]
    fn separate_component_scans_go_to_the_cpu() {
        let mut bytes = data("tall-444.jpg");
        let at = bytes.windows(2).position(|pair| pair == [0xff, marker::SCAN]).unwrap();
        bytes[at + 4] = 1;
        assert_eq!(screen(&bytes).unwrap_err(), Reason::Scans);
    }

    proptest! {
        #[test]
        fn any_bytes_are_screened_without_panic(
            mut tail in prop::collection::vec(any::<u8>(), 0..200),
            at in 0..600_usize,
            value in any::<u8>(),
        ) {
            let mut bytes = b"\xff\xd8\xff".to_vec();
            bytes.append(&mut tail);
            let _ = screen(&bytes);
            let mut bytes = data("wide-420.jpg");
            bytes[at + 3] = value;
            if let Ok(stored) = screen(&bytes) {
                prop_assert!(stored.size.0 > 0 && stored.size.1 > 0);
                prop_assert!([1, 3].contains(&stored.components));
            }
        }
    }
}
