//! Huffman codes of a JPEG (ITU-T T.81, annexes C and F).

/// Bits of the table that finds most codes.
const SHORT_BITS: u32 = 9;

/// Bits of the longest code.
const LONGEST: usize = 16;

/// Symbols of a table at most: each is a byte.
const SYMBOLS_MAX: usize = 256;

/// Categories of differences between DC values of 8-bit images.
const CATEGORIES: usize = 12;

/// Coefficients of a block after its DC value.
pub(crate) const AC_COEFFICIENTS: u32 = 63;

/// Symbol of sixteen zeros.
const ZEROS: u8 = 0xf0;

/// One table of codes.
pub(crate) struct Codes {
    /// Symbol and bits of the code that the next [`SHORT_BITS`] begin with; 0 bits if it is longer.
    short: [(u8, u8); 1 << SHORT_BITS],
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
    pub(crate) fn new(counts: &[u8; LONGEST], symbols: Vec<u8>) -> Option<Self> {
        let mut codes = Self {
            short: [(0, 0); 1 << SHORT_BITS],
            ends: [0; LONGEST + 1],
            places: [0; LONGEST + 1],
            symbols: Vec::new(),
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
        codes.symbols = symbols;
        Some(codes)
    }

    /// Adds codes of the categories that a table of DC values lacks. Tables that were made for one
    /// image lack some, and a cut has other differences. The longest codes come last, so the ones
    /// that were there stay as they are.
    ///
    /// Returns true if it added some; `None` if there is no room for them.
    pub(crate) fn complete(counts: &mut [u8; LONGEST], symbols: &mut Vec<u8>) -> Option<bool> {
        let before = symbols.len();
        let missing =
            (0..CATEGORIES as u8).filter(|category| !symbols[..before].contains(category));
        let missing: Vec<u8> = missing.collect();
        let used: u32 =
            (1..).zip(counts.iter()).map(|(bits, count)| u32::from(*count) << (16 - bits)).sum();
        // A code of ones alone is not allowed (T.81, C.2).
        if used + missing.len() as u32 >= 1 << LONGEST {
            return None;
        }
        counts[LONGEST - 1] = counts[LONGEST - 1].checked_add(missing.len() as u8)?;
        symbols.extend(missing);
        if symbols.len() > SYMBOLS_MAX {
            return None;
        }
        Some(symbols.len() > before)
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
    fn decode(&self, next: u32) -> Option<(u8, u32)> {
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

    /// Returns the next difference between DC values, and its bits.
    pub(crate) fn difference(&self, next: u32) -> Option<(i32, u32)> {
        let (category, bits) = self.decode(next)?;
        let category = u32::from(category);
        (category < CATEGORIES as u32).then(|| (value(next << bits, category), bits + category))
    }

    /// Returns the coefficients that the next code and its value stand for, of `left` ones, and
    /// their bits.
    #[inline]
    pub(crate) fn coefficients(&self, next: u32, left: u32) -> Option<(u32, u32)> {
        let (symbol, bits) = self.decode(next)?;
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let count = if size > 0 || symbol == ZEROS { run + 1 } else { left };
        Some((count, bits + size))
    }

    /// Returns the code of a difference between DC values and its bits, from the highest on, and
    /// their number; `None` if the table has no code for it.
    pub(crate) fn encode(&self, difference: i32) -> Option<(u64, u32)> {
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
fn value(next: u32, bits: u32) -> i32 {
    if bits == 0 {
        return 0;
    }
    let value = (next >> (32 - bits)) as i32;
    if value < 1 << (bits - 1) { value - (1 << bits) + 1 } else { value }
}
