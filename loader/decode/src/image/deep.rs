//! Images of 16 bits a channel: crop, resize, and conversion to tensor elements.
//!
//! They are rare and hold measurements (depth, radiology), so all arithmetic is in double precision
//! and a value keeps its 16 bits. The filter is that of 8-bit images.

use half::{bf16, f16};

use super::taps::Taps;
use crate::crop::{Area, Part, Placement, Size};
use crate::dtype::DType;
use crate::spec::{ImageSpec, Interpolation, Layout, Mode};

/// Largest value of 16 bits.
const WHITE: f64 = 65_535.0;

/// Decoded image of one channel or three.
#[derive(Default)]
pub(super) struct Deep {
    pub(super) size: Size,
    pub(super) channels: usize,
    pub(super) values: Vec<u16>,
}

impl Deep {
    /// Mixes red, green and blue to gray, by the weights of ITU-R 601, as Pillow does.
    pub(super) fn make_gray(&mut self) {
        if self.channels == 1 {
            return;
        }
        let gray = self.values.as_chunks::<3>().0.iter().map(|[red, green, blue]| {
            let sum = u64::from(*red) * 19_595 + u64::from(*green) * 38_470;
            ((sum + u64::from(*blue) * 7_471 + 0x8000) >> 16) as u16
        });
        self.values = gray.collect();
        self.channels = 1;
    }

    /// Draws `placement` and writes its elements as `spec` says.
    pub(super) fn finish(
        &self,
        spec: &ImageSpec,
        placement: &Placement,
        flip: bool,
        out: &mut [u8],
    ) {
        let (height, width) = pair(placement.canvas);
        let wanted = spec.mode.channels();
        for channel in 0..wanted.min(self.channels) {
            let plane = self.plane(channel, placement, spec.interpolation);
            // Gray is spread to all channels.
            let to = if self.channels == 1 { 0..wanted } else { channel..channel + 1 };
            for (at, value) in plane.into_iter().enumerate() {
                let (y, x) = (at / width, at % width);
                let x = if flip { width - 1 - x } else { x };
                for channel in to.clone() {
                    let element = match spec.layout {
                        Layout::Nchw => (channel * height + y) * width + x,
                        Layout::Nhwc => (y * width + x) * wanted + channel,
                    };
                    let size = spec.dtype.size();
                    put(spec, channel, value, &mut out[element * size..][..size]);
                }
            }
        }
    }

    /// Draws one channel, row by row.
    fn plane(&self, channel: usize, placement: &Placement, by: Interpolation) -> Vec<f64> {
        let (height, width) = pair(placement.canvas);
        if placement.content != placement.canvas {
            return self.pasted(channel, placement);
        }
        let Area { left, top, width: across, height: down } = placement.source;
        if by == Interpolation::Nearest {
            let rows = (0..height).map(|y| nearest(top, down, y, height, self.size.0));
            let columns: Vec<usize> =
                (0..width).map(|x| nearest(left, across, x, width, self.size.1)).collect();
            return rows
                .flat_map(|row| columns.iter().map(move |column| self.value(row, *column, channel)))
                .collect();
        }
        let seen = match placement.isolated {
            // Whole pixels: a crop made before the resize.
            true => Part {
                left: left as u32,
                top: top as u32,
                width: across as u32,
                height: down as u32,
            },
            false => Part::whole(self.size),
        };
        let (left, top) = (left - f64::from(seen.left), top - f64::from(seen.top));
        let (mut rows, mut columns) = (Taps::default(), Taps::default());
        rows.set(seen.height, top..top + down, placement.canvas.0);
        columns.set(seen.width, left..left + across, placement.canvas.1);
        let (first_row, first_column) = (seen.top as usize, seen.left as usize);
        let mut plane = Vec::with_capacity(height * width);
        for (from, weights) in rows.exact() {
            let tall: Vec<f64> = (0..seen.width as usize)
                .map(|column| {
                    let row = |at: usize| first_row + from + at;
                    let value = |at| self.value(row(at), first_column + column, channel);
                    weights.iter().enumerate().map(|(at, weight)| weight * value(at)).sum()
                })
                .collect();
            plane.extend(columns.exact().map(|(from, weights)| {
                weights.iter().zip(&tall[from..]).map(|(weight, value)| weight * value).sum::<f64>()
            }));
        }
        plane
    }

    /// Draws the source unscaled on black.
    fn pasted(&self, channel: usize, placement: &Placement) -> Vec<f64> {
        let (height, width) = pair(placement.canvas);
        let ((top, left), (rows, columns)) = (pair(placement.corner), pair(placement.content));
        let (down, across) = (placement.source.top as usize, placement.source.left as usize);
        let mut plane = vec![0.0; height * width];
        for y in 0..rows {
            for x in 0..columns {
                plane[(top + y) * width + left + x] = self.value(down + y, across + x, channel);
            }
        }
        plane
    }

    fn value(&self, row: usize, column: usize, channel: usize) -> f64 {
        let at = (row * self.size.1 as usize + column) * self.channels + channel;
        f64::from(self.values[at])
    }
}

/// Returns the pixel that contains the middle of pixel `at` of `count`, which stand for `length`
/// pixels from `from` on, of a line of `line`.
pub(super) fn nearest(from: f64, length: f64, at: usize, count: usize, line: u32) -> usize {
    let middle = from + (at as f64 + 0.5) * length / count as f64;
    middle.clamp(0.0, f64::from(line - 1)) as usize
}

/// Writes a value of channel `channel` as an element.
fn put(spec: &ImageSpec, channel: usize, value: f64, out: &mut [u8]) {
    if spec.dtype == DType::Uint16 {
        out.copy_from_slice(&(value.round() as u16).to_ne_bytes());
        return;
    }
    let share = (value / WHITE) as f32;
    let share = match (spec.mean, spec.std) {
        (Some(mean), Some(std)) => (share - mean[channel]) / std[channel],
        _ => share,
    };
    match spec.dtype {
        DType::Float16 => out.copy_from_slice(&f16::from_f32(share).to_ne_bytes()),
        DType::Bfloat16 => out.copy_from_slice(&bf16::from_f32(share).to_ne_bytes()),
        _ => out.copy_from_slice(&share.to_ne_bytes()),
    }
}

fn pair((down, across): Size) -> (usize, usize) {
    (down as usize, across as usize)
}

impl Mode {
    /// Returns the number of channels of the result.
    pub(super) fn channels(self) -> usize {
        match self {
            Self::Rgb => super::CHANNELS,
            Self::Gray | Self::Palette => 1,
        }
    }
}
