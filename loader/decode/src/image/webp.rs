//! WebP to RGB. Rule: as conversion to mode RGB: alpha dropped, the first frame of an animation.

use std::io::Cursor;

use forebay_error::Result;
use image_webp::{DecodingError, WebPDecoder};

use super::{CHANNELS, DECODER_BYTES_MAX, Pixels, take_color};
use crate::crop::{Part, Size};
use crate::record::bad;

/// Red, green, blue and alpha.
const WITH_ALPHA: usize = 4;

/// True if the bytes start as a WebP file: a RIFF container of this kind.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP")
}

/// A file with parsed header.
pub(super) struct Opened<'a>(WebPDecoder<Cursor<&'a [u8]>>);

pub(super) fn open(bytes: &[u8]) -> Result<Opened<'_>> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| refused(&error))?;
    decoder.set_memory_limit(DECODER_BYTES_MAX);
    Ok(Opened(decoder))
}

impl Opened<'_> {
    pub(super) fn size(&self) -> Size {
        let (width, height) = self.0.dimensions();
        (height, width)
    }

    /// Decodes all of it: its blocks are stored as differences from their neighbours.
    pub(super) fn decode(mut self, into: &mut Pixels) -> Result<()> {
        let pixels = into.make_room(Part::whole(self.size()), 1);
        if !self.0.has_alpha() {
            return self.0.read_image(pixels).map_err(|error| refused(&error));
        }
        let mut raw = vec![0; pixels.len() / CHANNELS * WITH_ALPHA];
        self.0.read_image(&mut raw).map_err(|error| refused(&error))?;
        take_color::<WITH_ALPHA>(&raw, pixels);
        Ok(())
    }
}

fn refused(error: &DecodingError) -> forebay_error::Error {
    bad(format!("the WebP image cannot be decoded: {error}"))
}
