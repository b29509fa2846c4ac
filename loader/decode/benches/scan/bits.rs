//! Bits of an entropy-coded scan: read at any position, and copied to any other.
//!
//! A scan writes a zero after each byte of ones, which is no part of the bits. Eight bytes without
//! such a byte are read and copied at once.

/// Byte after which a scan has a zero.
const ONES: u8 = 0xff;

/// Position in a file: a byte of the scan, and a bit in it from the highest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) byte: usize,
    pub(super) bit: u32,
}

/// The next 32 bits, from the highest on, and their position. The longest code and its value have
/// one less.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits {
    pub(super) next: u32,
    at: Position,
    /// True if none of the bytes has a zero after it.
    is_plain: bool,
}

/// Returns true if one of the eight bytes has ones only.
fn has_ones(word: u64) -> bool {
    const LOWEST: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    // A byte of zeros in the complement.
    (!word).wrapping_sub(LOWEST) & word & HIGHEST != 0
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*eight))
}

/// Returns a byte of the scan, and the place of the next. A marker ends the scan: zeros follow it.
fn byte(bytes: &[u8], at: usize) -> (u8, usize) {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(&ONES), Some(0)) => (ONES, at + 2),
        (Some(&ONES) | None, _) => (0, at),
        (Some(byte), _) => (*byte, at + 1),
    }
}

impl Bits {
    pub(super) fn read(bytes: &[u8], at: Position) -> Self {
        if let Some(word) = word(bytes, at.byte).filter(|word| !has_ones(*word)) {
            return Self { next: ((word << at.bit) >> 32) as u32, at, is_plain: true };
        }
        let (mut word, mut from) = (0_u64, at.byte);
        for _ in 0..5 {
            let (byte, next) = byte(bytes, from);
            (word, from) = (word << 8 | u64::from(byte), next);
        }
        Self { next: ((word << 24 << at.bit) >> 32) as u32, at, is_plain: false }
    }

    /// Returns the position after `count` of the bits.
    pub(super) fn after(&self, bytes: &[u8], count: u32) -> Position {
        let beyond = self.at.bit + count;
        let (whole, bit) = ((beyond / 8) as usize, beyond % 8);
        if self.is_plain {
            return Position { byte: self.at.byte + whole, bit };
        }
        let end = (0..whole).fold(self.at.byte, |at, _| byte(bytes, at).1);
        Position { byte: end, bit }
    }
}

/// Writer of a scan.
pub(super) struct BitWriter<'a> {
    into: &'a mut Vec<u8>,
    /// Bits that fill no eight bytes yet, from the highest on.
    pending: u64,
    /// Number of those, below 64.
    count: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) fn new(into: &'a mut Vec<u8>) -> Self {
        Self { into, pending: 0, count: 0 }
    }

    /// Writes the highest `count` bits of a word whose others are zero.
    #[inline]
    pub(super) fn put(&mut self, bits: u64, count: u32) {
        let all = self.pending | bits >> self.count;
        if self.count + count < 64 {
            (self.pending, self.count) = (all, self.count + count);
            return;
        }
        if has_ones(all) {
            all.to_be_bytes().iter().for_each(|byte| self.put_byte(*byte));
        } else {
            self.into.extend_from_slice(&all.to_be_bytes());
        }
        self.pending = bits.checked_shl(64 - self.count).unwrap_or(0);
        self.count = self.count + count - 64;
    }

    fn put_byte(&mut self, byte: u8) {
        self.into.push(byte);
        if byte == ONES {
            self.into.push(0);
        }
    }

    /// Copies the bits of a scan between two positions.
    pub(super) fn copy(&mut self, bytes: &[u8], from: Position, to: Position) {
        let left_aligned = |byte: u8| u64::from(byte) << 56;
        if from.byte == to.byte {
            let bits = left_aligned(byte(bytes, from.byte).0) << from.bit;
            let count = to.bit - from.bit;
            return self.put(bits & !(u64::MAX >> count), count);
        }
        let mut at = from.byte;
        if from.bit > 0 {
            let (first, next) = byte(bytes, at);
            self.put(left_aligned(first) << from.bit, 8 - from.bit);
            at = next;
        }
        while at < to.byte {
            match word(bytes, at) {
                Some(word) if at + 8 <= to.byte && !has_ones(word) => {
                    self.put(word, 64);
                    at += 8;
                }
                _ => {
                    let (one, next) = byte(bytes, at);
                    self.put(left_aligned(one), 8);
                    if next == at {
                        return;
                    }
                    at = next;
                }
            }
        }
        if to.bit > 0 {
            let (last, _) = byte(bytes, at);
            self.put(left_aligned(last) & !(u64::MAX >> to.bit), to.bit);
        }
    }

    /// Fills the last byte with ones.
    pub(super) fn finish(mut self) {
        let fill = self.count.wrapping_neg() % 8;
        self.put(!(u64::MAX >> fill), fill);
        let left = self.pending.to_be_bytes();
        left[..self.count as usize / 8].iter().for_each(|byte| self.put_byte(*byte));
    }
}
