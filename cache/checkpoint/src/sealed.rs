//! Seal of a document: JSON text whose last field is the CRC32C of all bytes before that field.
//!
//! The seal comes before the meaning: bytes that do not match it are not parsed. It is the same in
//! all formats, so a newer document is told from a damaged one. A format may get fields that
//! older releases ignore; a field that they may not ignore needs another format.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format this version writes and reads.
const FORMAT: u32 = 1;

/// First bytes of every document; the number of its format follows.
const START: &[u8] = b"{\"format\":";

/// Bytes of a seal: a fixed length, by which it is found from the end.
const SEAL_BYTES: usize = b",\"crc\":\"00000000\"}\n".len();

/// Longest document in bytes: it has room for the checksums of 128 TiB, and a daemon for it.
pub const DOCUMENT_BYTES_MAX: usize = 256 << 20;

/// A document of a checkpoint.
pub(crate) trait Document: Serialize + DeserializeOwned {
    /// Noun in errors.
    const NOUN: &'static str;

    /// Rejects what contradicts itself.
    ///
    /// # Errors
    /// `Invalid` naming the field.
    fn check(&self) -> Result<()>;
}

/// Returns the document as sealed bytes.
///
/// # Errors
/// `Invalid` if it contradicts itself, or is longer than [`DOCUMENT_BYTES_MAX`].
pub(crate) fn encode<D: Document>(document: &D) -> Result<Vec<u8>> {
    let noun = D::NOUN;
    document.check()?;
    let invalid =
        |what: &str| Error::new(ErrorKind::Invalid, format!("a {noun} cannot be written: {what}"));
    let json = serde_json::to_vec(document).map_err(|error| invalid(&error.to_string()))?;
    let fields = json.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
    let fields = fields.ok_or_else(|| invalid("it is not an object"))?;
    let mut bytes = START.to_vec();
    bytes.extend_from_slice(format!("{FORMAT},").as_bytes());
    bytes.extend_from_slice(fields);
    let seal = seal(&bytes);
    bytes.extend_from_slice(seal.as_bytes());
    match bytes.len() <= DOCUMENT_BYTES_MAX {
        true => Ok(bytes),
        false => Err(invalid("it is too long").at("limit", DOCUMENT_BYTES_MAX)),
    }
}

/// Reads what [`encode`] wrote.
///
/// # Errors
/// `Corrupt` if any bit differs, `Invalid` if a newer release wrote it.
pub(crate) fn decode<D: Document>(bytes: &[u8]) -> Result<D> {
    let noun = D::NOUN;
    let damaged =
        |what: &str| Error::new(ErrorKind::Corrupt, format!("a {noun} is damaged: {what}"));
    let signed = bytes.len().checked_sub(SEAL_BYTES).map(|end| bytes.split_at(end));
    let (signed, found) = signed.ok_or_else(|| damaged("it is shorter than its seal"))?;
    if found != seal(signed).as_bytes() {
        return Err(damaged("it has a wrong checksum"));
    }
    match format(signed).ok_or_else(|| damaged("it names no format"))? {
        FORMAT => {}
        newer if newer > FORMAT => {
            let what = format!("a {noun} has a newer format than this release reads");
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("format", newer)
                .at("newest", FORMAT)
                .advise("update Forebay on this node"));
        }
        _ => return Err(damaged("no release wrote its format")),
    }
    let document: D = serde_json::from_slice(bytes).map_err(|error| damaged(&error.to_string()))?;
    document.check().map_err(|error| damaged(&error.to_string()))?;
    Ok(document)
}

/// Returns the last bytes of a document, by its other bytes.
fn seal(signed: &[u8]) -> String {
    format!(",\"crc\":\"{:08x}\"}}\n", crc32c(signed))
}

fn format(signed: &[u8]) -> Option<u32> {
    let rest = signed.strip_prefix(START)?;
    let end = rest.iter().position(|byte| *byte == b',')?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// Returns sealed bytes whose part before the seal is `signed`.
    pub(crate) fn sealed(signed: &str) -> Vec<u8> {
        format!("{signed}{}", seal(signed.as_bytes())).into_bytes()
    }

    /// Bytes of another format with a right seal.
    fn of_format(bytes: &[u8], format: u32) -> Vec<u8> {
        let signed = std::str::from_utf8(&bytes[..bytes.len() - SEAL_BYTES]).unwrap();
        sealed(&signed.replacen(&format!(":{FORMAT},"), &format!(":{format},"), 1))
    }

    fn assert_corrupt<D: Document + Debug>(bytes: &[u8]) {
        let error = decode::<D>(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}: {}", bytes.escape_ascii());
    }

    /// Flips each bit of a document, and truncates it at each byte.
    pub(crate) fn check_each_bit<D: Document + Debug>(document: &D) {
        let bytes = encode(document).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_corrupt::<D>(&flipped);
            }
            assert_corrupt::<D>(&bytes[..at]);
            assert_corrupt::<D>(&bytes[at + 1..]);
        }
    }

    /// Checks the properties of every sealed document: it survives its bytes, fields that this
    /// release does not know are ignored, a newer format is `Invalid`, and any damage is `Corrupt`.
    pub(crate) fn check_seal<D: Document + PartialEq + Debug>(
        document: &D,
        damage: &[(Index, u8)],
    ) {
        let bytes = encode(document).unwrap();
        assert_eq!(&decode::<D>(&bytes).unwrap(), document);
        assert_eq!(encode(document).unwrap(), bytes);

        let signed = std::str::from_utf8(&bytes[..bytes.len() - SEAL_BYTES]).unwrap();
        let more = sealed(&format!("{signed},\"later\":{{\"crc\":[1]}}"));
        assert_eq!(&decode::<D>(&more).unwrap(), document);

        let newer = decode::<D>(&of_format(&bytes, FORMAT + 1)).unwrap_err();
        assert_eq!((newer.kind(), newer.place("format")), (ErrorKind::Invalid, Some("2")));
        assert!(newer.advice().is_some());

        let is_corrupt = |bytes: &[u8]| assert_corrupt::<D>(bytes);
        is_corrupt(&of_format(&bytes, 0));
        is_corrupt(&sealed(signed.strip_prefix('{').unwrap()));
        is_corrupt(&sealed(&signed.replacen(":1,", ":one,", 1)));
        is_corrupt(&[bytes.as_slice(), b"\n"].concat());
        for (at, bit) in damage {
            let at = at.index(bytes.len());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (bit % 8);
            is_corrupt(&flipped);
            is_corrupt(&bytes[..at]);
            is_corrupt(&bytes[at + 1..]);
        }
    }

    /// Places and bits that a test damages.
    pub(crate) fn damage() -> impl Strategy<Value = Vec<(Index, u8)>> {
        prop::collection::vec((any::<Index>(), any::<u8>()), 16)
    }
}
