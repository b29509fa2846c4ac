//! How a camera was held, as EXIF says. The one rule: what cannot be read says that it was held upright, as
//! torchvision and Pillow take it: a photo with a broken note is still a photo.

use std::io::Cursor;

use exif::{In, Reader, Tag};

use super::{CHANNELS, Pixels};
use crate::crop::{Part, Size};

/// What must be done to the stored pixels, as one of EXIF's eight numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Orientation(u32);

impl Default for Orientation {
    fn default() -> Self {
        Self(1)
    }
}

impl Orientation {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let noted = Reader::new().read_from_container(&mut Cursor::new(bytes)).ok();
        let number = noted
            .and_then(|noted| noted.get_field(Tag::Orientation, In::PRIMARY)?.value.get_uint(0));
        number.filter(|number| (1..=8).contains(number)).map(Self).unwrap_or_default()
    }

    /// Whether the pixels stay as they are stored.
    pub(super) fn is_upright(self) -> bool {
        self == Self::default()
    }

    /// Whether rows become columns.
    fn swaps(self) -> bool {
        self.0 >= 5
    }

    /// The size of an image that is stored in `size`.
    pub(super) fn size(self, (height, width): Size) -> Size {
        if self.swaps() { (width, height) } else { (height, width) }
    }

    /// Turns a whole image; `aside` is lent for it.
    pub(super) fn turn(self, pixels: &mut Pixels, aside: &mut Vec<u8>) {
        let (rows, columns) = (pixels.part.height as usize, pixels.part.width as usize);
        let (height, width) = if self.swaps() { (columns, rows) } else { (rows, columns) };
        let from = |y: usize, x: usize| match self.0 {
            2 => (y, columns - 1 - x),
            3 => (rows - 1 - y, columns - 1 - x),
            4 => (rows - 1 - y, x),
            5 => (x, y),
            6 => (rows - 1 - x, y),
            7 => (rows - 1 - x, columns - 1 - y),
            8 => (x, columns - 1 - y),
            _ => (y, x),
        };
        let len = rows * columns * CHANNELS;
        if aside.len() < len {
            aside.resize(len, 0);
        }
        let stored = pixels.as_bytes();
        for (y, row) in aside[..len].chunks_exact_mut(width * CHANNELS).enumerate() {
            for (x, pixel) in row.chunks_exact_mut(CHANNELS).enumerate() {
                let (row, column) = from(y, x);
                let at = (row * columns + column) * CHANNELS;
                pixel.copy_from_slice(&stored[at..at + CHANNELS]);
            }
        }
        std::mem::swap(&mut pixels.bytes, aside);
        let side = |pixels: usize| u32::try_from(pixels).expect("the image's size was checked");
        pixels.part = Part::whole((side(height), side(width)));
    }
}
