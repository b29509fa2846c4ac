//! Index of the blocks in a JPEG's scan, and cuts by it.
//!
//! A mark tells where the blocks of some columns begin, and the DC values before them. A cut is a
//! JPEG of its own with the blocks of a rectangle: their bits, row after row, of which the first DC
//! value of each component is written anew, since it is coded as a difference.
//!
//! Only files with all components in one scan, sequential Huffman codes and no restarts have one.

use std::ops::Range;

use super::bits::{BitWriter, Bits, Position};
use super::codes::{self, Codes};

/// Components at most: those of inks.
const COMPONENTS: usize = 4;

/// Coefficients of a block, and pixels of its side.
const COEFFICIENTS: u32 = 64;
const SIDE: u32 = 8;

/// Run of zeros without a value after them.
const ZEROS: u32 = 15;

#[derive(Clone, Copy)]
struct Component {
    id: u8,
    blocks: u32,
    dc: usize,
    ac: usize,
}

/// A file's header, as far as cuts need it.
struct Header {
    /// Segments of a cut.
    copied: Vec<u8>,
    /// Place of the height in them.
    size_at: usize,
    width: u32,
    height: u32,
    /// Pixels of the blocks coded together.
    across: u32,
    down: u32,
    components: Vec<Component>,
    dc: [Option<Codes>; 4],
    ac: [Option<Codes>; 4],
    scan: usize,
}

/// Place of some blocks in the scan.
#[derive(Clone, Copy)]
struct Mark {
    at: Position,
    dc: [i32; COMPONENTS],
}

/// Index of a file's blocks.
pub(super) struct Index {
    /// Columns from mark to mark.
    every: usize,
    columns: usize,
    rows: usize,
    /// Row after row; at last the end.
    marks: Vec<Mark>,
}

/// Rectangle of blocks coded together.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    pub(super) columns: Range<usize>,
    pub(super) rows: Range<usize>,
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)))
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut header = Self {
            copied: bytes.get(..2)?.to_vec(),
            size_at: 0,
            width: 0,
            height: 0,
            across: 0,
            down: 0,
            components: Vec::new(),
            dc: [const { None }; 4],
            ac: [const { None }; 4],
            scan: 0,
        };
        let mut at = 2;
        loop {
            let &[0xff, marker] = bytes.get(at..)?.first_chunk()? else { return None };
            let len = number(bytes, at + 2)? as usize;
            let body = bytes.get(at + 4..at + 2 + len)?;
            match marker {
                0xc0 | 0xc1 => header.frame(body)?,
                0xc4 => header.codes(body)?,
                0xda => header.scan(body)?,
                // Quantisation, and the colours.
                0xdb | 0xe0 | 0xee => {}
                0xdd if number(body, 0)? == 0 => {}
                0xe1..=0xef | 0xfe => {
                    at += 2 + len;
                    continue;
                }
                _ => return None,
            }
            header.copied.extend_from_slice(&bytes[at..at + 2 + len]);
            at += 2 + len;
            if marker == 0xda {
                header.scan = at;
                return Some(header);
            }
        }
    }

    fn frame(&mut self, body: &[u8]) -> Option<()> {
        let (&[precision], &[count]) = (body.first_chunk()?, body.get(5..)?.first_chunk()?);
        (self.height, self.width) = (number(body, 1)?, number(body, 3)?);
        self.size_at = self.copied.len() + 5;
        let listed = body.get(6..)?.chunks_exact(3);
        if precision != 8 || listed.len() != usize::from(count) || listed.len() > COMPONENTS {
            return None;
        }
        for one in listed {
            let (across, down) = (u32::from(one[1] >> 4), u32::from(one[1] & 15));
            self.across = self.across.max(across * SIDE);
            self.down = self.down.max(down * SIDE);
            self.components.push(Component { id: one[0], blocks: across * down, dc: 0, ac: 0 });
        }
        // The blocks of a scan of one component are not coded together.
        (self.components.len() > 1 || self.across * self.down == SIDE * SIDE).then_some(())
    }

    fn codes(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&[of], rest)) = body.split_first_chunk() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let symbols = counts.iter().map(|count| usize::from(*count)).sum();
            let (symbols, rest) = rest.split_at_checked(symbols)?;
            let tables = if of >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            *tables.get_mut(usize::from(of & 15))? = Some(Codes::new(counts, symbols)?);
            body = rest;
        }
        Some(())
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

    /// Returns a DC value's difference, and the position after it.
    fn dc(&self, bytes: &[u8], of: &Component, at: Position) -> Option<(i32, Position)> {
        let read = Bits::read(bytes, at);
        let (size, bits) = self.dc.get(of.dc)?.as_ref()?.decode(read.next)?;
        let size = u32::from(size);
        if size > 11 {
            return None;
        }
        Some((codes::value(read.next << bits, size), read.after(bytes, bits + size)))
    }

    /// Returns the position after a block's other values.
    fn ac(&self, bytes: &[u8], of: &Component, mut at: Position) -> Option<Position> {
        let codes = self.ac.get(of.ac)?.as_ref()?;
        let mut have = 1;
        while have < COEFFICIENTS {
            let read = Bits::read(bytes, at);
            let (symbol, bits) = codes.decode(read.next)?;
            let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            at = read.after(bytes, bits + size);
            match (run, size) {
                (ZEROS, 0) => have += ZEROS + 1,
                (_, 0) => break,
                _ => have += run + 1,
            }
        }
        Some(at)
    }
}

