//! Index of a scan, kept as a segment of the file before the scan's own.
//!
//! | bytes | content |
//! |---|---|
//! | 2, 2 | marker APP10, and the length behind it |
//! | 8 | `FOREBAY`, and a zero |
//! | 1 | version, 1 |
//! | 1 | columns from mark to mark, as a power of two; 0 if the scan cannot be read and nothing is indexed |
//! | 4 | CRC32C of all bytes behind the segment |
//! | 4 or 7 each | marks, row after row, and one of the end |
//!
//! A mark is a number of 32 bits for one component, and of 56 for three: from the highest on, 20
//! bits that its MCU lies behind the mark before it (the first one's: behind the scan's begin), and
//! 12 for the DC value before it of each component. All numbers are big-endian.

use std::ops::{Range, RangeInclusive};

use crc_fast::crc32_iscsi as crc32c;

use crate::bits::next_byte;
use crate::header::{COMPONENTS, END, Header, Unfit};
use crate::segments::segments;

/// Marker of the segment, without its 0xff: APP10.
pub(crate) const MARKER: u8 = 0xea;

/// First bytes of the segment's content.
pub(crate) const NAME: &[u8; 8] = b"FOREBAY\0";

const VERSION: u8 = 1;

/// Bytes of the content before the marks.
const HEAD_BYTES: usize = NAME.len() + 2 + size_of::<u32>();

/// Bytes of a marker and a length, and the largest length, which counts itself.
const FRAME_BYTES: usize = 4;
const LENGTH_MAX: usize = 65_535;

/// Fewest columns from mark to mark. More columns make a smaller index and cuts with more MCUs than
/// the crop needs; `docs/decisions/0042-index-in-the-photo.md` has figures.
const EVERY_MIN: usize = 2;

/// Columns from mark to mark as powers of two: up to all columns of the widest image.
const POWERS: RangeInclusive<u8> = 1..=14;

/// Bits of a distance between marks, and of a DC value.
const DISTANCE_BITS: u32 = 20;
const DC_BITS: u32 = 12;

/// Outcome of looking at the first bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// The file gets an index of so many bytes.
    Index(usize),
    /// The file has an index already, or cannot have one.
    AsIs,
    /// More bytes are needed to tell.
    More,
}

/// Place of an MCU in the scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Position in the file in bits.
    pub(crate) at: usize,
    /// DC values before it, by component.
    pub(crate) dc: [i32; COMPONENTS],
}

/// Layout of a file's marks.
#[derive(Debug, Clone, Copy)]
struct Layout {
    every: usize,
    columns: usize,
    rows: usize,
    components: usize,
}

/// A file with an index.
pub struct Indexed<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) header: Header,
    layout: Layout,
    marks: &'a [u8],
    /// Checksum of all bytes behind the index.
    crc: u32,
}

/// Tells from the first bytes of a JPEG how many bytes [`add_index`] adds.
#[must_use]
pub fn plan(head: &[u8]) -> Planned {
    match Header::read(head) {
        Ok(header) if header.index.is_some() => Planned::AsIs,
        Ok(header) => Planned::Index(Layout::of(&header).segment_bytes()),
        Err(Unfit::Kind) => Planned::AsIs,
        Err(Unfit::Cut) => Planned::More,
    }
}

/// Appends `photo` with an index to `into`: as many bytes more as [`plan`] said. The index is empty
/// if the scan is damaged.
///
/// Returns the number of bytes added, 0 where the plan is [`Planned::AsIs`].
pub fn add_index(photo: &[u8], into: &mut Vec<u8>) -> usize {
    let header = Header::read(photo).ok().filter(|header| header.index.is_none());
    let Some(header) = header else {
        into.extend_from_slice(photo);
        return 0;
    };
    let layout = Layout::of(&header);
    let (before, behind) = photo.split_at(header.scan_header);
    into.extend_from_slice(before);
    let begin = into.len();
    let length = (layout.segment_bytes() - 2) as u16;
    into.extend_from_slice(&[0xff, MARKER]);
    into.extend_from_slice(&length.to_be_bytes());
    into.extend_from_slice(NAME);
    into.push(VERSION);
    into.push(layout.every.trailing_zeros() as u8);
    into.extend_from_slice(&crc32c(behind).to_be_bytes());
    if layout.write_marks(&header, photo, into).is_none() {
        into[begin + FRAME_BYTES + NAME.len() + 1] = 0;
    }
    into.resize(begin + layout.segment_bytes(), 0);
    into.extend_from_slice(behind);
    layout.segment_bytes()
}

impl Layout {
    fn of(header: &Header) -> Self {
        let ((columns, rows), components) = (header.grid(), header.components());
        let mut layout = Self { every: EVERY_MIN, columns, rows, components };
        // A mark for each row fits: an image has at most 8,192 rows of MCUs.
        while layout.segment_bytes() > LENGTH_MAX + 2 && layout.every < columns {
            layout.every *= 2;
        }
        layout
    }

    fn in_row(&self) -> usize {
        self.columns.div_ceil(self.every)
    }

