//! Position of a crop: pure geometry from an image's size, the specification and the random draw.
//!
//! Boxes equal those of torchvision's transforms (v2) for the same random numbers, with ties
//! rounded to even as in Python. A box never leaves its image.

use crate::draw::{Draw, Purpose};
use crate::spec::Crop;

/// Draws of a random crop that does not fit before the middle is taken.
const TRIES: usize = 10;

/// Height and width in pixels.
pub(crate) type Size = (u32, u32);

/// Mapping of the source's pixels to the result's canvas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Placement {
    /// Part of the source that is drawn.
    pub(crate) source: Area,
    /// True if the resize filter does not see pixels around `source`: the crop came first.
    pub(crate) isolated: bool,
    /// Size that `source` is resized to.
    pub(crate) content: Size,
    /// Top left corner of the content on the canvas: (top, left).
    pub(crate) corner: Size,
    /// Size of the result; black outside the content.
    pub(crate) canvas: Size,
}

/// A part of an image in pixels, with sub-pixel precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// A part of an image in whole pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) left: u32,
    pub(crate) top: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Part {
    /// Returns all of an image.
    pub(crate) fn whole((height, width): Size) -> Self {
        Self { left: 0, top: 0, width, height }
    }

    /// Returns the smallest part that contains both.
    pub(crate) fn around(self, other: Self) -> Self {
        let (left, top) = (self.left.min(other.left), self.top.min(other.top));
        let right = (self.left + self.width).max(other.left + other.width);
        let bottom = (self.top + self.height).max(other.top + other.height);
        Self { left, top, width: right - left, height: bottom - top }
    }

    /// Returns the part that contains all of this in the image shrunk by `by`.
    pub(crate) fn shrunk(self, by: u32) -> Self {
        let (left, top) = (self.left / by, self.top / by);
        let width = (self.left + self.width).div_ceil(by) - left;
        let height = (self.top + self.height).div_ceil(by) - top;
        Self { left, top, width, height }
    }
}

impl Placement {
    /// Places `crop` in an `image`; `size` is the requested result.
    pub(crate) fn new(crop: Crop, size: Option<Size>, image: Size, draw: &Draw) -> Self {
        match (crop, size) {
            (Crop::Random { scale, ratio }, size) => {
                let source = random(image, scale, ratio, draw);
                Self::whole(source, true, size.unwrap_or(image))
            }
            (Crop::Center { resize: Some(short) }, size) => resized_center(image, short, size),
            (Crop::Center { resize: None }, Some(size)) => plain_center(image, size),
            (Crop::Center { resize: None } | Crop::None, size) => {
                Self::whole(Area::full(image), false, size.unwrap_or(image))
            }
        }
    }

    /// Returns the pixels of an `image` that the result depends on.
    pub(crate) fn part(&self, (height, width): Size) -> Part {
        let Area { left, top, .. } = self.source;
        // For a side: its start, length, resized length, and the image's end.
        let side = |from: f64, length: f64, content: u32, end: u32| {
            let reach = match self.isolated {
                true => 0.0,
                // The filter's triangle is as wide as the reduction; one more for rounding.
                false => (length / f64::from(content)).max(1.0) + 1.0,
            };
            let first = (from - reach).floor().max(0.0);
            let last = (from + length + reach).ceil().min(f64::from(end));
            (first as u32, last as u32 - first as u32)
        };
        let (left, width) = side(left, self.source.width, self.content.1, width);
        let (top, height) = side(top, self.source.height, self.content.0, height);
        Part { left, top, width, height }
    }

    fn whole(source: Area, isolated: bool, content: Size) -> Self {
        Self { source, isolated, content, corner: (0, 0), canvas: content }
    }
}

impl Area {
    /// Returns all of an image.
    pub(crate) fn full((height, width): Size) -> Self {
        Self { left: 0.0, top: 0.0, width: f64::from(width), height: f64::from(height) }
    }

    fn of(top: u32, left: u32, (height, width): Size) -> Self {
        Self { left: f64::from(left), top: f64::from(top), ..Self::full((height, width)) }
    }
}

/// Draws as torchvision's `RandomResizedCrop.make_params`.
fn random(image: Size, scale: (f64, f64), ratio: (f64, f64), draw: &Draw) -> Area {
    let (height, width) = image;
    let area = f64::from(height) * f64::from(width);
    let log_ratio = (ratio.0.ln(), ratio.1.ln());
    let mut numbers = draw.numbers(Purpose::Crop);
    for _ in 0..TRIES {
        let target = area * numbers.between(scale.0, scale.1);
        let aspect = numbers.between(log_ratio.0, log_ratio.1).exp();
        let w = rounded((target * aspect).sqrt());
        let h = rounded((target / aspect).sqrt());
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let top = numbers.below(u64::from(height - h) + 1) as u32;
            let left = numbers.below(u64::from(width - w) + 1) as u32;
            return Area::of(top, left, (h, w));
        }
    }
    let aspect = f64::from(width) / f64::from(height);
    let (h, w) = if aspect < ratio.0 {
        (rounded(f64::from(width) / ratio.0).clamp(1, height), width)
    } else if aspect > ratio.1 {
        (height, rounded(f64::from(height) * ratio.1).clamp(1, width))
    } else {
        image
    };
    Area::of((height - h) / 2, (width - w) / 2, (h, w))
}

