//! The one checksum of bytes at rest: CRC32C (Castagnoli), as iSCSI, S3 and ext4 use it.
//!
//! Every CRC in Forebay comes from here, so that a value written by one layer can be
//! compared by another.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// The CRC32C of `data`.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    crc32_iscsi(data)
}

/// A CRC32C over bytes that come in pieces.
#[derive(Debug, Clone)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// The state before the first byte.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Returns true if no byte was taken in.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.0.get_amount() == 0
    }

    /// Takes the next piece in.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The checksum of every piece so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        // A 32-bit algorithm fills the low half; the cut loses nothing.
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_catalogue_whole_and_in_pieces() {
        // The check value of the CRC catalogue for CRC-32/ISCSI.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        let mut pieces = Crc32c::new();
        pieces.update(b"1234");
        pieces.update(b"");
        pieces.update(b"56789");
        assert_eq!(pieces.value(), 0xE306_9283);
        assert_eq!(Crc32c::new().value(), 0);
    }
}
