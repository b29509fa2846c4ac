//! A JPEG of some MCUs of another.
//!
//! The bits of its MCUs are copied row by row. A row's first DC value of each component is coded
//! anew: it is coded as a difference from the MCU before it, which is another one now.

use std::ops::Range;

use crate::bits::BitWriter;
use crate::header::{BEGIN, COMPONENTS, END, Segment};
use crate::index::{Indexed, Mark};

/// Place of height and width in a frame's segment: behind marker, length and precision.
const SIZE_AT: usize = 5;

/// Share of the bits down to the last row that a cut may keep: copying a bit costs less than an
/// eighth of decoding it.
const KEPT_MAX: (usize, usize) = (7, 8);

/// Place of a cut's first pixel in its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corner {
    /// Pixels from the left, a multiple of an MCU's width.
    pub left: u32,
    /// Pixels from the top, a multiple of an MCU's height.
    pub top: u32,
}

impl Indexed<'_> {
    /// Writes a JPEG of the MCUs around the pixels `x`, `y` to `into`, and returns the place of its
    /// first pixel; `None` if decoding all rows down to the last one costs no more, or if the index
    /// is of another scan or damaged. Then `into` is empty.
    #[must_use]
    pub fn cut(&self, x: Range<u32>, y: Range<u32>, into: &mut Vec<u8>) -> Option<Corner> {
        let header = &self.header;
        let (across, down, every) = (header.across, header.down, self.every());
        let (columns, rows) = header.grid();
        let end = (x.end.div_ceil(across) as usize).next_multiple_of(every).min(columns);
        let mut columns = (x.start / across) as usize / every * every..end;
        // Decoders smooth the colours of narrow images less.
        if columns.len() == 1 {
            columns.start = columns.start.saturating_sub(every);
        }
        let rows = (y.start / down) as usize..(y.end.div_ceil(down) as usize).min(rows);
        into.clear();
        if x.is_empty() || columns.is_empty() || y.is_empty() || rows.is_empty() {
            return None;
        }
        let marks: Vec<_> = self.rows(columns.clone(), rows.clone()).collect();
        if !self.pays(&marks) || !self.is_bound() {
            return None;
        }
        let side = |range: &Range<usize>, each: u32, all: u32| {
            (range.end as u32 * each).min(all) - range.start as u32 * each
        };
        let size = (side(&columns, across, header.width), side(&rows, down, header.height));
        let written = self.write(&marks, size, into);
        if written.is_none() {
            into.clear();
        }
        written
            .map(|()| Corner { left: columns.start as u32 * across, top: rows.start as u32 * down })
    }

    /// Appends a JPEG of these rows and this width and height.
    fn write(
        &self,
        marks: &[(Mark, Mark)],
        (width, height): (u32, u32),
        into: &mut Vec<u8>,
    ) -> Option<()> {
        into.extend_from_slice(&BEGIN);
        for segment in &self.header.needed {
            let begin = into.len();
            match segment {
                Segment::Same(at) | Segment::Frame(at) => {
                    into.extend_from_slice(self.bytes.get(at.clone())?);
                }
                Segment::Completed(tables) => into.extend_from_slice(tables),
            }
            if matches!(segment, Segment::Frame(_)) {
                let size = into.get_mut(begin + SIZE_AT..)?.first_chunk_mut()?;
                *size = (height << 16 | width).to_be_bytes();
            }
        }
        self.copy(marks, into)?;
        into.extend_from_slice(&END);
        Some(())
    }

    /// Returns false if the rows have too many of the bits, or more than there are.
    fn pays(&self, marks: &[(Mark, Mark)]) -> bool {
        let end = marks.last().map_or(0, |(_, to)| to.at);
        let kept: usize = marks.iter().map(|(from, to)| to.at - from.at).sum();
        let all = end - self.header.scan * 8;
        end / 8 <= self.bytes.len() && kept * KEPT_MAX.1 <= all * KEPT_MAX.0
    }

    /// Appends the scan of these rows.
    fn copy(&self, marks: &[(Mark, Mark)], into: &mut Vec<u8>) -> Option<()> {
        let header = &self.header;
        let mut writer = BitWriter::new(into);
        let mut before = [0; COMPONENTS];
        for (begin, end) in marks {
            let (mut from, mut at) = (begin.at, begin.at);
            let values = begin.dc.iter().zip(&before).enumerate();
            for (component, (dc, before)) in values.take(header.components()) {
                writer.copy(self.bytes, from, at);
                let difference = header.difference(self.bytes, component, at)?;
                let value = dc + difference.value - before;
                let (bits, count) = header.dc_codes(component)?.encode(value)?;
                writer.put(bits, count);
                from = difference.end;
                if component + 1 < header.components() {
                    at = header.rest_of_component(self.bytes, component, from)?;
                }
            }
            if from > end.at {
                return None;
            }
            writer.copy(self.bytes, from, end.at);
            before = end.dc;
        }
        writer.finish();
        Some(())
    }
}
