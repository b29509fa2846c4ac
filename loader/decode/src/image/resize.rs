//! Crop and resize of 8-bit RGB, straight into a canvas.
//!
//! A few rows of the result at a time, which never leave the core's own cache. Source rows
//! are summed vertically, transposed so that the rows of one column are adjacent, summed
//! horizontally for all rows at once, and handed to the canvas. Sums are integers, so pixels are
//! the same with any instruction set. Bilinear with antialias, as torchvision's v2 transforms with
//! `antialias=True`.

use std::iter::repeat_n;
use std::ops::Range;

use fearless_simd::{Level, Simd, dispatch};

use super::deep::nearest;
use super::finish::Canvas;
use super::taps::Taps;
use super::{CHANNELS, Pixels, byte_len};
use crate::crop::{Area, Part, Placement, Size};
use crate::spec::Interpolation;

/// Rows of the result made together. With 8 a column is as wide as AVX2's registers, and the
/// working set of photographs (some 30 kB) stays in the first cache.
const ROWS: usize = 8;

/// Bytes of a pixel in a column: an unused fourth one makes it one word.
const SLOT: usize = 4;

/// Pixels of one column in all rows of a band.
type Column = [u8; ROWS * SLOT];

/// Bytes of a row summed together: as sums of 32 bits, four registers of AVX2.
const STRIDE: usize = 32;

/// Memory that one thread reuses between images.
#[derive(Default)]
pub(super) struct Resize {
    down: Taps,
    across: Taps,
    /// A row of the result's height and the source's width.
    row: Vec<u8>,
    /// A band of such rows.
    tall: Vec<Column>,
    /// A band of the result.
    done: Vec<Column>,
}

/// A part of an image to resize, in pixels of the decoded image.
struct Source<'a> {
    bytes: &'a [u8],
    /// Bytes from a row to the next.
    pitch: usize,
    /// Visible pixels.
    seen: Part,
}

impl Resize {
    /// Draws `placement` of `pixels`, which are as much of an `image` as it needs.
    pub(super) fn draw(
        &mut self,
        pixels: &Pixels,
        image: Size,
        placement: &Placement,
        interpolation: Interpolation,
        canvas: &mut Canvas<'_>,
    ) {
        if placement.canvas == image && placement.source == Area::full(image) {
            for (y, row) in rows(pixels).enumerate() {
                canvas.put(y, row.iter().copied());
            }
        } else if placement.content == placement.canvas && interpolation == Interpolation::Nearest {
            pick(pixels, placement, canvas);
        } else if placement.content == placement.canvas {
            self.resample(pixels, placement, canvas);
        } else {
            paste(pixels, placement, canvas);
        }
    }

    fn resample(&mut self, pixels: &Pixels, placement: &Placement, canvas: &mut Canvas<'_>) {
        let area = within(placement.source, pixels);
        // A shrunk image cannot be cut at whole pixels: its surroundings blend in by a fraction of
        // one.
        let seen = if placement.isolated && pixels.shrunk == 1 {
            // Whole pixels: an isolated area is a crop made before the resize.
            let [left, top, width, height] =
                [area.left, area.top, area.width, area.height].map(|side| side as u32);
            Part { left, top, width, height }
        } else {
            Part::whole(pixels.size())
        };
        let (left, top) = (area.left - f64::from(seen.left), area.top - f64::from(seen.top));
        self.down.set(seen.height, top..top + area.height, placement.canvas.0);
        self.across.set(seen.width, left..left + area.width, placement.canvas.1);
        let pitch = byte_len((1, pixels.part.width));
        let source = Source { bytes: pixels.as_bytes(), pitch, seen };
        dispatch!(Level::new(), simd => self.bands(simd, &source, canvas));
    }

    /// Compiled once for each kind of processor, `S`.
    #[inline(always)]
    fn bands<S: Simd>(&mut self, _: S, source: &Source<'_>, canvas: &mut Canvas<'_>) {
        let Self { down, across, row, tall, done } = self;
        let reach = across.reach();
        // The last pixel is read as a word, too.
        row.resize(reach.len() * CHANNELS + SLOT - CHANNELS, 0);
        tall.resize(reach.len(), [0; ROWS * SLOT]);
        done.resize(across.iter().len(), [0; ROWS * SLOT]);
        let mut rows = down.iter();
        let mut y = 0;
        while rows.len() > 0 {
            let count = rows.len().min(ROWS);
            for (slot, (from, weights)) in rows.by_ref().take(count).enumerate() {
                source.sum_rows(&reach, from, weights, down.shift(), row);
                turn(row, slot, tall);
            }
            for (column, (from, weights)) in done.iter_mut().zip(across.iter()) {
                let columns = &tall[from - reach.start..][..weights.len()];
                sum(columns.iter().zip(weights), across.shift(), column);
            }
            for slot in 0..count {
                let pixel = |column: &Column| {
                    let [red, green, blue, _] = column.as_chunks::<SLOT>().0[slot];
                    [red, green, blue]
                };
                canvas.put(y + slot, done.iter().map(pixel));
            }
            y += count;
        }
    }

