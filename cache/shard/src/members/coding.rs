//! Numbers in as few bytes as their range needs.
//!
//! A number alone is written in base 128, a list as its least number and the differences to it in
//! as many bits as the largest difference has. A reader takes nothing that it did not check.

use forebay_error::{Error, ErrorKind, Result};

/// Largest number of bytes of a number in base 128.
const VARINT_MAX: u32 = 10;

/// Bits of a digit in base 128.
const DIGIT_BITS: u32 = 7;

/// Most bits of a packed number.
const WIDTH_MAX: u8 = 64;

/// Appends a number in base 128, its lowest digit first; the last digit has no high bit.
pub(super) fn put(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= DIGIT_BITS;
    }
    into.push(number as u8);
}

/// Appends a text behind its length.
pub(super) fn put_text(text: &str, into: &mut Vec<u8>) {
    put(text.len() as u64, into);
    into.extend_from_slice(text.as_bytes());
}

/// Maps numbers of small absolute value to small ones.
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Reverses [`zigzag`].
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Appends numbers: the least, the bits of a difference, the differences.
pub(super) fn put_packed(numbers: &[u64], into: &mut Vec<u8>) {
    let least = numbers.iter().copied().min().unwrap_or(0);
    let most = numbers.iter().copied().max().unwrap_or(0);
    let width = u64::BITS - (most - least).leading_zeros();
    put(least, into);
    into.push(width as u8);
    let (mut bits, mut held) = (0_u128, 0_u32);
    for number in numbers {
        bits |= u128::from(number - least) << held;
        held += width;
        while held >= u8::BITS {
            into.push(bits as u8);
            bits >>= u8::BITS;
            held -= u8::BITS;
        }
    }
    if held > 0 {
        into.push(bits as u8);
    }
}

/// Returns the error of bytes that no writer wrote.
pub(super) fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the member index is damaged: {what}"))
        .advise("write it again with `forebay index --members`")
}

/// The rest of a block, read from its beginning.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| wrong("a block ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Takes a number in base 128, in its shortest form alone.
    pub(super) fn number(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for place in 0..VARINT_MAX {
            let byte = self.byte()?;
            let digit = u64::from(byte & 0x7f);
            let shift = place * DIGIT_BITS;
            if shift + (u64::BITS - digit.leading_zeros()) > u64::BITS {
                return Err(wrong("a number overflows"));
            }
            number |= digit << shift;
            if byte & 0x80 == 0 {
                let is_shortest = digit > 0 || place == 0;
                return is_shortest.then_some(number).ok_or_else(|| wrong("a number is too long"));
            }
        }
        Err(wrong("a number overflows"))
    }

    /// Takes a number that is at most `most`.
    pub(super) fn up_to(&mut self, most: usize) -> Result<usize> {
        let number = usize::try_from(self.number()?).ok().filter(|number| *number <= most);
        number.ok_or_else(|| wrong("a number exceeds its limit"))
    }

    pub(super) fn text(&mut self) -> Result<&'a str> {
        let len = self.up_to(self.0.len())?;
        std::str::from_utf8(self.take(len)?).map_err(|_| wrong("a text is not UTF-8"))
    }

    /// Takes `count` numbers that [`put_packed`] wrote. `count` must be bounded by the caller.
    pub(super) fn packed(&mut self, count: usize) -> Result<Vec<u64>> {
        let least = self.number()?;
        let width = self.byte()?;
        if width > WIDTH_MAX {
            return Err(wrong("a number has too many bits"));
        }
        let width = u32::from(width);
        let len = (count as u64 * u64::from(width)).div_ceil(u64::from(u8::BITS));
        let len = usize::try_from(len).map_err(|_| wrong("a list is too long"))?;
        let mut packed = self.take(len)?.iter();
        let (mut bits, mut held) = (0_u128, 0_u32);
        let mask = (1_u128 << width) - 1;
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            while held < width {
                let byte = packed.next().ok_or_else(|| wrong("a block ends early"))?;
                bits |= u128::from(*byte) << held;
                held += u8::BITS;
            }
            let difference = (bits & mask) as u64;
            bits >>= width;
            held -= width;
            let number = least.checked_add(difference);
            numbers.push(number.ok_or_else(|| wrong("a number overflows"))?);
        }
        Ok(numbers)
    }

    /// Rejects bytes that are left.
    pub(super) fn end(self) -> Result<()> {
        self.0.is_empty().then_some(()).ok_or_else(|| wrong("bytes are left at its end"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_numbers_come_back(
            base: u64, spread in 0_u32..=64, raw in prop::collection::vec(any::<u64>(), 0..200),
        ) {
            let mask = if spread == 64 { u64::MAX } else { (1 << spread) - 1 };
            let numbers: Vec<u64> = raw.iter().map(|n| base.saturating_add(n & mask)).collect();
            let mut bytes = Vec::new();
            put_packed(&numbers, &mut bytes);
            prop_assert!(bytes.len() <= 11 + (numbers.len() * spread as usize).div_ceil(8));
            let mut rest = Bytes(&bytes);
            prop_assert_eq!(rest.packed(numbers.len()).unwrap(), numbers);
            rest.end().unwrap();
        }

        #[test]
        fn numbers_have_one_form(number: u64, signed: i64) {
            let mut bytes = Vec::new();
            put(number, &mut bytes);
            prop_assert_eq!(Bytes(&bytes).number().unwrap(), number);
            let last = bytes.len() - 1;
            bytes[last] |= 0x80;
            bytes.push(0);
            prop_assert!(Bytes(&bytes).number().is_err());
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }

        #[test]
        fn hostile_bytes_are_rejected_or_read(
            bytes in prop::collection::vec(any::<u8>(), 0..64), count in 0_usize..64,
        ) {
            // Neither panics nor allocates beyond what it was told.
            let _ = Bytes(&bytes).packed(count);
            let _ = Bytes(&bytes).number();
            let _ = Bytes(&bytes).text().map(str::len);
        }
    }
}
