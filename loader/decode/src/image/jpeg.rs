//! JPEG to RGB by libjpeg-turbo. The one rule: the pixels are libjpeg's own defaults (accurate
//! integer DCT, smooth chroma upsampling), which Pillow and torchvision show too.

use forebay_error::{Error, Result};
use turbojpeg::{Colorspace, Decompressor, Image, PixelFormat};

use super::{CHANNELS, Pixels};
use crate::record::bad;

pub(super) const MAGIC: &[u8] = b"\xff\xd8\xff";

/// Scans of a progressive image beyond which it is taken for an attack: each costs a pass over all
/// coefficients. Encoders write about 10; libjpeg-turbo's own fuzzers stop at 500.
const SCANS_MAX: u32 = 500;

/// Cyan, magenta, yellow and black.
const INKS: usize = 4;

/// One thread's decompressor.
#[derive(Default)]
pub(super) struct Jpeg {
    decompressor: Option<Decompressor>,
    inks: Vec<u8>,
}

impl Jpeg {
    pub(super) fn decode(&mut self, bytes: &[u8], into: &mut Pixels) -> Result<()> {
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            empty => empty.insert(open()?),
        };
        let header = decompressor.read_header(bytes).map_err(|error| refused(&error))?;
        let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
        let pixels = into.make_room((side(header.height), side(header.width)))?;
        let (width, height) = (header.width, header.height);
        let outcome = if matches!(header.colorspace, Colorspace::CMYK | Colorspace::YCCK) {
            self.inks.resize(width * height * INKS, 0);
            let target = canvas(&mut self.inks, width, height, PixelFormat::CMYK);
            let outcome = decompressor.decompress(bytes, target);
            to_rgb(&self.inks, pixels);
            self.inks = Vec::new();
            outcome
        } else {
            decompressor.decompress(bytes, canvas(pixels, width, height, PixelFormat::RGB))
        };
        match outcome {
            Err(error) if !is_harmless(&error, bytes) => Err(refused(&error)),
            _ => Ok(()),
        }
    }
}

fn open() -> Result<Decompressor> {
    let open = || {
        let mut decompressor = Decompressor::new()?;
        decompressor.set_scan_limit(SCANS_MAX)?;
        Ok(decompressor)
    };
    open().map_err(|error: turbojpeg::Error| refused(&error))
}

fn canvas(pixels: &mut [u8], width: usize, height: usize, format: PixelFormat) -> Image<&mut [u8]> {
    Image { pixels, width, pitch: width * format.size(), height, format }
}

/// Whether the library only remarked on stray bytes between segments: it skipped them and every
/// pixel is there. Well-known data sets hold such files. Its first remark is all it tells, so the
/// end of the image must be there too.
fn is_harmless(error: &turbojpeg::Error, bytes: &[u8]) -> bool {
    let turbojpeg::Error::TurboJpegError(message) = error else { return false };
    message.contains("extraneous bytes before marker") && ends_after_its_scan(bytes)
}

/// Whether an end marker follows the last start of scan (an embedded thumbnail ends before it).
fn ends_after_its_scan(bytes: &[u8]) -> bool {
    let last = |marker: [u8; 2]| bytes.windows(2).rposition(|pair| pair == marker);
    last([0xff, 0xd9]) > last([0xff, 0xda])
}

fn refused(error: &turbojpeg::Error) -> Error {
    let text = match error {
        turbojpeg::Error::TurboJpegError(message) => message.clone(),
        other => other.to_string(),
    };
    bad(format!("the JPEG cannot be decoded: {text}"))
}

/// Inverted inks, as Adobe stores them and torchvision and Pillow take them, to light.
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
    fn an_end_marker_counts_only_after_the_last_scan() {
        assert!(ends_after_its_scan(&[0xff, 0xda, 1, 2, 0xff, 0xd9]));
        assert!(!ends_after_its_scan(&[0xff, 0xd9, 0xff, 0xda, 1, 2]));
        assert!(!ends_after_its_scan(&[0xff, 0xda, 1]));
    }

    #[test]
    fn inks_become_light() {
        let mut rgb = [9; 6];
        to_rgb(&[255, 255, 255, 255, 0, 255, 128, 200], &mut rgb);
        assert_eq!(rgb, [255, 255, 255, 0, 200, 100]);
    }
}
