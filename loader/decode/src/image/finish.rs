//! The last pass: 8-bit pixels to tensor elements, in place in the batch.
//!
//! Its rule: one table look-up per element. An 8-bit value has 256 scaled and normalised results
//! per channel; they are worked out once, in the order of operations torchvision uses (divide by
//! 255, subtract the mean, divide by the deviation, round to the type), so every element is exactly
//! what that chain gives.

use bytemuck::Pod;
use half::{bf16, f16};

use super::CHANNELS;
use crate::dtype::DType;
use crate::spec::{ImageSpec, Layout};

type Table<T> = Box<[[T; 256]; CHANNELS]>;

/// What each value of each channel becomes.
pub(super) enum Finish {
    Uint8(Table<u8>),
    Float16(Table<f16>),
    Bfloat16(Table<bf16>),
    Float32(Table<f32>),
}

impl Finish {
    /// For a checked specification.
    pub(super) fn new(spec: &ImageSpec) -> Self {
        let value = |channel: usize, pixel: usize| {
            let value = pixel as f32 / 255.0;
            match (spec.mean, spec.std) {
                (Some(mean), Some(std)) => (value - mean[channel]) / std[channel],
                _ => value,
            }
        };
        match spec.dtype {
            DType::Float16 => Self::Float16(table(|c, p| f16::from_f32(value(c, p)))),
            DType::Bfloat16 => Self::Bfloat16(table(|c, p| bf16::from_f32(value(c, p)))),
            DType::Float32 => Self::Float32(table(value)),
            _ => Self::Uint8(table(|_, pixel| pixel as u8)),
        }
    }

    /// The table as it lies in memory: for each channel, what its 256 values become.
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Uint8(table) => bytemuck::cast_slice(table.as_flattened()),
            Self::Float16(table) => bytemuck::cast_slice(table.as_flattened()),
            Self::Bfloat16(table) => bytemuck::cast_slice(table.as_flattened()),
            Self::Float32(table) => bytemuck::cast_slice(table.as_flattened()),
        }
    }

    /// Writes `pixels` (rows of `width`) to `out`.
    pub(super) fn write(
        &self,
        pixels: &[u8],
        width: usize,
        flip: bool,
        layout: Layout,
        out: &mut [u8],
    ) {
        match self {
            Self::Uint8(_) if layout == Layout::Nhwc && !flip => out.copy_from_slice(pixels),
            Self::Uint8(table) => write(table, pixels, width, flip, layout, out),
            Self::Float16(table) => write(table, pixels, width, flip, layout, out),
            Self::Bfloat16(table) => write(table, pixels, width, flip, layout, out),
            Self::Float32(table) => write(table, pixels, width, flip, layout, out),
        }
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

fn write<T: Pod>(
    table: &[[T; 256]; CHANNELS],
    pixels: &[u8],
    width: usize,
    flip: bool,
    layout: Layout,
    out: &mut [u8],
) {
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    let rows = pixels.chunks_exact(width * CHANNELS);
    match layout {
        Layout::Nchw => {
            let plane = pixels.len() / CHANNELS;
            let (red, rest) = out.split_at_mut(plane);
            let (green, blue) = rest.split_at_mut(plane);
            for (y, row) in rows.enumerate() {
                let at = y * width..(y + 1) * width;
                let planes = [&mut red[at.clone()], &mut green[at.clone()], &mut blue[at]];
                split(table, row, flip, planes);
            }
        }
        Layout::Nhwc => {
            for (row, out) in rows.zip(out.chunks_exact_mut(width * CHANNELS)) {
                interleaved(table, row, flip, out);
            }
        }
    }
}

/// One row to its place in each channel's plane.
fn split<T: Pod>(
    table: &[[T; 256]; CHANNELS],
    row: &[u8],
    flip: bool,
    planes: [&mut [T]; CHANNELS],
) {
    let [red, green, blue] = planes;
    let out = red.iter_mut().zip(green).zip(blue);
    let put = |((r, g), b): ((&mut T, &mut T), &mut T), pixel: &[u8]| {
        *r = table[0][usize::from(pixel[0])];
        *g = table[1][usize::from(pixel[1])];
        *b = table[2][usize::from(pixel[2])];
    };
    let pixels = row.chunks_exact(CHANNELS);
    if flip {
        pixels.rev().zip(out).for_each(|(pixel, out)| put(out, pixel));
    } else {
        pixels.zip(out).for_each(|(pixel, out)| put(out, pixel));
    }
}

/// One row, channels side by side as they came.
fn interleaved<T: Pod>(table: &[[T; 256]; CHANNELS], row: &[u8], flip: bool, out: &mut [T]) {
    let put = |(out, pixel): (&mut [T], &[u8])| {
        for channel in 0..CHANNELS {
            out[channel] = table[channel][usize::from(pixel[channel])];
        }
    };
    let (out, pixels) = (out.chunks_exact_mut(CHANNELS), row.chunks_exact(CHANNELS));
    if flip {
        out.zip(pixels.rev()).for_each(put);
    } else {
        out.zip(pixels).for_each(put);
    }
}
