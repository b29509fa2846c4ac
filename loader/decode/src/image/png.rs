//! PNG to RGB. The one rule: as a converter to mode RGB does it: palettes looked up, gray spread,
//! 16 bits cut to the upper 8, alpha dropped.

use std::io::Cursor;

use forebay_error::Result;
use png::{ColorType, Decoder, DecodingError, Limits, Transformations};

use super::{CHANNELS, PIXELS_MAX, Pixels, check_size};
use crate::record::bad;

pub(super) const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Bytes the decoder may take for itself: a full-size image with alpha at 16 bits.
const DECODER_BYTES_MAX: usize = PIXELS_MAX as usize * 8;

pub(super) fn decode(bytes: &[u8], into: &mut Pixels) -> Result<()> {
    let limits = Limits { bytes: DECODER_BYTES_MAX };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|error| refused(&error))?;
    let size = (reader.info().height, reader.info().width);
    check_size(size)?;
    let needed = reader.output_buffer_size().ok_or_else(|| bad("the PNG is too large"))?;
    let mut raw = vec![0; needed];
    let frame = reader.next_frame(&mut raw).map_err(|error| refused(&error))?;
    let pixels = into.make_room(size)?;
    match frame.color_type {
        ColorType::Rgb => pixels.copy_from_slice(&raw[..pixels.len()]),
        ColorType::Rgba => take_color::<4>(&raw, pixels),
        ColorType::Grayscale => spread_gray::<1>(&raw, pixels),
        ColorType::GrayscaleAlpha => spread_gray::<2>(&raw, pixels),
        ColorType::Indexed => return Err(bad("the PNG has no palette")),
    }
    Ok(())
}

fn take_color<const N: usize>(raw: &[u8], pixels: &mut [u8]) {
    for (out, color) in pixels.chunks_exact_mut(CHANNELS).zip(raw.chunks_exact(N)) {
        out.copy_from_slice(&color[..CHANNELS]);
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
