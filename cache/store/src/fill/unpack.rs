//! Unpacking of a compressed stream to the bytes of a tar, piece by piece.
//!
//! A stream is whole only if the usual tools accept it. Gzip members and zstd frames may
//! follow each other in any number. A wrong checksum, a truncated stream and trailing bytes are
//! errors, which name their offset in the stream.
//!
//! The unpacker never waits and reads nothing itself: the caller passes bytes and room for the
//! output.

use crate::compression::{Compression, GZIP};
use flate2::{Decompress, FlushDecompress, Status};
use forebay_error::{Error, ErrorKind, Result};
use zstd::stream::raw::{DParameter, Decoder as Unzstd, InBuffer, Operation, OutBuffer};
/// Window of deflate, as its exponent: there is no larger one.
const GZIP_WINDOW: u8 = 15;

/// Maximum window of zstd, as its exponent: 128 MiB. The zstd tools accept that much by default;
/// `--long` and the highest `--ultra` levels make it. The usual levels make 8 MiB at most.
const ZSTD_WINDOW: u32 = 27;

/// Bytes given to a decoder at once; also the precision of an error's offset.
const STEP_BYTES: usize = 64 << 10;

/// Reason why a stream cannot be unpacked.
#[derive(Debug)]
pub(super) struct UnpackError {
    pub(super) error: Error,
    /// True if earlier output may be wrong: a checksum failed, or the stream is invalid.
    pub(super) untrusted: bool,
}

/// A compressed stream, as far as it is unpacked.
pub(super) struct Unpacker {
    format: Compression,
    decoder: Decoder,
    /// Bytes taken of the compressed stream: valid up to here.
    taken: u64,
}

enum Decoder {
    /// Inside a gzip member.
    Member(Box<Decompress>),
    /// Between two members, or after the last. `padded`: zeros follow, so no other member can.
    Between {
        padded: bool,
    },
    Zstd {
        decoder: Box<Unzstd<'static>>,
        whole: bool,
    },
}