/// A file whose blocks can be indexed and cut.
pub(super) struct Scan<'a> {
    bytes: &'a [u8],
    header: Header,
}

impl<'a> Scan<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Option<Self> {
        Some(Self { bytes, header: Header::read(bytes)? })
    }

    fn grid(&self) -> (usize, usize) {
        let Header { width, height, across, down, .. } = &self.header;
        (width.div_ceil(*across) as usize, height.div_ceil(*down) as usize)
    }

    /// Indexes all blocks, with a mark at each `every` columns.
    pub(super) fn index(&self, every: usize) -> Option<Index> {
        let (columns, rows) = self.grid();
        let mut marks = Vec::with_capacity(rows * columns.div_ceil(every) + 1);
        let mut mark =
            Mark { at: Position { byte: self.header.scan, bit: 0 }, dc: [0; COMPONENTS] };
        for column in (0..rows).flat_map(|_| 0..columns) {
            if column % every == 0 {
                marks.push(mark);
            }
            for (component, dc) in self.header.components.iter().zip(&mut mark.dc) {
                for _ in 0..component.blocks {
                    let (difference, at) = self.header.dc(self.bytes, component, mark.at)?;
                    *dc += difference;
                    mark.at = self.header.ac(self.bytes, component, at)?;
                }
            }
        }
        marks.push(mark);
        Some(Index { every, columns, rows, marks })
    }

    /// Writes a JPEG of these blocks, which begin and end at marks.
    pub(super) fn cut(&self, index: &Index, blocks: &Blocks, into: &mut Vec<u8>) -> Option<()> {
        let Header { width, height, across, down, components, .. } = &self.header;
        into.clear();
        into.extend_from_slice(&self.header.copied);
        let side = |blocks: &Range<usize>, each: u32, all: u32| {
            (blocks.end as u32 * each).min(all) - blocks.start as u32 * each
        };
        let (width, height) =
            (side(&blocks.columns, *across, *width), side(&blocks.rows, *down, *height));
        let size = self.header.size_at..self.header.size_at + 4;
        into[size].copy_from_slice(&(height << 16 | width).to_be_bytes());
        let mut writer = BitWriter::new(into);
        let mut before = [0; COMPONENTS];
        for row in blocks.rows.clone() {
            let (begin, end) =
                (index.mark(row, blocks.columns.start), index.mark(row, blocks.columns.end));
            let (mut from, mut at) = (begin.at, begin.at);
            for (place, component) in components.iter().enumerate() {
                writer.copy(self.bytes, from, at);
                let (difference, after) = self.header.dc(self.bytes, component, at)?;
                let codes = self.header.dc.get(component.dc)?.as_ref()?;
                let (bits, count) = codes.encode(begin.dc[place] + difference - before[place])?;
                writer.put(bits, count);
                from = after;
                if place + 1 < components.len() {
                    at = self.header.ac(self.bytes, component, after)?;
                    for _ in 1..component.blocks {
                        let (_, after) = self.header.dc(self.bytes, component, at)?;
                        at = self.header.ac(self.bytes, component, after)?;
                    }
                }
            }
            writer.copy(self.bytes, from, end.at);
            before = end.dc;
        }
        writer.finish();
        into.extend_from_slice(&[0xff, 0xd9]);
        Some(())
    }
}

impl Index {
    fn mark(&self, row: usize, column: usize) -> &Mark {
        let in_row = self.columns.div_ceil(self.every);
        &self.marks[row * in_row + column.div_ceil(self.every)]
    }

    /// Returns the rectangle from mark to mark around these pixels of blocks of this size.
    pub(super) fn around(
        &self,
        x: Range<u32>,
        y: Range<u32>,
        (across, down): (u32, u32),
    ) -> Blocks {
        let first = (x.start / across) as usize / self.every * self.every;
        let end = (x.end.div_ceil(across) as usize).next_multiple_of(self.every);
        let rows = (y.start / down) as usize..(y.end.div_ceil(down) as usize).min(self.rows);
        Blocks { columns: first..end.min(self.columns), rows }
    }

    pub(super) fn marks(&self) -> usize {
        self.marks.len()
    }
}
