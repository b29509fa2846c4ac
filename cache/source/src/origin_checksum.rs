//! The origin's own checksums of a shard, compared with the bytes that arrived.
//!
//! Bytes that differ are never kept. Bytes of an origin without checksums, or one that denies
//! access to them, are accepted; the reason is counted and reported.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crc_fast::{CrcAlgorithm, Digest as Crc};
use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

/// Checksum algorithm of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// CRC-64/NVME, which Amazon takes of every object.
    Crc64Nvme,
    /// CRC-32/ISCSI (Castagnoli).
    Crc32c,
    /// CRC-32/ISO-HDLC, as in gzip.
    Crc32,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    /// Bytes of a checksum.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::Crc64Nvme => 8,
            Self::Crc32c | Self::Crc32 => 4,
            Self::Sha256 => 32,
        }
    }

    /// Returns the common name.
    fn name(self) -> &'static str {
        match self {
            Self::Crc64Nvme => "CRC64NVME",
            Self::Crc32c => "CRC32C",
            Self::Crc32 => "CRC32",
            Self::Sha256 => "SHA-256",
        }
    }
}

/// A checksum that is being taken.
enum Taking {
    Crc(Box<Crc>, Algorithm),
    Sha(Box<Sha256>),
}

impl Taking {
    fn new(algorithm: Algorithm) -> Self {
        let crc = |kind| Self::Crc(Box::new(Crc::new(kind)), algorithm);
        match algorithm {
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Sha256 => Self::Sha(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(crc, _) => crc.update(bytes),
            Self::Sha(sha) => sha.update(bytes),
        }
    }

    /// The checksum, its highest byte first.
    fn value(self) -> Vec<u8> {
        match self {
            Self::Crc(crc, algorithm) => {
                let bytes = crc.finalize().to_be_bytes();
                bytes[bytes.len() - algorithm.width()..].to_vec()
            }
            Self::Sha(sha) => sha.finalize().to_vec(),
        }
    }
}

/// Consecutive bytes of a shard, and their checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Number of bytes.
    pub(crate) len: u64,
    /// Their checksum, its highest byte first.
    pub(crate) checksum: Vec<u8>,
}

/// Shards whose origins were asked for checksums, by what came of it. Counts only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checksums {
    /// The bytes are what the origin says.
    pub agreed: u64,
    /// They are not; nothing of them was kept.
    pub differed: u64,
    /// The origin has none.
    pub none: u64,
    /// It did not tell: it denies the call, or did not answer it.
    pub untold: u64,
}

/// The same, counting.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    agreed: AtomicU64,
    differed: AtomicU64,
    none: AtomicU64,
    untold: AtomicU64,
}

impl Tally {
    pub(crate) fn none(&self) {
        self.none.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true the first time.
    pub(crate) fn untold(&self) -> bool {
        self.untold.fetch_add(1, Ordering::Relaxed) == 0
    }

    pub(crate) fn counts(&self) -> Checksums {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Checksums {
            agreed: read(&self.agreed),
            differed: read(&self.differed),
            none: read(&self.none),
            untold: read(&self.untold),
        }
    }
}

/// A shard's bytes, from the first to the last, against what its origin says of them.
pub struct Comparison {
    algorithm: Algorithm,
    /// Those that are not compared yet.
    pieces: VecDeque<Piece>,
    /// The checksum of the first of them so far, and how many bytes it lacks.
    taking: Taking,
    missing: u64,
    /// Offset of the next bytes.
    offset: u64,
    tally: Arc<Tally>,
}

impl Comparison {
    /// With these pieces, which are the whole shard.
    pub(crate) fn new(algorithm: Algorithm, pieces: Vec<Piece>, tally: &Arc<Tally>) -> Self {
        let pieces = VecDeque::from(pieces);
        let missing = pieces.front().map_or(0, |piece| piece.len);
        let tally = Arc::clone(tally);
        Self { algorithm, pieces, taking: Taking::new(algorithm), missing, offset: 0, tally }
    }

    /// Returns true if it is slow enough for a thread of its own: SHA-256 reaches some 1.5 GB/s, a
    /// CRC thirty.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.algorithm == Algorithm::Sha256
    }

