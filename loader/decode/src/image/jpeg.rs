//! JPEG to RGB by libjpeg-turbo. Rule: pixels are those of libjpeg's defaults (accurate integer
//! DCT, smooth chroma upsampling), as in Pillow and torchvision.

use forebay_error::{Error, Result};
use forebay_jpeg::Indexed;

use super::turbo::{Decompressor, Format, Header};
use super::{CHANNELS, Pixels, Wanted};
use crate::crop::{Part, Size};
use crate::record::bad;
use crate::routes::{CPU, CPU_INDEX};

pub(crate) const MAGIC: &[u8] = b"\xff\xd8\xff";

/// Scans of a progressive image above which it counts as an attack: each costs a pass over all
/// coefficients. Encoders write about 10; libjpeg-turbo's own fuzzers stop at 500.
const SCANS_MAX: i32 = 500;

/// Cyan, magenta, yellow and black.
const INKS: usize = 4;

/// Pixels beside a pixel that smooth chroma upsampling reads: a neighbour of twice its width.
const NEIGHBOUR: u32 = 2;

/// One thread's decompressor.
#[derive(Default)]
pub(super) struct Jpeg {
    decompressor: Option<Decompressor>,
    inks: Vec<u8>,
    /// Part of a file that a crop needs.
    cut: Vec<u8>,
}

/// A file with parsed header.
pub(super) struct Opened<'a> {
    bytes: &'a [u8],
    header: Header,
    decompressor: &'a mut Decompressor,
    inks: &'a mut Vec<u8>,
    cut: &'a mut Vec<u8>,
}

impl Jpeg {
    /// Reads a file's header, to decode the file fast or exactly.
    pub(super) fn open<'a>(&'a mut self, bytes: &'a [u8], is_fast: bool) -> Result<Opened<'a>> {
        if is_fast {
            // libjpeg-turbo 3.1 skips rows through the colour converter of the handle's previous
            // image, whose memory is free by then, where it spreads and converts colours at once.
            self.decompressor = None;
        }
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            empty => empty.insert(Decompressor::new(SCANS_MAX).map_err(|said| refused(&said))?),
        };
        let header = decompressor.header(bytes).map_err(|said| refused(&said))?;
        Ok(Opened { bytes, header, decompressor, inks: &mut self.inks, cut: &mut self.cut })
    }

    /// Returns the bytes of the last part that was cut out.
    #[cfg(test)]
    pub(super) fn cut_bytes(&self) -> usize {
        self.cut.len()
    }

    /// Frees memory above `limit`.
    pub(super) fn trim(&mut self, limit: usize) {
        if self.cut.capacity() > limit {
            self.cut = Vec::new();
        }
    }
}

impl Opened<'_> {
    pub(super) fn size(&self) -> Size {
        self.header.size()
    }

    /// Decodes at least the requested pixels; returns the decoder's name in the counts.
    pub(super) fn decode(self, wanted: Wanted, into: &mut Pixels) -> Result<&'static str> {
        let Self { bytes, header, decompressor, inks, cut } = self;
        let by = if header.step.is_some() { wanted.shrink } else { 1 };
        let region = region(wanted.part.shrunk(by), &header.shrunk(by), bytes);
        let (file, header, corner, name) = match cut_out(bytes, region, by, cut) {
            Some((left, top)) => {
                let header = decompressor.header(cut).map_err(|said| refused(&said))?;
                (cut.as_slice(), header, (left, top), CPU_INDEX)
            }
            None => (bytes, header, (0, 0), CPU),
        };
        let header = match by {
            1 => header,
            _ => decompressor.shrink(&header, by).map_err(|said| refused(&said))?,
        };
        decompressor.be_quick(wanted.is_fast).map_err(|said| refused(&said))?;
        let pixels = into.make_room(region, by);
        let there = Part { left: region.left - corner.0, top: region.top - corner.1, ..region };
        let outcome = if header.is_inks {
            inks.resize(pixels.len() / CHANNELS * INKS, 0);
            let outcome = decompressor.decode(file, &header, there, Format::Cmyk, inks);
            to_rgb(inks, pixels);
            *inks = Vec::new();
            outcome
        } else {
            decompressor.decode(file, &header, there, Format::Rgb, pixels)
        };
        match outcome {
            Err(said) if !is_harmless(&said, file) => Err(refused(&said)),
            _ => Ok(name),
        }
    }
}

