//! Crop and resize of 8-bit RGB. The one rule: bilinear with antialias (a triangle as wide as the
//! shrinking asks), as torchvision's v2 transforms do with `antialias=True`.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use forebay_error::{Error, Result};

use super::{CHANNELS, Pixels, byte_len};
use crate::crop::{Area, Part, Placement, Size};
use crate::record::bad;

/// One thread's resizer and its result.
#[derive(Default)]
pub(super) struct Resize {
    resizer: Resizer,
    out: Vec<u8>,
}

impl Resize {
    /// The canvas that `placement` makes of `pixels`, which are as much of an `image` as it needs.
    pub(super) fn run<'s>(
        &'s mut self,
        pixels: &'s Pixels,
        image: Size,
        placement: &Placement,
    ) -> Result<&'s [u8]> {
        let untouched = placement.canvas == image && placement.source == Area::full(image);
        if untouched {
            return Ok(pixels.as_bytes());
        }
        let len = byte_len(placement.canvas);
        if self.out.len() < len {
            self.out.resize(len, 0);
        }
        if placement.content == placement.canvas {
            self.resample(pixels, placement)?;
        } else {
            paste(pixels, placement, &mut self.out[..len]);
        }
        Ok(&self.out[..len])
    }

    fn resample(&mut self, pixels: &Pixels, placement: &Placement) -> Result<()> {
        let (height, width) = pixels.size();
        let source = TypedImageRef::<U8x3>::from_buffer(width, height, pixels.as_bytes());
        let source = source.map_err(|error| internal(&error))?;
        let (height, width) = placement.canvas;
        let out = &mut self.out[..byte_len(placement.canvas)];
        let target = TypedImage::<U8x3>::from_buffer(width, height, out);
        let mut target = target.map_err(|error| internal(&error))?;
        let Area { left, top, width, height } = within(placement.source, pixels);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false);
        // What was shrunk has no whole pixels to be cut at: there the surroundings blend in by a fraction of one.
        let resized = if placement.isolated && pixels.shrunk == 1 {
            // Whole pixels: an isolated area is a crop that has happened before the resize.
            let [left, top, width, height] = [left, top, width, height].map(|side| side as u32);
            let part = TypedCroppedImage::from_ref(&source, left, top, width, height)
                .map_err(|error| internal(&error))?;
            self.resizer.resize_typed(&part, &mut target, &options)
        } else {
            let options = options.crop(left, top, width, height);
            self.resizer.resize_typed(&source, &mut target, &options)
        };
        resized.map_err(|error| internal(&error))
    }

    /// Gives back memory above `kept_max` bytes.
    pub(super) fn trim(&mut self, kept_max: usize) {
        if self.out.capacity() > kept_max {
            self.out = Vec::new();
        }
        if self.resizer.size_of_internal_buffers() > kept_max {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// An area of the whole image as one of the pixels that are there.
fn within(area: Area, pixels: &Pixels) -> Area {
    let Part { left, top, width, height } = pixels.part;
    let shrunk = f64::from(pixels.shrunk);
    // Rounding must not lead out of them.
    let side = |from: f64, length: f64, first: u32, all: u32| {
        let from = from / shrunk - f64::from(first);
        (from, (length / shrunk).min(f64::from(all) - from))
    };
    let (left, width) = side(area.left, area.width, left, width);
    let (top, height) = side(area.top, area.height, top, height);
    Area { left, top, width, height }
}

/// Copies the source's area, at its own size, onto a black canvas.
fn paste(pixels: &Pixels, placement: &Placement, out: &mut [u8]) {
    let pitch = |width: u32| width as usize * CHANNELS;
    let source = within(placement.source, pixels);
    let (from_pitch, to_pitch) = (pitch(pixels.part.width), pitch(placement.canvas.1));
    let from_left = pitch(source.left as u32);
    let (to_left, length) = (pitch(placement.corner.1), pitch(placement.content.1));
    out.fill(0);
    let from = pixels.as_bytes().chunks_exact(from_pitch).skip(source.top as usize);
    let to = out.chunks_exact_mut(to_pitch).skip(placement.corner.0 as usize);
    for (to, from) in to.zip(from).take(placement.content.0 as usize) {
        to[to_left..to_left + length].copy_from_slice(&from[from_left..from_left + length]);
    }
}

/// Boxes and buffers are made to fit, so this names a defect of ours; the sample is the only victim.
fn internal(error: &dyn std::error::Error) -> Error {
    bad(format!("the image cannot be resized: {error}"))
}