    /// Takes the next bytes in.
    ///
    /// # Errors
    /// `Corrupt` as soon as a piece is not what the origin says, or if there are more bytes than it
    /// speaks of.
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.missing == 0 {
                self.settle()?;
            }
            if self.pieces.is_empty() {
                return Err(self.differs());
            }
            let len = bytes.len().min(usize::try_from(self.missing).unwrap_or(usize::MAX));
            let (now, then) = bytes.split_at(len);
            self.taking.update(now);
            self.missing -= len as u64;
            self.offset += len as u64;
            bytes = then;
        }
        // A piece that is wrong is told of before the next one comes.
        if self.missing == 0 { self.settle() } else { Ok(()) }
    }

    /// Says whether all of it was what the origin says.
    ///
    /// # Errors
    /// `Corrupt` if it was not.
    pub fn finish(mut self) -> Result<()> {
        if self.missing == 0 {
            self.settle()?;
        }
        if !self.pieces.is_empty() {
            return Err(self.differs());
        }
        self.tally.agreed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Compares the pieces that are complete.
    fn settle(&mut self) -> Result<()> {
        while self.missing == 0
            && let Some(piece) = self.pieces.pop_front()
        {
            let taking = std::mem::replace(&mut self.taking, Taking::new(self.algorithm));
            if taking.value() != piece.checksum {
                return Err(self.differs());
            }
            self.missing = self.pieces.front().map_or(0, |piece| piece.len);
        }
        Ok(())
    }

    fn differs(&self) -> Error {
        self.tally.differed.fetch_add(1, Ordering::Relaxed);
        Error::new(ErrorKind::Corrupt, "the bytes differ from the store's checksum")
            .at("checksum", self.algorithm.name())
            .at("offset", self.offset)
            .advise("read it again: nothing was cached; if it fails again, upload the shard again")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Algorithm; 4] =
        [Algorithm::Crc64Nvme, Algorithm::Crc32c, Algorithm::Crc32, Algorithm::Sha256];

    fn checksum(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
        let mut taking = Taking::new(algorithm);
        taking.update(bytes);
        taking.value()
    }

    fn pieces(algorithm: Algorithm, bytes: &[&[u8]]) -> Vec<Piece> {
        let piece =
            |bytes: &&[u8]| Piece { len: bytes.len() as u64, checksum: checksum(algorithm, bytes) };
        bytes.iter().map(piece).collect()
    }

    /// The check values of the CRC catalogue, and of FIPS 180-4's first example.
    #[test]
    fn checksums_match_the_published_check_values() {
        let of = |algorithm| checksum(algorithm, b"123456789");
        assert_eq!(of(Algorithm::Crc64Nvme), 0xAE8B_1486_0A79_9888_u64.to_be_bytes());
        assert_eq!(of(Algorithm::Crc32c), 0xE306_9283_u32.to_be_bytes());
        assert_eq!(of(Algorithm::Crc32), 0xCBF4_3926_u32.to_be_bytes());
        let abc = checksum(Algorithm::Sha256, b"abc");
        assert_eq!(abc[..4], [0xBA, 0x78, 0x16, 0xBF]);
        for algorithm in ALL {
            assert_eq!(of(algorithm).len(), algorithm.width());
        }
    }

    #[test]
    fn differing_piece_is_reported_at_its_end() {
        for algorithm in ALL {
            let tally = Arc::new(Tally::default());
            let said = pieces(algorithm, &[b"first", b"second", b""]);
            let compare = || Comparison::new(algorithm, said.clone(), &tally);
            let mut right = compare();
            right.update(b"firs").unwrap();
            right.update(b"tsecond").unwrap();
            right.finish().unwrap();
            let mut wrong = compare();
            wrong.update(b"firs").unwrap();
            let error = wrong.update(b"T").unwrap_err();
            assert_eq!((error.kind(), error.place("offset")), (ErrorKind::Corrupt, Some("5")));
            let mut long = compare();
            assert!(long.update(b"firstsecond!").is_err());
            let mut short = compare();
            short.update(b"firstsecon").unwrap();
            assert!(short.finish().is_err());
            let counts = tally.counts();
            assert_eq!((counts.agreed, counts.differed), (1, 3));
        }
    }

    proptest! {
        #[test]
        fn comparison_does_not_depend_on_chunk_sizes(
            cuts in prop::collection::vec(0_usize..300, 0..6),
            steps in prop::collection::vec(1_usize..120, 1..40),
            len in 0_usize..300,
            flip in prop::option::of(0_usize..300),
        ) {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(len)).collect();
            cuts.extend([0, len]);
            cuts.sort_unstable();
            let slices: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let said = pieces(Algorithm::Crc32c, &slices);
            let tally = Arc::new(Tally::default());
            let mut comparison = Comparison::new(Algorithm::Crc32c, said, &tally);
            let mut came = bytes.clone();
            let flipped = flip.filter(|at| *at < len);
            if let Some(at) = flipped {
                came[at] ^= 1;
            }
            let mut left = came.as_slice();
            let mut result = Ok(());
            for step in steps.iter().cycle() {
                let (now, then) = left.split_at((*step).min(left.len()));
                result = result.and_then(|()| comparison.update(now));
                left = then;
                if left.is_empty() {
                    break;
                }
            }
            let result = result.and_then(|()| comparison.finish());
            prop_assert_eq!(result.is_err(), flipped.is_some());
        }
    }
}
