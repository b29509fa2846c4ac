//! Huffman codes of a JPEG.

/// Bits of the table that most codes are found in.
const SHORT_BITS: u32 = 9;

/// Bits of the longest code.
const LONGEST: usize = 16;

/// Categories of differences between DC values.
const CATEGORIES: usize = 12;

/// One table of codes.
#[derive(Clone)]
pub(super) struct Codes {
    /// Symbol and bits of the code that the next [`SHORT_BITS`] begin with; 0 bits if it is longer.
    short: Vec<(u8, u8)>,
    /// For each length, the code after its last one,
    ends: [u32; LONGEST + 1],
    /// and the distance from a code to the place of its symbol.
    places: [i32; LONGEST + 1],
    symbols: Vec<u8>,
    /// Code and bits of the first symbols, which are categories in a table for DC values.
    written: [(u16, u8); CATEGORIES],
}

impl Codes {
    /// Builds the table of these symbols, in the order of their codes; `counts` of each length.
    pub(super) fn new(counts: &[u8; LONGEST], symbols: &[u8]) -> Option<Self> {
        let mut codes = Self {
            short: vec![(0, 0); 1 << SHORT_BITS],
            ends: [0; LONGEST + 1],
            places: [0; LONGEST + 1],
            symbols: symbols.to_vec(),
            written: [(0, 0); CATEGORIES],
        };
        let (mut code, mut place) = (0_u32, 0_usize);
        for (bits, count) in (1..).zip(counts) {
            codes.places[bits] = place as i32 - code as i32;
            for _ in 0..*count {
                let symbol = *symbols.get(place)?;
                if code >= 1 << bits {
                    return None;
                }
                codes.note(code, bits as u32, symbol);
                (code, place) = (code + 1, place + 1);
            }
            codes.ends[bits] = code;
            code <<= 1;
        }
        Some(codes)
    }

    fn note(&mut self, code: u32, bits: u32, symbol: u8) {
        if let Some(written) = self.written.get_mut(usize::from(symbol)) {
            *written = (code as u16, bits as u8);
        }
        if bits <= SHORT_BITS {
            let free = SHORT_BITS - bits;
            let begin = (code << free) as usize;
            self.short[begin..begin + (1 << free)].fill((symbol, bits as u8));
        }
    }

    /// Returns the next symbol, and the bits of its code.
    #[inline]
    pub(super) fn decode(&self, next: u32) -> Option<(u8, u32)> {
        let (symbol, bits) = self.short[(next >> (32 - SHORT_BITS)) as usize];
        if bits > 0 {
            return Some((symbol, u32::from(bits)));
        }
        (SHORT_BITS as usize + 1..=LONGEST).find_map(|bits| {
            let code = next >> (32 - bits);
            let place = (code < self.ends[bits]).then(|| code as i32 + self.places[bits])?;
            Some((*self.symbols.get(usize::try_from(place).ok()?)?, bits as u32))
        })
    }

    /// Returns the code of a difference between DC values and its bits, from the highest on, and
    /// their number; `None` if the table has no code for it.
    pub(super) fn encode(&self, difference: i32) -> Option<(u64, u32)> {
        let category = 32 - difference.unsigned_abs().leading_zeros();
        let (code, bits) = *self.written.get(category as usize)?;
        if bits == 0 {
            return None;
        }
        // Negative values are written as their complement.
        let value = (difference + (difference >> 31)) as u32 & ((1 << category) - 1);
        let count = u32::from(bits) + category;
        let all = u64::from(code) << category | u64::from(value);
        Some((all << (64 - count), count))
    }
}

/// Returns the value that `bits` of a scan stand for.
pub(super) fn value(next: u32, bits: u32) -> i32 {
    if bits == 0 {
        return 0;
    }
    let value = (next >> (32 - bits)) as i32;
    if value < 1 << (bits - 1) { value - (1 << bits) + 1 } else { value }
}
