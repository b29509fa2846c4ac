//! Weights of a resized line: the source pixels of each result pixel, and their shares.
//!
//! Bilinear with antialias, as Pillow defines it: a triangle as wide as the reduction, cut
//! off at the line's ends, with weights that sum to one. They are 16-bit numbers, computed in
//! double precision in a fixed order of operations, so that pixels are the same on every machine.

use std::ops::Range;

/// Largest weight: the maximum of a signed 16-bit number.
const WEIGHT_MAX: i32 = i16::MAX as i32;

/// Largest number of binary places of a weight: 32 bits also hold a value of 8, a sign and the
/// rounding.
const SHIFT_MAX: u32 = 21;

/// Weights of every pixel of a resized line.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    spans: Vec<Span>,
    weights: Vec<i16>,
    /// Binary places of the weights.
    shift: u32,
    /// Weights before rounding.
    exact: Vec<f64>,
}

/// Source pixels of one result pixel.
#[derive(Debug)]
struct Span {
    first: usize,
    weights: Range<usize>,
}

impl Taps {
    /// Sets the weights of `count` pixels made from the part `of` a line of `line` pixels.
    pub(crate) fn set(&mut self, line: u32, of: Range<f64>, count: u32) {
        self.spans.clear();
        self.exact.clear();
        let scale = (of.end - of.start) / f64::from(count);
        let radius = scale.max(1.0);
        let narrow = 1.0 / radius;
        for pixel in 0..count {
            let center = of.start + (f64::from(pixel) + 0.5) * scale;
            let first = (center - radius).floor().max(0.0) as u32;
            let end = (center + radius).ceil().min(f64::from(line)) as u32;
            let middle = center - 0.5;
            let begins = self.exact.len();
            let mut sum = 0.0;
            let mut skipped = 0;
            for at in first..end {
                let weight = (1.0 - ((f64::from(at) - middle) * narrow).abs()).max(0.0);
                if weight == 0.0 && self.exact.len() == begins {
                    skipped += 1;
                    continue;
                }
                sum += weight;
                self.exact.push(weight);
            }
            while self.exact.len() > begins && self.exact.last() == Some(&0.0) {
                self.exact.pop();
            }
            for weight in &mut self.exact[begins..] {
                *weight /= sum;
            }
            let weights = begins..self.exact.len();
            self.spans.push(Span { first: (first + skipped) as usize, weights });
        }
        self.round();
    }

    /// Rounds to as many binary places as the largest weight allows.
    fn round(&mut self) {
        let largest = self.exact.iter().copied().fold(0.0, f64::max);
        let places = |shift: u32| f64::from(1_u32 << shift);
        let fits = |shift: &u32| (largest * places(*shift)).round() as i32 <= WEIGHT_MAX;
        self.shift = (1..=SHIFT_MAX).take_while(fits).last().unwrap_or_default();
        let places = places(self.shift);
        self.weights.clear();
        self.weights.extend(self.exact.iter().map(|weight| (weight * places).round() as i16));
    }

    /// Returns, for each pixel of the resized line, its first source pixel and the weights from
    /// there on.
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &[i16])> {
        self.spans.iter().map(|span| (span.first, &self.weights[span.weights.clone()]))
    }

    /// As [`Taps::iter`], with the weights before rounding.
    pub(super) fn exact(&self) -> impl ExactSizeIterator<Item = (usize, &[f64])> {
        self.spans.iter().map(|span| (span.first, &self.exact[span.weights.clone()]))
    }

    /// Returns the range of all source pixels in use.
    pub(super) fn reach(&self) -> Range<usize> {
        let first = self.spans.first().map_or(0, |span| span.first);
        first..self.spans.last().map_or(first, |span| span.first + span.weights.len())
    }

    #[inline(always)]
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns its memory in bytes.
    pub(super) fn capacity(&self) -> usize {
        size_of::<Span>() * self.spans.capacity()
            + size_of::<i16>() * self.weights.capacity()
            + size_of::<f64>() * self.exact.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the weights of each pixel as fractions.
    fn parts(taps: &Taps) -> Vec<(usize, Vec<f64>)> {
        let one = f64::from(1_u32 << taps.shift());
        taps.iter()
            .map(|(first, weights)| (first, weights.iter().map(|w| f64::from(*w) / one).collect()))
            .collect()
    }

    #[test]
    fn line_of_equal_length_is_copied() {
        let mut taps = Taps::default();
        taps.set(5, 1.0..4.0, 3);
        assert_eq!(parts(&taps), [(1, vec![1.0]), (2, vec![1.0]), (3, vec![1.0])]);
        assert_eq!((taps.reach(), taps.shift()), (1..4, 14));
    }

    #[test]
    fn halving_averages_four_pixels_each() {
        let mut taps = Taps::default();
        taps.set(8, 0.0..8.0, 4);
        let parts = parts(&taps);
        assert_eq!(parts[1].0, 1);
        for (weight, expected) in parts[1].1.iter().zip([0.125, 0.375, 0.375, 0.125]) {
            assert!((weight - expected).abs() < 1e-4, "{parts:?}");
        }
        // Nothing lies beyond the ends.
        assert_eq!((parts[0].0, parts[0].1.len(), taps.reach()), (0, 3, 0..8));
    }
}
