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

/// Tables and views of a batch, contiguous for one copy to the device.
#[derive(Debug, Default)]
pub(super) struct Tables {
    views: Vec<View>,
    /// Offsets, until [`Tables::placed_at`] turns them into addresses.
    windows: Vec<Window>,
    weights: Vec<i16>,
    /// Taps of the side added last.
    taps: Taps,
}

/// Tables in their device layout.
pub(super) struct Placed {
    /// All bytes.
    pub(super) bytes: Vec<u8>,
    /// Number of views at the start.
    pub(super) views: usize,
}

impl Tables {
    /// Adds a result of an image with components at `planes`, to be written to `out`; `cut` refers
    /// to the upright image.
    pub(super) fn push(
        &mut self,
        stored: &Stored,
        planes: &[Plane],
        orientation: Orientation,
        cut: &Cut,
        layout: Layout,
        out: Address,
    ) {
        let (rows, columns) = sides(&cut.placement, orientation.size(stored.size));
        let (height, width) = cut.placement.canvas;
        let (rows, columns) = (self.axis(&rows, height), self.axis(&columns, width));
        let (height, width) = (u64::from(height), u64::from(width));
        let (column_step, row_step, channel_step) = match layout {
            Layout::Nchw => (1, width, width * height),
            Layout::Nhwc => (CHANNELS as u64, width * CHANNELS as u64, 1),
        };
        let mut all = [Plane::default(); CHANNELS];
        all[..planes.len()].copy_from_slice(planes);
        let turn = orientation.turn();
        let view = View {
            planes: all,
            columns,
            rows,
            out,
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

    /// Returns the number of bytes of [`Tables::placed_at`].
    pub(super) fn len(&self) -> usize {
        size_of_val(&self.views[..])
            + size_of_val(&self.windows[..])
            + size_of_val(&self.weights[..])
    }

    /// Returns the layout for address `base`, a multiple of 8.
    pub(super) fn placed_at(mut self, base: Address) -> Placed {
        let windows = base + size_of_val(&self.views[..]) as u64;
        let weights = windows + size_of_val(&self.windows[..]) as u64;
        for view in &mut self.views {
            for axis in [&mut view.columns, &mut view.rows] {
                axis.windows += windows;
                axis.weights += weights;
            }
        }
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend_from_slice(bytemuck::cast_slice(&self.views));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.windows));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.weights));
        Placed { bytes, views: self.views.len() }
    }
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
