//! Header of a JPEG (ITU-T T.81, annex B), as far as an index needs it. Stricter than `segments`:
//! cuts copy segments by their place, so nothing may lie between them.

use std::ops::{Range, RangeInclusive};

use crate::bits::Bits;
use crate::codes::{AC_COEFFICIENTS, Codes};
use crate::index::{MARKER, NAME};

/// DC values of 8-bit images.
const DC_VALUES: RangeInclusive<i32> = -2048..=2047;

/// Pixels of a block's side.
const SIDE: u32 = 8;

/// Components at most: brightness and two of colour.
pub(crate) const COMPONENTS: usize = 3;

/// Blocks of an MCU at most (T.81, B.2.3).
const MCU_BLOCKS_MAX: u32 = 10;

/// Tables of each kind at most.
const TABLES: usize = 4;

/// Segments that are kept, and Huffman tables that are read, at most. Files have fewer than twenty
/// and eight; each costs memory.
const SEGMENTS_MAX: usize = 64;
const TABLES_READ_MAX: usize = 64;

/// Markers of a file's begin and end.
pub(crate) const BEGIN: [u8; 2] = [0xff, 0xd8];
pub(crate) const END: [u8; 2] = [0xff, 0xd9];

/// Markers, without their 0xff.
mod marker {
    pub(super) const BASELINE: u8 = 0xc0;
    pub(super) const EXTENDED: u8 = 0xc1;
    pub(super) const HUFFMAN_TABLES: u8 = 0xc4;
    pub(super) const SCAN: u8 = 0xda;
    pub(super) const QUANTIZATION_TABLES: u8 = 0xdb;
    pub(super) const RESTART_INTERVAL: u8 = 0xdd;
    /// JFIF's, which tells colours.
    pub(super) const APP0: u8 = 0xe0;
    pub(super) const APP1: u8 = 0xe1;
    /// Holds a colour profile, or the places of more pictures in the file.
    pub(super) const APP2: u8 = 0xe2;
    /// Adobe's, which tells colours.
    pub(super) const APP14: u8 = 0xee;
    pub(super) const APP15: u8 = 0xef;
    pub(super) const COMMENT: u8 = 0xfe;
}

/// First bytes of the segment that lists more pictures of a file (CIPA DC-007).
const PICTURES: &[u8] = b"MPF\0";

/// Reason why a header cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It goes on behind the bytes that are there.
    Cut,
    /// No index is made of such files.
    Kind,
}

#[derive(Debug, Clone, Copy)]
struct Component {
    id: u8,
    blocks: u32,
    dc: usize,
    ac: usize,
}

/// A segment that a decoder needs, with its marker.
pub(crate) enum Segment {
    /// As it stands in the file.
    Same(Range<usize>),
    /// Height and width are to be replaced.
    Frame(Range<usize>),
    /// Huffman tables with codes for all DC values.
    Completed(Vec<u8>),
}

/// Facts of a file's header.
pub(crate) struct Header {
    /// Segments that a decoder needs, in their order; the scan's is the last.
    pub(crate) needed: Vec<Segment>,
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Pixels of an MCU.
    pub(crate) across: u32,
    pub(crate) down: u32,
    components: Vec<Component>,
    dc: [Option<Codes>; TABLES],
    ac: [Option<Codes>; TABLES],
    tables_read: usize,
    /// Segment of an index.
    pub(crate) index: Option<Range<usize>>,
    /// Place of the scan's segment.
    pub(crate) scan_header: usize,
    /// Place of the scan itself.
    pub(crate) scan: usize,
}

/// Difference between DC values that a block begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Difference {
    pub(crate) value: i32,
    /// Position of the bits after it.
    pub(crate) end: usize,
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)))
}