/// Equals torchvision's `Resize(short)` and `CenterCrop(size)`, computed for the cut alone.
fn resized_center(image: Size, short: u32, size: Option<Size>) -> Placement {
    let (height, width) = image;
    let long = |long: u32, by: u32| {
        // A long side past u32 is cut off; such an image is rejected by its pixels long before.
        (f64::from(short) * f64::from(long) / f64::from(by)) as u32
    };
    let resized @ (rows, columns) =
        if width <= height { (long(height, width), short) } else { (short, long(width, height)) };
    let size = size.unwrap_or(resized);
    let (top, left) = (anchor(rows, size.0), anchor(columns, size.1));
    let across = f64::from(width) / f64::from(columns);
    let down = f64::from(height) / f64::from(rows);
    let (x, y) = (f64::from(left) * across, f64::from(top) * down);
    let source = Area {
        left: x,
        top: y,
        width: (f64::from(size.1) * across).min(f64::from(width) - x),
        height: (f64::from(size.0) * down).min(f64::from(height) - y),
    };
    Placement::whole(source, false, size)
}

/// Equals torchvision's `CenterCrop(size)`: black around an image that is too small.
fn plain_center((height, width): Size, (rows, columns): Size) -> Placement {
    let content = (height.min(rows), width.min(columns));
    let (top, left) = (anchor(height, content.0), anchor(width, content.1));
    Placement {
        source: Area::of(top, left, content),
        isolated: true,
        content,
        corner: ((rows - content.0) / 2, (columns - content.1) / 2),
        canvas: (rows, columns),
    }
}

/// Returns the start of a centred cut of `part` pixels out of `whole`.
fn anchor(whole: u32, part: u32) -> u32 {
    rounded(f64::from(whole.saturating_sub(part)) / 2.0)
}

fn rounded(value: f64) -> u32 {
    value.round_ties_even() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        seed: u64,
        epoch: u64,
        stream: u64,
        position: u64,
        field: u64,
        view: u64,
        image: Size,
        scale: (f64, f64),
        ratio: (f64, f64),
        r#box: [u32; 4],
        flip: bool,
    }

    /// `tests/data/make.py` holds the independent implementation.
    #[test]
    fn boxes_and_flips_match_an_independent_implementation() {
        let golden: Vec<Golden> =
            serde_json::from_str(include_str!("../tests/data/draws.json")).unwrap();
        assert_eq!(golden.len(), 48);
        for g in golden {
            let Golden { seed, epoch, stream, position, field, view, .. } = g;
            let draw = Draw { seed, epoch, stream, position, field, view };
            let [top, left, height, width] = g.r#box;
            let area = random(g.image, g.scale, g.ratio, &draw);
            assert_eq!(area, Area::of(top, left, (height, width)), "{draw:?}");
            assert_eq!(draw.numbers(Purpose::Flip).below(2) == 1, g.flip, "{draw:?}");
        }
    }

    fn crops() -> impl Strategy<Value = Crop> {
        let range =
            |low: f64, high: f64| (low..high, low..high).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop_oneof![
            Just(Crop::None),
            (300..2000_u32).prop_map(|short| Crop::Center { resize: Some(short) }),
            Just(Crop::Center { resize: None }),
            (range(1e-6, 1.0), range(0.01, 100.0))
                .prop_map(|(scale, ratio)| Crop::Random { scale, ratio }),
        ]
    }

    proptest! {
        #[test]
        fn box_stays_in_the_image_and_content_in_the_canvas(
            crop in crops(),
            image in (1..3000_u32, 1..3000_u32),
            size in (1..300_u32, 1..300_u32),
            position in any::<u64>(),
        ) {
            let draw = Draw { seed: 0, epoch: 0, stream: 0, position, field: 0, view: 0 };
            let placed = Placement::new(crop, Some(size), image, &draw);
            let Area { left, top, width, height } = placed.source;
            prop_assert!(left >= 0.0 && top >= 0.0 && width > 0.0 && height > 0.0);
            prop_assert!(left + width <= f64::from(image.1), "{placed:?}");
            prop_assert!(top + height <= f64::from(image.0), "{placed:?}");
            let part = placed.part(image);
            prop_assert!(part.width > 0 && part.left + part.width <= image.1, "{part:?}");
            prop_assert!(part.height > 0 && part.top + part.height <= image.0, "{part:?}");
            prop_assert!(f64::from(part.left) <= left && f64::from(part.top) <= top);
            prop_assert_eq!(placed.canvas, size);
            prop_assert!(placed.corner.0 + placed.content.0 <= size.0);
            prop_assert!(placed.corner.1 + placed.content.1 <= size.1);
            let cut_first = matches!(crop, Crop::Random { .. } | Crop::Center { resize: None });
            prop_assert_eq!(placed.isolated, cut_first, "a crop hides its surroundings");
            if placed.isolated {
                for side in [left, top, width, height] {
                    prop_assert_eq!(side, side.round());
                }
            }
        }
    }

    #[test]
    fn a_center_crop_without_size_is_the_resized_image() {
        let draw = Draw { seed: 0, epoch: 0, stream: 0, position: 0, field: 0, view: 0 };
        let crop = Crop::Center { resize: Some(256) };
        let placed = Placement::new(crop, None, (375, 500), &draw);
        assert_eq!((placed.canvas, placed.source), ((256, 341), Area::full((375, 500))));
    }
}