impl Unpacker {
    /// Creates an unpacker at the beginning of a stream.
    ///
    /// # Errors
    /// `Full` if there is not enough memory.
    pub(super) fn new(format: Compression) -> Result<Self> {
        let decoder = match format {
            Compression::Gzip => Decoder::Between { padded: false },
            Compression::Zstd => {
                let no_memory =
                    |_| Error::new(ErrorKind::Full, "failed to allocate memory for zstd");
                let mut decoder = Unzstd::new().map_err(no_memory)?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW)).map_err(no_memory)?;
                Decoder::Zstd { decoder: Box::new(decoder), whole: false }
            }
        };
        Ok(Self { format, decoder, taken: 0 })
    }

    /// Unpacks until `input` is used up, `output` is full, or an error occurs. Returns the bytes
    /// taken, the bytes made, and the error.
    pub(super) fn advance(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> (usize, usize, Option<UnpackError>) {
        let (mut taken, mut made) = (0, 0);
        loop {
            let next = &input[taken..input.len().min(taken + STEP_BYTES)];
            let (took, gave) = match self.step(next, &mut output[made..]) {
                Ok(moved) => moved,
                Err(fault) => return (taken, made, Some(fault)),
            };
            self.taken += took as u64;
            (taken, made) = (taken + took, made + gave);
            // Buffered output comes without input.
            if (took, gave) == (0, 0) || made == output.len() {
                return (taken, made, None);
            }
        }
    }

    /// Checks that the stream may end here.
    pub(super) fn finish(&self) -> Result<(), UnpackError> {
        let whole = match &self.decoder {
            Decoder::Member(_) => false,
            Decoder::Between { .. } => true,
            Decoder::Zstd { whole, .. } => *whole,
        };
        if whole {
            return Ok(());
        }
        let error = self.fault("truncated", "the compressed shard ends early").error;
        let error = error.advise("upload the shard again: it looks truncated");
        Err(UnpackError { error, untrusted: false })
    }

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), UnpackError> {
        match &mut self.decoder {
            Decoder::Between { padded } => {
                let zeros = input.iter().take_while(|byte| **byte == 0).count();
                if zeros > 0 && self.taken > 0 {
                    *padded = true;
                    return Ok((zeros, 0));
                }
                match input.first() {
                    None => {}
                    Some(first) if *first == GZIP[0] && !*padded => {
                        let member = Decompress::new_gzip(GZIP_WINDOW);
                        self.decoder = Decoder::Member(Box::new(member));
                        return self.step(input, output);
                    }
                    Some(_) => return Err(self.trailing()),
                }
                Ok((0, 0))
            }
            Decoder::Member(member) => {
                let before = (member.total_in(), member.total_out());
                let status = member.decompress(input, output, FlushDecompress::None);
                // Each is below the length of its buffer.
                let took = (member.total_in() - before.0) as usize;
                let gave = (member.total_out() - before.1) as usize;
                match status {
                    Ok(Status::StreamEnd) => self.decoder = Decoder::Between { padded: false },
                    Ok(Status::Ok | Status::BufError) => {}
                    Err(error) => {
                        self.taken += took as u64;
                        return Err(self.damaged(&error.to_string()));
                    }
                }
                Ok((took, gave))
            }
            Decoder::Zstd { decoder, whole } => {
                // Nothing to do at a frame's end without more bytes.
                if *whole && input.is_empty() {
                    return Ok((0, 0));
                }
                let begins = *whole;
                let (mut from, mut to) = (InBuffer::around(input), OutBuffer::around(output));
                match decoder.run(&mut from, &mut to) {
                    Ok(hint) => {
                        let moved = (from.pos(), to.pos());
                        *whole = hint == 0;
                        Ok(moved)
                    }
                    Err(error) => {
                        self.taken += from.pos() as u64;
                        let error = error.to_string();
                        Err(match (error.contains("too much memory"), begins) {
                            (true, _) => self.too_wide(),
                            // Only at the start of a frame: inside a frame it is damage.
                            (false, true) if error.contains("nknown frame") => self.trailing(),
                            (false, _) => self.damaged(&error),
                        })
                    }
                }
            }
        }
    }

    fn fault(&self, reason: &str, what: &str) -> UnpackError {
        let error = Error::new(ErrorKind::Corrupt, what).at("reason", reason);
        let error = error.at("format", self.format.name()).at("compressed_offset", self.taken);
        UnpackError { error, untrusted: true }
    }

    fn damaged(&self, why: &str) -> UnpackError {
        let UnpackError { error, untrusted } =
            self.fault("damaged", &format!("the compressed shard is damaged: {why}"));
        UnpackError { error: error.advise("upload the shard again"), untrusted }
    }

    fn trailing(&self) -> UnpackError {
        let what = "extra bytes follow the compressed shard";
        let error =
            self.fault("trailing", what).error.advise("upload the shard again without them");
        UnpackError { error, untrusted: false }
    }

    fn too_wide(&self) -> UnpackError {
        let what = "the shard is compressed with a window above 128 MiB";
        let error = Error::new(ErrorKind::Invalid, what).at("compressed_offset", self.taken);
        let error = error.advise("compress it again, with `zstd --long=27` or less");
        UnpackError { error, untrusted: false }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression as Level;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::compression::ZSTD_SKIPPED;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A skippable zstd frame.
    fn skipped(bytes: &[u8]) -> Vec<u8> {
        let len = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        [&[0x53], &ZSTD_SKIPPED[1..], &len, bytes].concat()
    }

    /// Bytes that compress by half.
    fn content(len: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8 & 0x0f
        };
        (0..len).map(|_| next()).collect()
    }

    /// Unpacks a stream that comes and goes in pieces of these sizes.
    fn unpack(stream: &[u8], piece: usize, room: usize) -> Result<Vec<u8>, (UnpackError, Vec<u8>)> {
        let mut unpacker = Unpacker::new(Compression::of(stream).unwrap()).unwrap();
        let (mut all, mut output) = (Vec::new(), vec![0; room]);
        for mut input in stream.chunks(piece) {
            loop {
                let (taken, made, fault) = unpacker.advance(input, &mut output);
                all.extend_from_slice(&output[..made]);
                if let Some(fault) = fault {
                    return Err((fault, all));
                }
                input = &input[taken..];
                if made < room {
                    assert!(input.is_empty(), "it stops with room and bytes left");
                    break;
                }
            }
        }
        unpacker.finish().map(|()| all.clone()).map_err(|fault| (fault, all))
    }

    fn offset(fault: &UnpackError) -> u64 {
        fault.error.place("compressed_offset").unwrap().parse().unwrap()
    }

    #[test]
    fn piece_sizes_do_not_change_the_bytes() {
        let bytes = content(100_000);
        let (one, two) = bytes.split_at(33_333);
        let streams = [
            gzip(&bytes),
            [gzip(one), gzip(two)].concat(),
            [gzip(one), gzip(&[]), gzip(two), vec![0; 1000]].concat(),
            zstd(&bytes),
            [zstd(one), zstd(two)].concat(),
            [skipped(b"sizes"), zstd(one), skipped(&[]), zstd(two), skipped(b"end")].concat(),
        ];
        for (n, stream) in streams.iter().enumerate() {
            for (piece, room) in [(1, 7), (7, 1), (4096, 333), (usize::MAX, 1 << 20), (1000, 1000)]
            {
                let piece = piece.min(stream.len());
                let unpacked = unpack(stream, piece, room).map_err(|(fault, _)| fault.error);
                assert!(unpacked.unwrap() == bytes, "stream {n} in pieces of {piece} to {room}");
            }
        }
    }

    #[test]
    fn magic_bytes_decide_the_format() {
        assert_eq!(Compression::of(&gzip(b"x")), Some(Compression::Gzip));
        assert_eq!(Compression::of(&zstd(b"x")), Some(Compression::Zstd));
        assert_eq!(Compression::of(&skipped(b"x")), Some(Compression::Zstd));
        for plain in [&b""[..], b"\x1f", b"\x1f\x8b", b"(\xb5", b"P*M", b"000000.jpg\0", &[0; 512]]
        {
            assert_eq!(Compression::of(plain), None);
        }
        for (url, promised) in [
            ("s3://b/a.tar.gz", true),
            ("https://x/a.TGZ?sig=a.tar", true),
            ("/data/a.tar.zst", true),
            ("/data/a.tar", false),
            ("https://x/a.tar?name=a.gz", false),
        ] {
            assert_eq!(Compression::is_promised(url), promised, "{url}");
        }
    }

    #[test]
    fn truncated_stream_fails_at_its_length() {
        let bytes = content(50_000);
        for stream in [gzip(&bytes), zstd(&bytes), [gzip(b"x"), gzip(&bytes)].concat()] {
            for cut in [stream.len() - 1, stream.len() / 2, 12] {
                let (fault, _) = unpack(&stream[..cut], 4096, 4096).unwrap_err();
                assert_eq!(fault.error.kind(), ErrorKind::Corrupt);
                assert!(fault.error.to_string().contains("ends early"), "{}", fault.error);
                assert!(!fault.untrusted);
                assert_eq!(offset(&fault), cut as u64);
            }
        }
    }

    #[test]
    fn flipped_bits_are_found() {
        let bytes = content(50_000);
        // Skips fields that no checksum covers: times and flags of gzip, the window size of zstd.
        for (stream, from) in [(gzip(&bytes), 10), (zstd(&bytes), 6)] {
            for at in (from..stream.len()).step_by(997).chain([stream.len() - 1]) {
                let mut flipped = stream.clone();
                flipped[at] ^= 0x10;
                let (fault, _) = unpack(&flipped, 4096, 4096)
                    .err()
                    .unwrap_or_else(|| panic!("a bit of byte {at} was not missed"));
                assert_ne!(fault.error.kind(), ErrorKind::Full);
                let torn = fault.error.to_string().contains("ends early");
                assert!(fault.untrusted || torn, "byte {at}: {}", fault.error);
                assert!(offset(&fault) <= stream.len() as u64);
            }
        }
    }

    #[test]
    fn trailing_bytes_are_rejected() {
        let bytes = content(5000);
        for (stream, tail) in [
            (gzip(&bytes), &b"garbage"[..]),
            (gzip(&bytes), b"\0\0garbage"),
            (zstd(&bytes), b"garbage"),
            (zstd(&bytes), b"\0\0\0\0\0\0"),
        ] {
            let joined = [&stream, tail].concat();
            let (fault, all) = unpack(&joined, 64, 64).unwrap_err();
            assert_eq!(fault.error.kind(), ErrorKind::Corrupt);
            assert!(fault.error.to_string().contains("extra bytes"), "{}", fault.error);
            assert!(!fault.untrusted && all == bytes);
            assert!(offset(&fault) >= stream.len() as u64);
        }
        let padded = [gzip(&bytes), vec![0; 512], gzip(&bytes)].concat();
        assert!(unpack(&padded, 64, 64).is_err(), "tools stop at the padding");
    }

    #[test]
    fn too_large_zstd_window_is_rejected() {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(28)).unwrap();
        encoder.write_all(&content(5000)).unwrap();
        let (fault, _) = unpack(&encoder.finish().unwrap(), 64, 64).unwrap_err();
        assert_eq!(fault.error.kind(), ErrorKind::Invalid, "{}", fault.error);
        assert!(fault.error.to_string().contains("--long=27"), "{}", fault.error);
    }
}