impl Header {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unfit> {
        if bytes.first_chunk().ok_or(Unfit::Cut)? != &BEGIN {
            return Err(Unfit::Kind);
        }
        let mut header = Self {
            needed: Vec::with_capacity(16),
            width: 0,
            height: 0,
            across: 0,
            down: 0,
            components: Vec::new(),
            dc: [const { None }; TABLES],
            ac: [const { None }; TABLES],
            tables_read: 0,
            index: None,
            scan_header: 0,
            scan: 0,
        };
        let mut at = 2;
        loop {
            let &[0xff, marker] =
                bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Unfit::Cut)?
            else {
                return Err(Unfit::Kind);
            };
            let end = at + 2 + number(bytes, at + 2).ok_or(Unfit::Cut)? as usize;
            if end < at + 4 {
                return Err(Unfit::Kind);
            }
            let body = bytes.get(at + 4..end).ok_or(Unfit::Cut)?;
            header.segment(marker, body, at..end).ok_or(Unfit::Kind)?;
            if header.needed.len() > SEGMENTS_MAX {
                return Err(Unfit::Kind);
            }
            if marker == marker::SCAN {
                (header.scan_header, header.scan) = (at, end);
                return Ok(header);
            }
            at = end;
        }
    }

    /// Takes a segment in, and keeps it if a decoder needs it; `None` if files with it have no
    /// index.
    fn segment(&mut self, marker: u8, body: &[u8], at: Range<usize>) -> Option<()> {
        let mut needed = Segment::Same(at.clone());
        match marker {
            marker::BASELINE | marker::EXTENDED => {
                self.frame(body)?;
                needed = Segment::Frame(at);
            }
            marker::HUFFMAN_TABLES => {
                if let Some(completed) = self.codes(body)? {
                    needed = Segment::Completed(completed);
                }
            }
            marker::SCAN => self.scan(body)?,
            marker::QUANTIZATION_TABLES | marker::APP0 | marker::APP14 => {}
            marker::RESTART_INTERVAL if number(body, 0)? == 0 => {}
            MARKER if body.starts_with(NAME) => {
                self.index = Some(at);
                return Some(());
            }
            // Places count from that segment on: an index would move what lies behind it.
            marker::APP2 if body.starts_with(PICTURES) => return None,
            marker::APP1..=marker::APP15 | marker::COMMENT => return Some(()),
            _ => return None,
        }
        self.needed.push(needed);
        Some(())
    }

    fn frame(&mut self, body: &[u8]) -> Option<()> {
        let (&[precision], &[count]) = (body.first_chunk()?, body.get(5..)?.first_chunk()?);
        (self.height, self.width) = (number(body, 1)?, number(body, 3)?);
        let listed = body.get(6..)?.chunks_exact(3);
        let is_known = precision == 8 && matches!(count, 1 | 3) && self.components.is_empty();
        if !is_known || listed.len() != usize::from(count) || self.height == 0 || self.width == 0 {
            return None;
        }
        for one in listed {
            let (across, down) = (u32::from(one[1] >> 4), u32::from(one[1] & 15));
            self.across = self.across.max(across * SIDE);
            self.down = self.down.max(down * SIDE);
            self.components.push(Component { id: one[0], blocks: across * down, dc: 0, ac: 0 });
        }
        if let [gray] = self.components.as_mut_slice() {
            // The blocks of a scan of one component are coded one by one.
            (gray.blocks, self.across, self.down) = (1, SIDE, SIDE);
        }
        let blocks: u32 = self.components.iter().map(|component| component.blocks).sum();
        let is_sampled = self.components.iter().all(|component| component.blocks > 0);
        (is_sampled && blocks <= MCU_BLOCKS_MAX).then_some(())
    }

    /// Takes tables in; returns the segment with more codes if it lacks codes of DC values.
    fn codes(&mut self, mut body: &[u8]) -> Option<Option<Vec<u8>>> {
        let (mut segment, mut is_completed) = (Vec::new(), false);
        while let Some((&[of], rest)) = body.split_first_chunk() {
            self.tables_read += 1;
            if self.tables_read > TABLES_READ_MAX {
                return None;
            }
            let (mut counts, rest) = rest.split_first_chunk::<16>().map(|(a, b)| (*a, b))?;
            let symbols = counts.iter().map(|count| usize::from(*count)).sum();
            let (symbols, rest) = rest.split_at_checked(symbols)?;
            let mut symbols = symbols.to_vec();
            let is_dc = of >> 4 == 0;
            if is_dc {
                is_completed |= Codes::complete(&mut counts, &mut symbols)?;
            }
            segment.push(of);
            segment.extend_from_slice(&counts);
            segment.extend_from_slice(&symbols);
            let tables = if is_dc { &mut self.dc } else { &mut self.ac };
            *tables.get_mut(usize::from(of & 15))? = Some(Codes::new(&counts, symbols)?);
            body = rest;
        }
        if !is_completed {
            return Some(None);
        }
        let length = u16::try_from(segment.len() + 2).ok()?.to_be_bytes();
        let mut completed = vec![0xff, marker::HUFFMAN_TABLES];
        completed.extend_from_slice(&length);
        completed.append(&mut segment);
        Some(Some(completed))
    }

    fn scan(&mut self, body: &[u8]) -> Option<()> {
        let (&[count], rest) = body.split_first_chunk()?;
        let (listed, kinds) = rest.split_at_checked(2 * usize::from(count))?;
        if self.components.is_empty() || usize::from(count) != self.components.len() {
            return None;
        }
        for (component, listed) in self.components.iter_mut().zip(listed.chunks_exact(2)) {
            (component.dc, component.ac) =
                (usize::from(listed[1] >> 4), usize::from(listed[1] & 15));
            if listed[0] != component.id {
                return None;
            }
        }
        (kinds == [0, 63, 0]).then_some(())
    }

    /// Returns the number of components.
    pub(crate) fn components(&self) -> usize {
        self.components.len()
    }

    /// Returns columns and rows of MCUs.
    pub(crate) fn grid(&self) -> (usize, usize) {
        (self.width.div_ceil(self.across) as usize, self.height.div_ceil(self.down) as usize)
    }

    /// Returns the codes of a component's DC values.
    pub(crate) fn dc_codes(&self, component: usize) -> Option<&Codes> {
        self.dc.get(self.components.get(component)?.dc)?.as_ref()
    }

    /// Reads an MCU, and adds the differences of its DC values to `dc`; returns the position after
    /// it, or `None` behind the file's end.
    pub(crate) fn mcu(
        &self,
        bytes: &[u8],
        mut at: usize,
        dc: &mut [i32; COMPONENTS],
    ) -> Option<usize> {
        if at / 8 >= bytes.len() {
            return None;
        }
        for (number, dc) in dc.iter_mut().enumerate().take(self.components.len()) {
            for _ in 0..self.components[number].blocks {
                let difference = self.difference(bytes, number, at)?;
                *dc += difference.value;
                if !DC_VALUES.contains(dc) {
                    return None;
                }
                at = self.rest_of_block(bytes, number, difference.end)?;
            }
        }
        Some(at)
    }

    /// Reads the difference that a component's block at `at` begins with.
    pub(crate) fn difference(
        &self,
        bytes: &[u8],
        component: usize,
        at: usize,
    ) -> Option<Difference> {
        let read = Bits::read(bytes, at);
        let (value, bits) = self.dc_codes(component)?.difference(read.next)?;
        Some(Difference { value, end: read.after(bytes, bits) })
    }

    /// Returns the position after a component's blocks in an MCU; `at` is after the difference of
    /// the first one.
    pub(crate) fn rest_of_component(
        &self,
        bytes: &[u8],
        component: usize,
        at: usize,
    ) -> Option<usize> {
        let mut at = self.rest_of_block(bytes, component, at)?;
        for _ in 1..self.components.get(component)?.blocks {
            let difference = self.difference(bytes, component, at)?;
            at = self.rest_of_block(bytes, component, difference.end)?;
        }
        Some(at)
    }

    /// Returns the position after a block's other values.
    fn rest_of_block(&self, bytes: &[u8], component: usize, mut at: usize) -> Option<usize> {
        let codes = self.ac.get(self.components.get(component)?.ac)?.as_ref()?;
        let mut left = AC_COEFFICIENTS;
        while left > 0 {
            let read = Bits::read(bytes, at);
            let (count, bits) = codes.coefficients(read.next, left)?;
            at = read.after(bytes, bits);
            left = left.checked_sub(count)?;
        }
        Some(at)
    }
}
