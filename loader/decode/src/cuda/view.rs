//! Parameters of the kernel: for each result, its source planes, the pixels and weights to use, and
//! the destination of its elements.
//!
//! The layout equals that of `pixels.cu`, byte for byte, and everything in it is a number.
//! Device memory is an address that is never dereferenced here.

use bytemuck::{Pod, Zeroable};

use crate::crop::{Area, Placement, Size};
use crate::image::{Cut, Orientation, Taps};
use crate::spec::Layout;

/// Red, green and blue; or brightness and two colour components.
pub(super) const CHANNELS: usize = 3;

/// Address on the device.
pub(crate) type Address = u64;

/// One component of an image on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Plane {
    pub(super) at: Address,
    /// Bytes from row to row.
    pub(super) pitch: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) unused: u32,
}

/// Source pixels of one row or column of the result.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Window {
    /// First pixel.
    first: u32,
    /// Number of pixels; 0 where the result is black.
    count: u32,
    /// Start of their weights.
    weights: u32,
}

/// A copy from one place on the device to another.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Move {
    pub(super) from: Address,
    pub(super) to: Address,
}

/// One side of a result.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Axis {
    windows: Address,
    weights: Address,
    length: u32,
    precision: u32,
}

/// One result and its source image.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct View {
    planes: [Plane; CHANNELS],
    columns: Axis,
    rows: Axis,
    out: Address,
    column_step: u64,
    row_step: u64,
    channel_step: u64,
    components: u32,
    across: u32,
    down: u32,
    swaps: u32,
    mirrors_rows: u32,
    mirrors_columns: u32,
    flip: u32,
    unused: u32,
}

const _: () = assert!(size_of::<View>() == 184 && align_of::<View>() == 8);

/// Storage layout of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Size in the file, before orientation.
    pub(crate) size: Size,
    /// 1 (brightness) or 3.
    pub(crate) components: u32,
    /// Pixels per colour sample, across and down: 1 or 2.
    pub(crate) sampling: (u32, u32),
}

impl Stored {
    /// Returns the size of each component.
    pub(super) fn planes(&self) -> impl Iterator<Item = Size> {
        let (height, width) = self.size;
        let (across, down) = self.sampling;
        let size = move |component| match component {
            0 => (height, width),
            _ => (height.div_ceil(down), width.div_ceil(across)),
        };
        (0..self.components).map(size)
    }
}

/// Tables and views of one image's results. Threads make them apart; [`Placing`] puts those of a
/// batch together.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Without planes and destinations, and with offsets in the tables instead of addresses.
    views: Vec<View>,
    windows: Vec<Window>,
    weights: Vec<i16>,
    /// Taps of the side added last.
    taps: Taps,
}

impl Tables {
    /// Adds a result; `cut` refers to the upright image.
    pub(crate) fn push(
        &mut self,
        stored: &Stored,
        orientation: Orientation,
        cut: &Cut,
        layout: Layout,
    ) {
        let (rows, columns) = sides(&cut.placement, orientation.size(stored.size));
        let (height, width) = cut.placement.canvas;
        let (rows, columns) = (self.axis(&rows, height), self.axis(&columns, width));
        let (height, width) = (u64::from(height), u64::from(width));
        let (column_step, row_step, channel_step) = match layout {
            Layout::Nchw => (1, width, width * height),
            Layout::Nhwc => (CHANNELS as u64, width * CHANNELS as u64, 1),
        };
        let turn = orientation.turn();
        let view = View {
            planes: [Plane::default(); CHANNELS],
            columns,
            rows,
            out: 0,
            column_step,
            row_step,
            channel_step,
            components: stored.components,
            across: stored.sampling.0,
            down: stored.sampling.1,
            swaps: u32::from(turn.swaps),
            mirrors_rows: u32::from(turn.mirrors_rows),
            mirrors_columns: u32::from(turn.mirrors_columns),
            flip: u32::from(cut.flip),
            unused: 0,
        };
        self.views.push(view);
    }

    /// Returns the number of results.
    pub(super) fn results(&self) -> usize {
        self.views.len()
    }

