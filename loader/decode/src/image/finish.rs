//! From 8-bit pixels to tensor elements, row by row in place in the batch.
//!
//! One table look-up per element. An 8-bit value has 256 scaled and normalised results per
//! channel. They are computed once, in torchvision's order of operations (divide by 255, subtract
//! the mean, divide by the deviation, round to the type), so every element is exactly the result of
//! that chain.

use bytemuck::Pod;
use half::{bf16, f16};

use super::CHANNELS;
use crate::dtype::DType;
use crate::spec::{ImageSpec, Layout, Mode};

/// Factor from 8 bits to 16.
const WIDEN: u16 = 257;

type Table<T> = Box<[[T; 256]; CHANNELS]>;

/// Identity table.
static THEMSELVES: [[u8; 256]; CHANNELS] = {
    let mut values = [0; 256];
    let mut value = 0;
    while value < values.len() {
        values[value] = value as u8;
        value += 1;
    }
    [values; CHANNELS]
};

/// Result of each value of each channel.
pub(super) enum Finish {
    Uint8,
    Uint16(Table<u16>),
    Float16(Table<f16>),
    Bfloat16(Table<bf16>),
    Float32(Table<f32>),
}

impl Finish {
    /// Makes the tables of a checked specification.
    pub(super) fn new(spec: &ImageSpec) -> Self {
        let value = |channel: usize, pixel: usize| {
            let value = pixel as f32 / 255.0;
            match (spec.mean, spec.std) {
                (Some(mean), Some(std)) => (value - mean[channel]) / std[channel],
                _ => value,
            }
        };
        match spec.dtype {
            // The numbers of a palette stay; 255 is as bright as 65535.
            DType::Uint16 if spec.mode == Mode::Palette => Self::Uint16(table(|_, p| p as u16)),
            DType::Uint16 => Self::Uint16(table(|_, p| p as u16 * WIDEN)),
            DType::Float16 => Self::Float16(table(|c, p| f16::from_f32(value(c, p)))),
            DType::Bfloat16 => Self::Bfloat16(table(|c, p| bf16::from_f32(value(c, p)))),
            DType::Float32 => Self::Float32(table(value)),
            _ => Self::Uint8,
        }
    }

    /// Returns the table of each channel's 256 results as bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Uint8 => THEMSELVES.as_flattened(),
            Self::Uint16(table) => bytemuck::cast_slice(table.as_flattened()),
            Self::Float16(table) => bytemuck::cast_slice(table.as_flattened()),
            Self::Bfloat16(table) => bytemuck::cast_slice(table.as_flattened()),
            Self::Float32(table) => bytemuck::cast_slice(table.as_flattened()),
        }
    }

    /// Makes a canvas of rows of `width` over the elements `out`, laid out as `spec` says, mirrored
    /// or not.
    pub(super) fn canvas<'a>(
        &'a self,
        width: u32,
        flip: bool,
        spec: &ImageSpec,
        out: &'a mut [u8],
    ) -> Canvas<'a> {
        let (layout, channels) = (spec.layout, spec.mode.channels());
        Canvas { finish: self, width: width as usize, flip, layout, channels, out }
    }
}

impl std::fmt::Debug for Finish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Finish")
    }
}

fn table<T: Pod>(value: impl Fn(usize, usize) -> T) -> Table<T> {
    Box::new(std::array::from_fn(|channel| std::array::from_fn(|pixel| value(channel, pixel))))
}

/// One image in the batch, drawn row by row.
pub(super) struct Canvas<'a> {
    finish: &'a Finish,
    width: usize,
    flip: bool,
    layout: Layout,
    channels: usize,
    out: &'a mut [u8],
}

impl Canvas<'_> {
    /// Writes row `y`, of as many pixels as the canvas is wide. Inlined, so that a loop over rows
    /// makes and writes pixels with the same instructions.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        y: usize,
        pixels: impl DoubleEndedIterator<Item = [u8; CHANNELS]>,
    ) {
        if self.flip {
            self.write(y, pixels.rev());
        } else {
            self.write(y, pixels);
        }
    }

    #[inline(always)]
    fn write(&mut self, y: usize, pixels: impl Iterator<Item = [u8; CHANNELS]>) {
        match self.finish {
            Finish::Uint8 => self.elements(y, pixels, |_, value| value),
            Finish::Uint16(table) => self.elements(y, pixels, found(table)),
            Finish::Float16(table) => self.elements(y, pixels, found(table)),
            Finish::Bfloat16(table) => self.elements(y, pixels, found(table)),
            Finish::Float32(table) => self.elements(y, pixels, found(table)),
        }
    }

    #[inline(always)]
    fn elements<T: Pod>(
        &mut self,
        y: usize,
        pixels: impl Iterator<Item = [u8; CHANNELS]>,
        element: impl Fn(usize, u8) -> T,
    ) {
        let out: &mut [T] = bytemuck::cast_slice_mut(self.out);
        let at = y * self.width..(y + 1) * self.width;
        if self.channels == 1 {
            // All three are the same.
            for (out, [gray, ..]) in out[at].iter_mut().zip(pixels) {
                *out = element(0, gray);
            }
            return;
        }
        match self.layout {
            Layout::Nchw => {
                let plane = out.len() / CHANNELS;
                let (red, rest) = out.split_at_mut(plane);
                let (green, blue) = rest.split_at_mut(plane);
                let out = red[at.clone()].iter_mut().zip(&mut green[at.clone()]).zip(&mut blue[at]);
                for (((red, green), blue), pixel) in out.zip(pixels) {
                    *red = element(0, pixel[0]);
                    *green = element(1, pixel[1]);
                    *blue = element(2, pixel[2]);
                }
            }
            Layout::Nhwc => {
                let out = out.as_chunks_mut::<CHANNELS>().0[at].iter_mut();
                for (out, [red, green, blue]) in out.zip(pixels) {
                    *out = [element(0, red), element(1, green), element(2, blue)];
                }
            }
        }
    }
}

/// Returns the look-up of a channel's value in `table`.
#[inline(always)]
fn found<T: Pod>(table: &[[T; 256]; CHANNELS]) -> impl Fn(usize, u8) -> T {
    |channel, value| table[channel][usize::from(value)]
}
