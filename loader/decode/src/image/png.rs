//! PNG to RGB. Rule: as conversion to mode RGB: palettes looked up, gray spread, 16 bits cut to the
//! upper 8, alpha dropped.

use std::io::Cursor;

use forebay_error::Result;
use png::{ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use super::{CHANNELS, DECODER_BYTES_MAX, Pixels, take_color};
use crate::crop::{Part, Size};
use crate::record::bad;

pub(super) const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// A file with parsed header.
pub(super) struct Opened<'a>(Reader<Cursor<&'a [u8]>>);

pub(super) fn open(bytes: &[u8]) -> Result<Opened<'_>> {
    let limits = Limits { bytes: DECODER_BYTES_MAX };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.read_info().map(Opened).map_err(|error| refused(&error))
}

impl Opened<'_> {
    pub(super) fn size(&self) -> Size {
        (self.0.info().height, self.0.info().width)
    }

    /// Decodes all of it: its rows are stored as differences from those above.
    pub(super) fn decode(mut self, into: &mut Pixels) -> Result<()> {
        let needed = self.0.output_buffer_size().ok_or_else(|| bad("the PNG is too large"))?;
        let mut raw = vec![0; needed];
        let frame = self.0.next_frame(&mut raw).map_err(|error| refused(&error))?;
        let pixels = into.make_room(Part::whole(self.size()), 1);
        match frame.color_type {
            ColorType::Rgb => pixels.copy_from_slice(&raw[..pixels.len()]),
            ColorType::Rgba => take_color::<4>(&raw, pixels),
            ColorType::Grayscale => spread_gray::<1>(&raw, pixels),
            ColorType::GrayscaleAlpha => spread_gray::<2>(&raw, pixels),
            ColorType::Indexed => return Err(bad("the PNG has no palette")),
        }
        Ok(())
    }
}

fn spread_gray<const N: usize>(raw: &[u8], pixels: &mut [u8]) {
    for (out, gray) in pixels.chunks_exact_mut(CHANNELS).zip(raw.chunks_exact(N)) {
        out.fill(gray[0]);
    }
}

fn refused(error: &DecodingError) -> forebay_error::Error {
    bad(format!("the PNG cannot be decoded: {error}"))
}