    fn axis(&mut self, side: &Side, length: u32) -> Axis {
        let windows = (self.windows.len() * size_of::<Window>()) as u64;
        let weights = (self.weights.len() * size_of::<i16>()) as u64;
        let precision = match *side {
            Side::Resized { seen: (first, end), of: (from, to) } => {
                let of = from - f64::from(first)..to - f64::from(first);
                self.taps.set(end - first, of, length);
                let mut begin = 0;
                for (from, weights) in self.taps.iter() {
                    let (first, count) = (first + from as u32, weights.len() as u32);
                    self.windows.push(Window { first, count, weights: begin });
                    self.weights.extend_from_slice(weights);
                    begin += count;
                }
                self.taps.shift()
            }
            Side::Pasted { first, count, corner } => {
                let window = |at: u32| match at.checked_sub(corner).filter(|at| *at < count) {
                    Some(at) => Window { first: first + at, count: 1, weights: 0 },
                    None => Window::default(),
                };
                self.windows.extend((0..length).map(window));
                self.weights.push(1);
                0
            }
        };
        Axis { windows, weights, length, precision }
    }
}

/// Tables of a batch in their device layout: all views, then all windows, then all weights.
pub(super) struct Placing {
    /// Address on the device, a multiple of 8.
    base: Address,
    /// Offsets of the next view, windows and weights.
    next: [usize; 3],
}

impl Placing {
    /// Returns the number of bytes for `tables`.
    pub(super) fn len<'t>(tables: impl Iterator<Item = &'t Tables>) -> usize {
        Self::ends(tables)[2]
    }

    /// Begins to place `tables` at `base` of the device.
    pub(super) fn new<'t>(base: Address, tables: impl Iterator<Item = &'t Tables>) -> Self {
        let [views, windows, _] = Self::ends(tables);
        Self { base, next: [0, views, windows] }
    }

    /// Returns the ends of views, windows and weights.
    fn ends<'t>(tables: impl Iterator<Item = &'t Tables>) -> [usize; 3] {
        let sizes = tables.fold([0; 3], |[views, windows, weights], one| {
            [
                views + size_of_val(&one.views[..]),
                windows + size_of_val(&one.windows[..]),
                weights + size_of_val(&one.weights[..]),
            ]
        });
        [sizes[0], sizes[0] + sizes[1], sizes[0] + sizes[1] + sizes[2]]
    }

    /// Writes one image's part to `all`, the memory of all parts: components at `planes`, results
    /// to `out`, `each` bytes apart.
    pub(super) fn put(
        &mut self,
        all: &mut [u8],
        tables: &Tables,
        planes: &[Plane],
        (out, each): (Address, usize),
    ) {
        let [view, windows, weights] = &mut self.next;
        for (index, relative) in tables.views.iter().enumerate() {
            let mut placed = *relative;
            placed.planes[..planes.len()].copy_from_slice(planes);
            placed.out = out + (index * each) as u64;
            for axis in [&mut placed.columns, &mut placed.rows] {
                axis.windows += self.base + *windows as u64;
                axis.weights += self.base + *weights as u64;
            }
            write(all, view, bytemuck::bytes_of(&placed));
        }
        write(all, windows, bytemuck::cast_slice(&tables.windows));
        write(all, weights, bytemuck::cast_slice(&tables.weights));
    }
}

/// Writes `bytes` at `next`, and moves it on.
fn write(all: &mut [u8], next: &mut usize, bytes: &[u8]) {
    let end = *next + bytes.len();
    all[*next..end].copy_from_slice(bytes);
    *next = end;
}

/// Source pixels of one side of a result.
enum Side {
    /// Pixels between two places, out of the visible ones.
    Resized { seen: (u32, u32), of: (f64, f64) },
    /// `count` pixels from `first` on, unscaled, placed at `corner`; black elsewhere.
    Pasted { first: u32, count: u32, corner: u32 },
}

/// Returns the rows and columns of an upright `image` that make the result.
fn sides(placement: &Placement, (height, width): Size) -> (Side, Side) {
    let Placement { source, isolated, content, corner, canvas } = *placement;
    let Area { left, top, width: across, height: down } = source;
    if content != canvas {
        // Whole pixels.
        let side = |from: f64, count, corner| Side::Pasted { first: from as u32, count, corner };
        return (side(top, content.0, corner.0), side(left, content.1, corner.1));
    }
    let side = |from: f64, length: f64, end: u32| {
        let to = (from + length).min(f64::from(end));
        // Whole pixels: a crop hides its surroundings.
        let seen = if isolated { (from as u32, to as u32) } else { (0, end) };
        Side::Resized { seen, of: (from, to) }
    };
    (side(top, down, height), side(left, across, width))
}
