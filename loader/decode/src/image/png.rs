//! PNG to pixels. Rule: as conversion to mode RGB: palettes looked up, gray spread, alpha dropped;
//! unless the stored numbers or all 16 bits are asked for.

use std::io::Cursor;

use forebay_error::Result;
use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use super::deep::Deep;
use super::{CHANNELS, DECODER_BYTES_MAX, Form, Pixels, take_color};
use crate::crop::{Part, Size};
use crate::record::bad;

pub(super) const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// A file with parsed header.
pub(super) struct Opened<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
    form: Form,
}

pub(super) fn open(bytes: &[u8], form: Form) -> Result<Opened<'_>> {
    let limits = Limits { bytes: DECODER_BYTES_MAX };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    let depth = decoder.read_header_info().map_err(|error| refused(&error))?.bit_depth;
    decoder.set_transformations(match form {
        Form::Stored => Transformations::IDENTITY,
        Form::Full if depth == BitDepth::Sixteen => Transformations::EXPAND,
        Form::Full | Form::Color => Transformations::normalize_to_color8(),
    });
    let reader = decoder.read_info().map_err(|error| refused(&error))?;
    Ok(Opened { reader, form })
}

impl Opened<'_> {
    pub(super) fn size(&self) -> Size {
        (self.reader.info().height, self.reader.info().width)
    }

    /// Returns true if its pixels come with 16 bits a channel.
    pub(super) fn is_deep(&self) -> bool {
        self.form != Form::Color && self.reader.info().bit_depth == BitDepth::Sixteen
    }

    /// Decodes all of it: its rows are stored as differences from those above.
    pub(super) fn decode(mut self, into: &mut Pixels) -> Result<()> {
        let depth = self.reader.info().bit_depth;
        let (raw, color) = self.raw()?;
        let size = self.size();
        let pixels = into.make_room(Part::whole(size), 1);
        match (self.form, color) {
            (Form::Stored, ColorType::Indexed | ColorType::Grayscale) => {
                spread_numbers(&raw, depth as usize, size.1 as usize, pixels);
            }
            (Form::Stored, _) => return Err(no_palette()),
            (_, ColorType::Rgb) => pixels.copy_from_slice(&raw[..pixels.len()]),
            (_, ColorType::Rgba) => take_color::<4>(&raw, pixels),
            (_, ColorType::Grayscale) => spread_gray::<1>(&raw, pixels),
            (_, ColorType::GrayscaleAlpha) => spread_gray::<2>(&raw, pixels),
            (_, ColorType::Indexed) => return Err(bad("the PNG has no palette")),
        }
        Ok(())
    }

    /// Decodes all of an image of 16 bits a channel.
    pub(super) fn decode_deep(mut self) -> Result<Deep> {
        let (raw, color) = self.raw()?;
        let (stored, channels) = match color {
            ColorType::Grayscale => (1, 1),
            _ if self.form == Form::Stored => return Err(no_palette()),
            ColorType::GrayscaleAlpha => (2, 1),
            ColorType::Rgb => (3, 3),
            ColorType::Rgba => (4, 3),
            ColorType::Indexed => return Err(bad("the PNG has no palette")),
        };
        let values = raw.as_chunks().0.iter().map(|value| u16::from_be_bytes(*value));
        let values = values.enumerate().filter(|(at, _)| at % stored < channels);
        Ok(Deep { size: self.size(), channels, values: values.map(|(_, value)| value).collect() })
    }

    fn raw(&mut self) -> Result<(Vec<u8>, ColorType)> {
        let needed = self.reader.output_buffer_size().ok_or_else(|| bad("the PNG is too large"))?;
        let mut raw = vec![0; needed];
        let frame = self.reader.next_frame(&mut raw).map_err(|error| refused(&error))?;
        Ok((raw, frame.color_type))
    }
}

/// The numbers of a class are stored in one channel.
pub(super) fn no_palette() -> forebay_error::Error {
    bad("the image has neither a palette nor one channel")
        .advise("store masks as PNG with a palette or in gray, or ask for mode=\"rgb\"")
}

fn spread_gray<const N: usize>(raw: &[u8], pixels: &mut [u8]) {
    for (out, gray) in pixels.chunks_exact_mut(CHANNELS).zip(raw.chunks_exact(N)) {
        out.fill(gray[0]);
    }
}

/// Spreads numbers of `bits` each, whose rows begin at whole bytes.
fn spread_numbers(raw: &[u8], bits: usize, width: usize, pixels: &mut [u8]) {
    let rows = raw.chunks_exact((width * bits).div_ceil(8));
    for (out, row) in pixels.chunks_exact_mut(width * CHANNELS).zip(rows) {
        for (x, out) in out.chunks_exact_mut(CHANNELS).enumerate() {
            let at = x * bits;
            let shift = 8 - bits - at % 8;
            out.fill(row[at / 8] >> shift & (0xff >> (8 - bits)));
        }
    }
}

fn refused(error: &DecodingError) -> forebay_error::Error {
    bad(format!("the PNG cannot be decoded: {error}"))
}
