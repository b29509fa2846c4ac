//! Blocks of a file, and their checksums as documents write them.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use serde::{Deserialize, Deserializer, Serializer, de};

use crate::parts::FILE_BYTES_MAX;

/// Bytes under one CRC32C, the last block of a file shorter: so small that a reader checks a range
/// without reading much more, and so large that a terabyte's checksums take 1 MiB.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// Digits of one checksum in a document.
const DIGITS: usize = 8;

/// Returns the number of blocks of a file that is `len` bytes long.
#[must_use]
pub const fn block_count(len: u64) -> u64 {
    len.div_ceil(BLOCK_BYTES)
}

/// Returns the checksum of each block of some bytes.
pub(crate) fn of(bytes: &[u8]) -> Vec<u32> {
    // 4 MiB fit any platform.
    bytes.chunks(BLOCK_BYTES as usize).map(crc32c).collect()
}

/// Rejects a length that no store takes, and checksums that are not those of its blocks.
pub(crate) fn check(len: u64, blocks: &[u32]) -> Result<()> {
    let refuse = |what: &str| {
        let error = Error::new(ErrorKind::Invalid, what.to_owned());
        Err(error.at("len", len).at("blocks", blocks.len()))
    };
    if len > FILE_BYTES_MAX {
        return refuse("the file is larger than stores take")
            .map_err(|error| error.at("limit", FILE_BYTES_MAX));
    }
    if blocks.len() as u64 != block_count(len) {
        return refuse("the file does not have one checksum per block");
    }
    Ok(())
}

/// Writes checksums as one text of eight digits each: half of what a list of numbers takes.
pub(crate) fn serialize<S: Serializer>(blocks: &[u32], into: S) -> Result<S::Ok, S::Error> {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(blocks.len() * DIGITS);
    for crc in blocks {
        // A string takes everything.
        let _ = write!(text, "{crc:08x}");
    }
    into.serialize_str(&text)
}

/// Reads what [`serialize`] wrote.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    let text = String::deserialize(from)?;
    let (digits, rest) = text.as_bytes().as_chunks::<DIGITS>();
    if !rest.is_empty() {
        return Err(de::Error::custom("checksums have eight digits each"));
    }
    digits
        .iter()
        .map(crc)
        .collect::<Option<_>>()
        .ok_or_else(|| de::Error::custom("checksums are written in lower-case hexadecimal digits"))
}

fn crc(digits: &[u8; DIGITS]) -> Option<u32> {
    digits.iter().try_fold(0, |crc, digit| Some(crc << 4 | u32::from(hex_digit(*digit)?)))
}

/// Returns the value of a lower-case hexadecimal digit: one value, one text.
pub(crate) fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    struct Document(#[serde(with = "super")] Vec<u32>);

    #[test]
    fn blocks_are_counted_and_lengths_bounded() {
        for (len, count) in [(0, 0), (1, 1), (BLOCK_BYTES, 1), (BLOCK_BYTES + 1, 2)] {
            assert_eq!(block_count(len), count, "{len}");
            assert!(check(len, &vec![0; count as usize]).is_ok(), "{len}");
            let error = check(len, &vec![0; count as usize + 1]).unwrap_err();
            assert_eq!(
                (error.kind(), error.place("len")),
                (ErrorKind::Invalid, Some(&*len.to_string()))
            );
        }
        for len in [FILE_BYTES_MAX + 1, u64::MAX] {
            let error = check(len, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.place("limit").is_some());
        }
    }

    #[test]
    fn checksums_have_one_text() {
        let text = serde_json::to_string(&Document(vec![0xE306_9283, 7])).unwrap();
        assert_eq!(text, "\"e306928300000007\"");
        for wrong in ["\"e30692830000000\"", "\"E3069283\"", "\"+1234567\"", "\"é23456é\"", "[1]"]
        {
            assert!(serde_json::from_str::<Document>(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn checksums_survive_their_text(blocks in prop::collection::vec(any::<u32>(), 0..9)) {
            let document = Document(blocks);
            let text = serde_json::to_string(&document).unwrap();
            prop_assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
        }
    }
}