    fn marks(&self) -> usize {
        self.rows * self.in_row() + 1
    }

    fn mark_bytes(&self) -> usize {
        (DISTANCE_BITS as usize + self.components * DC_BITS as usize) / 8
    }

    fn segment_bytes(&self) -> usize {
        FRAME_BYTES + HEAD_BYTES + self.marks() * self.mark_bytes()
    }

    /// Appends the marks of `photo`; `None` if its scan cannot be read to its end.
    fn write_marks(&self, header: &Header, photo: &[u8], into: &mut Vec<u8>) -> Option<()> {
        let mut mark = Mark { at: header.scan * 8, dc: [0; COMPONENTS] };
        let mut last = mark.at;
        for column in (0..self.rows).flat_map(|_| 0..self.columns) {
            if column % self.every == 0 {
                self.write(mark, last, into)?;
                last = mark.at;
            }
            mark.at = header.mcu(photo, mark.at, &mut mark.dc)?;
        }
        self.write(mark, last, into)?;
        let end = next_byte(photo, mark.at);
        // The first byte of the end's marker is the second of the last pair.
        let mut pairs = photo.get(header.scan..=end)?.windows(2);
        let has_marker = pairs.any(|pair| pair[0] == 0xff && pair[1] != 0);
        (!has_marker && photo[end..].starts_with(&END)).then_some(())
    }

    fn write(&self, mark: Mark, last: usize, into: &mut Vec<u8>) -> Option<()> {
        let distance = (mark.at - last) as u64;
        if distance >> DISTANCE_BITS != 0 {
            return None;
        }
        let all = mark.dc[..self.components]
            .iter()
            .fold(distance, |all, dc| all << DC_BITS | (*dc as u64 & ((1 << DC_BITS) - 1)));
        into.extend_from_slice(&all.to_be_bytes()[8 - self.mark_bytes()..]);
        Some(())
    }
}

impl<'a> Indexed<'a> {
    /// Returns a JPEG with its index; `None` if it has none.
    #[must_use]
    pub fn open(bytes: &'a [u8]) -> Option<Self> {
        // Most files have none, and a header's tables take longer.
        segments(bytes).find(|(marker, body)| *marker == MARKER && body.starts_with(NAME))?;
        let header = Header::read(bytes).ok()?;
        let Range { start, end } = header.index.clone()?;
        let (head, marks) = bytes[start + FRAME_BYTES..end].split_at_checked(HEAD_BYTES)?;
        let (&[version, power], crc) = head[NAME.len()..].split_first_chunk()?;
        let every = POWERS.contains(&power).then(|| 1 << power)?;
        let crc = u32::from_be_bytes(*crc.first_chunk()?);
        let (columns, rows) = header.grid();
        let layout = Layout { every, columns, rows, components: header.components() };
        let is_ours = version == VERSION
            && marks.len() == layout.marks() * layout.mark_bytes()
            && end == header.scan_header;
        is_ours.then_some(Self { bytes, header, layout, marks, crc })
    }

    /// Returns true if the index is of this very scan.
    pub(crate) fn is_bound(&self) -> bool {
        crc32c(&self.bytes[self.header.scan_header..]) == self.crc
    }

    /// Returns the columns from mark to mark.
    pub(crate) fn every(&self) -> usize {
        self.layout.every
    }

    /// Returns the marks at the begin and the end of these columns in each row; the columns begin
    /// and end at marks.
    pub(crate) fn rows(
        &self,
        columns: Range<usize>,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (Mark, Mark)> {
        let in_row = self.layout.in_row();
        let (begin, end) = (columns.start / self.every(), columns.end.div_ceil(self.every()));
        let mut marks = Marks { index: self, next: 0, at: self.header.scan * 8 };
        rows.map(move |row| {
            let from = marks.seek(row * in_row + begin);
            (from, marks.seek(row * in_row + end))
        })
    }
}

/// Reader of marks, whose positions are sums.
struct Marks<'a> {
    index: &'a Indexed<'a>,
    next: usize,
    /// Position of the mark read last.
    at: usize,
}

impl Marks<'_> {
    /// Returns the mark `number`, which is not before the last one.
    fn seek(&mut self, number: usize) -> Mark {
        let (marks, size) = (self.index.marks, self.index.layout.mark_bytes());
        let passed = &marks[self.next * size..(number + 1) * size];
        let distances = passed.chunks_exact(size).map(|mark| {
            usize::from(mark[0]) << 12 | usize::from(mark[1]) << 4 | usize::from(mark[2]) >> 4
        });
        self.at += distances.sum::<usize>();
        self.next = number + 1;
        let mark = &marks[number * size..][..size];
        let mut values = mark.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let mut dc = [0; COMPONENTS];
        for dc in dc[..self.index.layout.components].iter_mut().rev() {
            // The sign is the highest of the bits.
            *dc = ((values as i32) << (32 - DC_BITS)) >> (32 - DC_BITS);
            values >>= DC_BITS;
        }
        Mark { at: self.at, dc }
    }
}
