//! The resize filter as numbers: of which pixels a row or column of the result is made, and with which weights.
//!
//! Its rule: what `fast_image_resize` works out on the CPU, in the same steps: a triangle as wide as the shrinking
//! asks, its weights normalised and rounded to 16 bits with as many of them after the point as the largest allows.

use bytemuck::{Pod, Zeroable};

/// Half of the triangle's base for a picture that is not shrunk, in pixels.
const RADIUS: f64 = 1.0;

/// Bits of a weight after the point at most: 32 less those of a pixel, and two for sums that overshoot.
const PRECISION_MAX: u32 = 32 - 8 - 2 - 1;

/// What a weight must stay under: it is a signed number of 16 bits.
const WEIGHT_END: f64 = (1 << 15) as f64;

/// The pixels of one row or column of the result; the kernels' `Window`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Window {
    /// The first of them.
    pub(super) first: u32,
    /// How many; none where the result is black.
    pub(super) count: u32,
    /// Where their weights begin.
    pub(super) weights: u32,
}

/// One side of a result.
#[derive(Debug, Default)]
pub(super) struct Taps {
    pub(super) windows: Vec<Window>,
    pub(super) weights: Vec<i16>,
    /// The weights of a window add up to about 1 << `precision`.
    pub(super) precision: u32,
}

impl Taps {
    /// `length` pixels made of what lies from `from` to `to` in pixels `first`… `end` of an image; nothing else of it
    /// is seen.
    pub(super) fn resized((first, end): (u32, u32), (from, to): (f64, f64), length: u32) -> Self {
        let (from, to) = (from - f64::from(first), to - f64::from(first));
        let (seen, scale) = (f64::from(end - first), (to - from) / f64::from(length));
        let radius = RADIUS * scale.max(1.0);
        let narrowing = 1.0 / scale.max(1.0);
        let mut exact: Vec<f64> = Vec::new();
        let mut windows: Vec<Window> = Vec::with_capacity(length as usize);
        for at in 0..length {
            let middle = from + (f64::from(at) + 0.5) * scale;
            let begin = (middle - radius).floor().max(0.0) as u32;
            let stop = (middle + radius).ceil().min(seen) as u32;
            let weights = exact.len();
            let (mut skipped, mut sum) = (0, 0.0);
            for pixel in begin..stop {
                let distance = (f64::from(pixel) - (middle - 0.5)) * narrowing;
                let weight = (1.0 - distance.abs()).max(0.0);
                if exact.len() == weights && weight == 0.0 {
                    skipped += 1;
                } else {
                    exact.push(weight);
                    sum += weight;
                }
            }
            while exact.len() > weights && exact.last() == Some(&0.0) {
                exact.pop();
            }
            for weight in &mut exact[weights..] {
                *weight /= sum;
            }
            let count = (exact.len() - weights) as u32;
            windows.push(Window { first: first + begin + skipped, count, weights: weights as u32 });
        }
        let precision = precision(exact.iter().copied().fold(0.0, f64::max));
        let unit = f64::from(1_u32 << precision);
        let weights = exact.into_iter().map(|weight| (weight * unit).round() as i16).collect();
        Self { windows, weights, precision }
    }

    /// `length` pixels of which those from `corner` on are those of the image from `first` on, `count` of them; the
    /// others are black.
    pub(super) fn pasted(first: u32, count: u32, corner: u32, length: u32) -> Self {
        let window = |at: u32| {
            let place = at.checked_sub(corner).filter(|place| *place < count);
            place.map_or_else(Window::default, |place| Window {
                first: first + place,
                count: 1,
                weights: 0,
            })
        };
        Self { windows: (0..length).map(window).collect(), weights: vec![1], precision: 0 }
    }
}

/// Bits after the point of weights of which the largest is `largest`.
fn precision(largest: f64) -> u32 {
    let fits = |precision: &u32| (largest * f64::from(1_u32 << precision)).round() < WEIGHT_END;
    (1..=PRECISION_MAX).take_while(fits).last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_size_takes_four_pixels_but_at_the_edge() {
        let taps = Taps::resized((0, 8), (0.0, 8.0), 4);
        let window = |first, count, weights| Window { first, count, weights };
        assert_eq!(
            taps.windows,
            [window(0, 3, 0), window(1, 4, 3), window(3, 4, 7), window(5, 3, 11)]
        );
        assert_eq!(taps.precision, 16);
        let eighths = |weights: &[i16]| -> Vec<f64> {
            weights.iter().map(|weight| f64::from(*weight) / f64::from(1 << 13)).collect()
        };
        assert_eq!(eighths(&taps.weights[3..7]), [1.0, 3.0, 3.0, 1.0]);
        let sum: i32 = taps.weights[..3].iter().map(|weight| i32::from(*weight)).sum();
        assert!((sum - (1 << 16)).abs() <= 1, "{sum}");
    }

    #[test]
    fn the_same_size_is_a_copy_and_the_rest_black() {
        let copied = Taps::resized((5, 9), (5.0, 9.0), 4);
        assert_eq!(
            copied.windows.iter().map(|w| (w.first, w.count)).collect::<Vec<_>>(),
            [(5, 1), (6, 1), (7, 1), (8, 1)]
        );
        assert!(copied.weights.iter().all(|weight| i32::from(*weight) == 1 << copied.precision));
        let pasted = Taps::pasted(3, 2, 1, 4);
        assert_eq!(
            pasted.windows.iter().map(|w| (w.first, w.count)).collect::<Vec<_>>(),
            [(0, 0), (3, 1), (4, 1), (0, 0)]
        );
    }
}
