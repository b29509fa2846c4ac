//! Bits of an entropy-coded scan: read at any position, and copied to any other.
//!
//! A scan has a zero after each byte of ones; it is no part of the bits. Positions count the bits
//! of the file, with those zeros. Eight bytes without a byte of ones are read and copied at once.

/// Byte after which a scan has a zero.
const ONES: u8 = 0xff;

/// Bits of a byte, and of the words in which they are copied.
const BYTE_BITS: usize = 8;
const WORD_BITS: u32 = 64;

/// The next 32 bits, from the highest on. The longest code and its value have one less.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bits {
    pub(crate) next: u32,
    at: usize,
    /// True if none of the bytes has a zero after it.
    is_plain: bool,
}

/// Marks bytes of ones in their highest bit. Bytes before the first one may be marked, too. Zero if
/// there is none.
fn ones(word: u64) -> u64 {
    const LOWEST: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    // A byte of zeros in the complement.
    (!word).wrapping_sub(LOWEST) & word & HIGHEST
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*eight))
}

/// Returns a byte of the scan, and the place of the next, which is always a later one. A scan that
/// was cut off has zeros in place of what is missing.
fn byte(bytes: &[u8], at: usize) -> (u8, usize) {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(&ONES), Some(0)) => (ONES, at + 2),
        (Some(&ONES) | None, _) => (0, at + 1),
        (Some(byte), _) => (*byte, at + 1),
    }
}

/// Returns the place of the first whole byte at or after a position.
pub(crate) fn next_byte(bytes: &[u8], at: usize) -> usize {
    match at % BYTE_BITS {
        0 => at / BYTE_BITS,
        _ => byte(bytes, at / BYTE_BITS).1,
    }
}

impl Bits {
    #[inline]
    pub(crate) fn read(bytes: &[u8], at: usize) -> Self {
        let (from, bit) = (at / BYTE_BITS, at % BYTE_BITS);
        if let Some(word) = word(bytes, from).filter(|word| ones(*word) == 0) {
            return Self { next: ((word << bit) >> 32) as u32, at, is_plain: true };
        }
        let (mut word, mut from) = (0_u64, from);
        for _ in 0..5 {
            let (byte, next) = byte(bytes, from);
            (word, from) = (word << 8 | u64::from(byte), next);
        }
        Self { next: ((word << 24 << bit) >> 32) as u32, at, is_plain: false }
    }

    /// Returns the position after `count` of the bits.
    #[inline]
    pub(crate) fn after(&self, bytes: &[u8], count: u32) -> usize {
        let beyond = self.at + count as usize;
        if self.is_plain {
            return beyond;
        }
        let (from, whole) = (self.at / BYTE_BITS, beyond / BYTE_BITS - self.at / BYTE_BITS);
        let end = (0..whole).fold(from, |at, _| byte(bytes, at).1);
        end * BYTE_BITS + beyond % BYTE_BITS
    }
}

/// Writer of a scan.
pub(crate) struct BitWriter<'a> {
    into: &'a mut Vec<u8>,
    /// Bits that fill no eight bytes yet, from the highest on.
    pending: u64,
    /// Number of those, below 64.
    count: u32,
}

impl<'a> BitWriter<'a> {
    pub(crate) fn new(into: &'a mut Vec<u8>) -> Self {
        Self { into, pending: 0, count: 0 }
    }

    /// Writes the highest `count` bits of a word whose others are zero.
    #[inline]
    pub(crate) fn put(&mut self, bits: u64, count: u32) {
        let all = self.pending | bits >> self.count;
        if self.count + count < WORD_BITS {
            (self.pending, self.count) = (all, self.count + count);
            return;
        }
        self.write(&all.to_be_bytes(), ones(all) == 0);
        self.pending = bits.checked_shl(WORD_BITS - self.count).unwrap_or(0);
        self.count = self.count + count - WORD_BITS;
    }

    /// Writes whole bytes, eight at most; `is_plain` if none of them is of ones.
    #[inline]
    fn write(&mut self, bytes: &[u8], is_plain: bool) {
        if is_plain {
            return self.into.extend_from_slice(bytes);
        }
        let (mut stuffed, mut len) = ([0; 16], 0);
        for &byte in bytes {
            stuffed[len] = byte;
            // The zero is there already.
            len += 1 + usize::from(byte == ONES);
        }
        self.into.extend_from_slice(&stuffed[..len]);
    }

    /// Copies the bits of a scan between two positions, of which `to` is not before `from`.
    pub(crate) fn copy(&mut self, bytes: &[u8], from: usize, to: usize) {
        let left_aligned = |byte: u8| u64::from(byte) << 56;
        let (mut at, bit) = (from / BYTE_BITS, (from % BYTE_BITS) as u32);
        let (end, last_bit) = (to / BYTE_BITS, (to % BYTE_BITS) as u32);
        if at == end {
            let count = last_bit - bit;
            let bits = left_aligned(byte(bytes, at).0) << bit;
            return self.put(bits & !(u64::MAX >> count), count);
        }
        if bit > 0 {
            let (first, next) = byte(bytes, at);
            self.put(left_aligned(first) << bit, BYTE_BITS as u32 - bit);
            at = next;
        }
        while at < end {
            if let Some(word) = word(bytes, at).filter(|_| at + 8 <= end) {
                // The bytes before the first that may be of ones.
                let plain = ones(word).leading_zeros() & !(BYTE_BITS as u32 - 1);
                if plain > 0 {
                    self.put(word & !u64::MAX.checked_shr(plain).unwrap_or(0), plain);
                    at += plain as usize / BYTE_BITS;
                    continue;
                }
            }
            let (one, next) = byte(bytes, at);
            self.put(left_aligned(one), BYTE_BITS as u32);
            at = next;
        }
        if last_bit > 0 {
            let (last, _) = byte(bytes, at);
            self.put(left_aligned(last) & !(u64::MAX >> last_bit), last_bit);
        }
    }

    /// Fills the last byte with ones.
    pub(crate) fn finish(mut self) {
        let fill = self.count.wrapping_neg() % BYTE_BITS as u32;
        self.put(!(u64::MAX >> fill), fill);
        let left = self.pending.to_be_bytes();
        self.write(&left[..self.count as usize / BYTE_BITS], false);
    }
}