    /// Frees memory above `kept_max` bytes.
    pub(super) fn trim(&mut self, kept_max: usize) {
        let columns = size_of::<Column>() * (self.tall.capacity() + self.done.capacity());
        let taps = self.down.capacity() + self.across.capacity();
        if self.row.capacity() + columns + taps > kept_max {
            *self = Self::default();
        }
    }
}

impl Source<'_> {
    /// Makes one row of the result's height: the pixels `across` of the visible rows from `from`
    /// on, by `weights`.
    #[inline(always)]
    fn sum_rows(
        &self,
        across: &Range<usize>,
        from: usize,
        weights: &[i16],
        shift: u32,
        out: &mut [u8],
    ) {
        let rows = &self.bytes[(self.seen.top as usize + from) * self.pitch..];
        let rows = rows.chunks_exact(self.pitch).zip(weights);
        let mut at = (self.seen.left as usize + across.start) * CHANNELS;
        let (strides, rest) = out[..across.len() * CHANNELS].as_chunks_mut::<STRIDE>();
        for stride in strides {
            sum(rows.clone().map(|(row, weight)| (part(row, at), weight)), shift, stride);
            at += STRIDE;
        }
        for byte in rest.as_chunks_mut().0 {
            sum::<1>(rows.clone().map(|(row, weight)| (part(row, at), weight)), shift, byte);
            at += 1;
        }
    }
}

/// Returns the bytes of `row` from `at` on.
#[inline(always)]
fn part<const N: usize>(row: &[u8], at: usize) -> &[u8; N] {
    row[at..].first_chunk().expect("rows are as long as their widest part")
}

/// Writes the weighted sum of `parts`, rounded.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler does not vectorise iterators here")]
fn sum<'a, const N: usize>(
    parts: impl Iterator<Item = (&'a [u8; N], &'a i16)>,
    shift: u32,
    out: &mut [u8; N],
) {
    let mut sums = [1_i32 << shift >> 1; N];
    for (part, weight) in parts {
        for lane in 0..N {
            // Weights sum to one, so this is less than 8 bits and their binary places.
            sums[lane] = sums[lane].wrapping_add(i32::from(part[lane]) * i32::from(*weight));
        }
    }
    for lane in 0..N {
        out[lane] = (sums[lane] >> shift).clamp(0, 255) as u8;
    }
}

/// Puts a row's pixels into their columns.
#[inline(always)]
fn turn(row: &[u8], slot: usize, columns: &mut [Column]) {
    for (column, pixel) in columns.iter_mut().zip(row.array_windows().step_by(CHANNELS)) {
        column.as_chunks_mut::<SLOT>().0[slot] = *pixel;
    }
}

/// Returns the rows of `pixels`.
fn rows(pixels: &Pixels) -> impl Iterator<Item = &[[u8; CHANNELS]]> {
    pixels.as_bytes().as_chunks().0.chunks_exact(pixels.part.width as usize)
}

/// Converts an area of the whole image to one of the decoded pixels.
fn within(area: Area, pixels: &Pixels) -> Area {
    let Part { left, top, width, height } = pixels.part;
    let shrunk = f64::from(pixels.shrunk);
    // Rounding must not leave them.
    let side = |from: f64, length: f64, first: u32, all: u32| {
        let from = from / shrunk - f64::from(first);
        (from, (length / shrunk).min(f64::from(all) - from))
    };
    let (left, width) = side(area.left, area.width, left, width);
    let (top, height) = side(area.top, area.height, top, height);
    Area { left, top, width, height }
}

/// Draws the source's area by the nearest pixel.
fn pick(pixels: &Pixels, placement: &Placement, canvas: &mut Canvas<'_>) {
    let source = within(placement.source, pixels);
    let (height, width) = (placement.canvas.0 as usize, placement.canvas.1 as usize);
    let stored: Vec<&[[u8; CHANNELS]]> = rows(pixels).collect();
    let Part { height: down, width: across, .. } = pixels.part;
    let column = |x| nearest(source.left, source.width, x, width, across);
    let columns: Vec<usize> = (0..width).map(column).collect();
    for y in 0..height {
        let row = stored[nearest(source.top, source.height, y, height, down)];
        canvas.put(y, columns.iter().map(|column| row[*column]));
    }
}

/// Draws the source's area, unscaled, on black.
fn paste(pixels: &Pixels, placement: &Placement, canvas: &mut Canvas<'_>) {
    const BLACK: [u8; CHANNELS] = [0; CHANNELS];
    let source = within(placement.source, pixels);
    let mut from = rows(pixels).skip(source.top as usize);
    let pair = |(down, across): Size| (down as usize, across as usize);
    let (height, width) = pair(placement.canvas);
    let (top, left) = pair(placement.corner);
    let (rows, columns) = pair(placement.content);
    for y in 0..height {
        let row = if (top..top + rows).contains(&y) { from.next() } else { None };
        let drawn = row.map_or(&[][..], |row| &row[source.left as usize..][..columns]);
        let (before, after) = (left, width - left - drawn.len());
        let drawn = repeat_n(BLACK, before).chain(drawn.iter().copied());
        canvas.put(y, drawn.chain(repeat_n(BLACK, after)));
    }
}
