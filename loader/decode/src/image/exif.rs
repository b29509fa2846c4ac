//! Orientation of a photo by EXIF. Rule: an unreadable note means upright, as in torchvision and
//! Pillow: a photo with a broken note is still a photo.

use std::io::Cursor;

use exif::{In, Reader, Tag};

use super::deep::Deep;
use super::{CHANNELS, Pixels};
use crate::crop::{Part, Size};

/// One of EXIF's eight orientations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orientation(u32);

/// Mapping from an upright image to the stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// True if its rows are the stored one's columns.
    pub(crate) swaps: bool,
    /// True if the stored rows count from below.
    pub(crate) mirrors_rows: bool,
    /// True if the stored columns count from the right.
    pub(crate) mirrors_columns: bool,
}

impl Default for Orientation {
    fn default() -> Self {
        Self(1)
    }
}

impl Orientation {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let noted = Reader::new().read_from_container(&mut Cursor::new(bytes)).ok();
        let number = noted
            .and_then(|noted| noted.get_field(Tag::Orientation, In::PRIMARY)?.value.get_uint(0));
        number.filter(|number| (1..=8).contains(number)).map(Self).unwrap_or_default()
    }

    /// True if the pixels stay as they are stored.
    pub(super) fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// Returns the mapping from upright pixels to stored ones.
    pub(crate) fn turn(self) -> Turn {
        let (swaps, mirrors_rows, mirrors_columns) = match self.0 {
            2 => (false, false, true),
            3 => (false, true, true),
            4 => (false, true, false),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Turn { swaps, mirrors_rows, mirrors_columns }
    }

    /// Returns the upright size of an image stored in `size`.
    pub(crate) fn size(self, (height, width): Size) -> Size {
        if self.turn().swaps { (width, height) } else { (height, width) }
    }

    /// Makes a whole image upright; `aside` is scratch.
    pub(super) fn apply(self, pixels: &mut Pixels, aside: &mut Vec<u8>) {
        let size = (pixels.part.height, pixels.part.width);
        let upright = self.turned(size, CHANNELS, pixels.as_bytes(), aside);
        std::mem::swap(&mut pixels.bytes, aside);
        pixels.part = Part::whole(upright);
    }

    /// Makes an image of 16 bits upright.
    pub(super) fn turn_deep(self, deep: &mut Deep) {
        let mut aside = Vec::new();
        deep.size = self.turned(deep.size, deep.channels, &deep.values, &mut aside);
        deep.values = aside;
    }

    /// Writes the upright image to `aside` and returns its size.
    fn turned<T: Copy + Default>(
        self,
        size: Size,
        channels: usize,
        stored: &[T],
        aside: &mut Vec<T>,
    ) -> Size {
        let (rows, columns) = (size.0 as usize, size.1 as usize);
        let turn = self.turn();
        let width = if turn.swaps { rows } else { columns };
        let from = |y: usize, x: usize| {
            let (row, column) = if turn.swaps { (x, y) } else { (y, x) };
            let row = if turn.mirrors_rows { rows - 1 - row } else { row };
            let column = if turn.mirrors_columns { columns - 1 - column } else { column };
            (row, column)
        };
        let len = rows * columns * channels;
        if aside.len() < len {
            aside.resize(len, T::default());
        }
        for (y, row) in aside[..len].chunks_exact_mut(width * channels).enumerate() {
            for (x, pixel) in row.chunks_exact_mut(channels).enumerate() {
                let (row, column) = from(y, x);
                let at = (row * columns + column) * channels;
                pixel.copy_from_slice(&stored[at..at + channels]);
            }
        }
        self.size(size)
    }
}