/// Writes a JPEG of the part of `bytes` that `region` depends on, shrunk by `by`, to `cut`, if an
/// index makes that cheap; returns the left and top of the part, shrunk as well.
fn cut_out(bytes: &[u8], region: Part, by: u32, cut: &mut Vec<u8>) -> Option<(u32, u32)> {
    let Part { left, top, width, height } = region;
    let x = left * by..(left + width) * by;
    let y = top.saturating_sub(NEIGHBOUR) * by..(top + height + NEIGHBOUR) * by;
    let corner = Indexed::open(bytes)?.cut(x, y, cut)?;
    Some((corner.left / by, corner.top / by))
}

/// Returns the region to decode for `part`: blocks from the left on, and the pixels that `part`
/// depends on; everything of a truncated image, so that its rejection does not depend on the crop.
fn region(part: Part, header: &Header, bytes: &[u8]) -> Part {
    let whole = Part::whole(header.size());
    let Some(step) = header.step.filter(|_| ends_after_its_scan(bytes)) else { return whole };
    let left = part.left.saturating_sub(NEIGHBOUR) / step * step;
    let right = (part.left + part.width + NEIGHBOUR).min(header.width);
    Part { left, width: right - left, ..part }
}

/// True if the library only warned about stray bytes between segments: it skipped them and every
/// pixel is present. Well-known data sets hold such files. It reports only its first warning, so
/// the end of the image must be present too.
fn is_harmless(said: &str, bytes: &[u8]) -> bool {
    said.contains("extraneous bytes before marker") && ends_after_its_scan(bytes)
}

/// True if an end marker follows the last start of scan (an embedded thumbnail ends before it).
pub(crate) fn ends_after_its_scan(bytes: &[u8]) -> bool {
    let last = |bytes: &[u8], marker| bytes.windows(2).rposition(|pair| pair == marker);
    // From the end: for a whole file only its last bytes are read.
    last(bytes, [0xff, 0xd9]).is_some_and(|end| last(&bytes[end..], [0xff, 0xda]).is_none())
}

fn refused(said: &str) -> Error {
    bad(format!("the JPEG cannot be decoded: {said}"))
}

/// Converts inverted inks, as Adobe stores them and torchvision and Pillow read them, to light.
fn to_rgb(inks: &[u8], rgb: &mut [u8]) {
    for (ink, out) in inks.chunks_exact(INKS).zip(rgb.chunks_exact_mut(CHANNELS)) {
        let white = u32::from(ink[3]);
        for (out, ink) in out.iter_mut().zip(ink) {
            let product = white * (255 - u32::from(*ink)) + 128;
            let shade = ((product >> 8) + product) >> 8;
            *out = white.saturating_sub(shade) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_marker_must_follow_the_last_scan() {
        assert!(ends_after_its_scan(&[0xff, 0xda, 1, 2, 0xff, 0xd9]));
        assert!(!ends_after_its_scan(&[0xff, 0xd9, 0xff, 0xda, 1, 2]));
        assert!(!ends_after_its_scan(&[0xff, 0xda, 1]));
    }

    #[test]
    fn cmyk_is_converted_to_rgb() {
        let mut rgb = [9; 6];
        to_rgb(&[255, 255, 255, 255, 0, 255, 128, 200], &mut rgb);
        assert_eq!(rgb, [255, 255, 255, 0, 200, 100]);
    }
}
