//! From a compressed stream to the bytes of a tar, piece by piece.
//!
//! One rule: a stream is whole only if its tools would say so, all of them. Members of gzip and frames
//! of zstd follow each other as often as they like; a checksum that does not fit, a stream that breaks
//! off, and bytes behind it that belong to nothing are errors, which name their place in the stream.
//!
//! It never waits and reads nothing by itself: whoever has bytes and room for what comes of them
//! makes it go on, for as long as that takes at most.

use flate2::{Decompress, FlushDecompress, Status};
use forebay_error::{Error, ErrorKind, Result};
use zstd::stream::raw::{DParameter, Decoder as Unzstd, InBuffer, Operation, OutBuffer};

/// What gzip begins each member with: its two magic bytes, and the only method there is.
const GZIP: &[u8] = &[0x1f, 0x8b, 8];

/// What zstd begins a frame with, and (but for the lowest four bits of the first byte) one that is to
/// be skipped, such as those that `pzstd` writes.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const ZSTD_SKIPPED: &[u8] = &[0x50, 0x2a, 0x4d, 0x18];

/// Endings of names that promise a compressed tar.
const ENDINGS: [&str; 5] = [".gz", ".tgz", ".zst", ".tzst", ".zstd"];

/// The window of deflate, as its exponent: there is no larger one.
const GZIP_WINDOW: u8 = 15;

/// The largest window of zstd, as its exponent: 128 MiB, which its tools take without being asked to,
/// and which `--long` and the highest of the `--ultra` levels make. The usual levels make 8 MiB at most.
const ZSTD_WINDOW: u32 = 27;

/// Bytes given to a decoder at once. Where one of them is damaged is not told more exactly.
const STEP_BYTES: usize = 64 << 10;

/// How a shard is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Gzip,
    Zstd,
}

impl Format {
    /// What a shard's first bytes show; a plain tar begins with the name of a file, or with zeros.
    pub(crate) fn of(first: &[u8]) -> Option<Self> {
        let skipped = || {
            first.len() >= ZSTD_SKIPPED.len()
                && first[0] & 0xf0 == ZSTD_SKIPPED[0]
                && first[1..].starts_with(&ZSTD_SKIPPED[1..])
        };
        match first {
            _ if first.starts_with(GZIP) => Some(Self::Gzip),
            _ if first.starts_with(ZSTD) || skipped() => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Whether a name promises a compressed tar. It decides nothing but how the first bytes are asked
    /// for.
    pub(crate) fn is_promised(url: &str) -> bool {
        let path = url.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
        ENDINGS.iter().any(|ending| path.ends_with(ending))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// Why a stream cannot be unpacked.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: Error,
    /// What came out before may be wrong: a checksum did not fit, or the stream makes no sense.
    pub(super) spoils: bool,
}

/// A compressed stream, as far as it was unpacked.
pub(super) struct Unpacker {
    format: Format,
    decoder: Decoder,
    /// Bytes taken of the compressed stream: up to here it was sound.
    taken: u64,
}

enum Decoder {
    /// A member of gzip that is not over.
    Member(Box<Decompress>),
    /// Between two members, or behind the last. `padded`: zeros were met, which fill up to a block's
    /// end, so that no member can follow.
    Between {
        padded: bool,
    },
    Zstd {
        decoder: Box<Unzstd<'static>>,
        whole: bool,
    },
}

impl Unpacker {
    /// One at the beginning of a stream.
    ///
    /// # Errors
    /// `Full` if the memory cannot be had.
    pub(super) fn new(format: Format) -> Result<Self> {
        let decoder = match format {
            Format::Gzip => Decoder::Between { padded: false },
            Format::Zstd => {
                let no_memory = |_| Error::new(ErrorKind::Full, "no memory to unpack zstd with");
                let mut decoder = Unzstd::new().map_err(no_memory)?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW)).map_err(no_memory)?;
                Decoder::Zstd { decoder: Box::new(decoder), whole: false }
            }
        };
        Ok(Self { format, decoder, taken: 0 })
    }

    /// Goes on until all of `input` is used up, `output` is full, or a fault is met; how many bytes of each
    /// it came to, and the fault.
    pub(super) fn advance(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> (usize, usize, Option<Fault>) {
        let (mut taken, mut made) = (0, 0);
        loop {
            let next = &input[taken..input.len().min(taken + STEP_BYTES)];
            let (took, gave) = match self.step(next, &mut output[made..]) {
                Ok(moved) => moved,
                Err(fault) => return (taken, made, Some(fault)),
            };
            self.taken += took as u64;
            (taken, made) = (taken + took, made + gave);
            // What is still inside comes out without input.
            if (took, gave) == (0, 0) || made == output.len() {
                return (taken, made, None);
            }
        }
    }

    /// The stream ends here.
    pub(super) fn finish(&self) -> Result<(), Fault> {
        let whole = match &self.decoder {
            Decoder::Member(_) => false,
            Decoder::Between { .. } => true,
            Decoder::Zstd { whole, .. } => *whole,
        };
        if whole {
            return Ok(());
        }
        let error = self.fault("truncated", "the compressed shard breaks off").error;
        let error = error.advise("upload the shard again; it looks truncated");
        Err(Fault { error, spoils: false })
    }

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), Fault> {
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
                // At a frame's end without more bytes there is nothing to be done.
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
                            // Only where a frame should begin: within one that is damage.
                            (false, true) if error.contains("nknown frame") => self.trailing(),
                            (false, _) => self.damaged(&error),
                        })
                    }
                }
            }
        }
    }

    fn fault(&self, reason: &str, what: &str) -> Fault {
        let error = Error::new(ErrorKind::Corrupt, what).at("reason", reason);
        let error = error.at("format", self.format.name()).at("compressed_offset", self.taken);
        Fault { error, spoils: true }
    }

    fn damaged(&self, why: &str) -> Fault {
        let Fault { error, spoils } =
            self.fault("damaged", &format!("the compressed shard is damaged: {why}"));
        Fault { error: error.advise("upload the shard again"), spoils }
    }

    fn trailing(&self) -> Fault {
        let what = "bytes follow the compressed shard that are no part of it";
        let error =
            self.fault("trailing", what).error.advise("upload the shard again, without them");
        Fault { error, spoils: false }
    }

    fn too_wide(&self) -> Fault {
        let what = "the shard is compressed with a window above 128 MiB";
        let error = Error::new(ErrorKind::Invalid, what).at("compressed_offset", self.taken);
        let error = error.advise("compress it again, with `zstd --long=27` or less");
        Fault { error, spoils: false }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A frame that zstd skips.
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
    fn unpack(stream: &[u8], piece: usize, room: usize) -> Result<Vec<u8>, (Fault, Vec<u8>)> {
        let mut unpacker = Unpacker::new(Format::of(stream).unwrap()).unwrap();
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

    fn offset(fault: &Fault) -> u64 {
        fault.error.place("compressed_offset").unwrap().parse().unwrap()
    }

    #[test]
    fn whatever_the_pieces_the_bytes_are_the_same() {
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
    fn only_first_bytes_that_are_magic_make_a_format() {
        assert_eq!(Format::of(&gzip(b"x")), Some(Format::Gzip));
        assert_eq!(Format::of(&zstd(b"x")), Some(Format::Zstd));
        assert_eq!(Format::of(&skipped(b"x")), Some(Format::Zstd));
        for plain in [&b""[..], b"\x1f", b"\x1f\x8b", b"(\xb5", b"P*M", b"000000.jpg\0", &[0; 512]]
        {
            assert_eq!(Format::of(plain), None);
        }
        for (url, promised) in [
            ("s3://b/a.tar.gz", true),
            ("https://x/a.TGZ?sig=a.tar", true),
            ("/data/a.tar.zst", true),
            ("/data/a.tar", false),
            ("https://x/a.tar?name=a.gz", false),
        ] {
            assert_eq!(Format::is_promised(url), promised, "{url}");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_is_told_with_its_length() {
        let bytes = content(50_000);
        for stream in [gzip(&bytes), zstd(&bytes), [gzip(b"x"), gzip(&bytes)].concat()] {
            for cut in [stream.len() - 1, stream.len() / 2, 12] {
                let (fault, _) = unpack(&stream[..cut], 4096, 4096).unwrap_err();
                assert_eq!(fault.error.kind(), ErrorKind::Corrupt);
                assert!(fault.error.to_string().contains("breaks off"), "{}", fault.error);
                assert!(!fault.spoils);
                assert_eq!(offset(&fault), cut as u64);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_found_at_the_latest_by_the_checksum() {
        let bytes = content(50_000);
        // Not in what nothing covers: times and flags of gzip, the size of a window of zstd.
        for (stream, from) in [(gzip(&bytes), 10), (zstd(&bytes), 6)] {
            for at in (from..stream.len()).step_by(997).chain([stream.len() - 1]) {
                let mut flipped = stream.clone();
                flipped[at] ^= 0x10;
                let (fault, _) = unpack(&flipped, 4096, 4096)
                    .err()
                    .unwrap_or_else(|| panic!("a bit of byte {at} was not missed"));
                assert_ne!(fault.error.kind(), ErrorKind::Full);
                let torn = fault.error.to_string().contains("breaks off");
                assert!(fault.spoils || torn, "byte {at}: {}", fault.error);
                assert!(offset(&fault) <= stream.len() as u64);
            }
        }
    }

    #[test]
    fn what_follows_a_stream_is_named() {
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
            assert!(fault.error.to_string().contains("no part of it"), "{}", fault.error);
            assert!(!fault.spoils && all == bytes);
            assert!(offset(&fault) >= stream.len() as u64);
        }
        let padded = [gzip(&bytes), vec![0; 512], gzip(&bytes)].concat();
        assert!(unpack(&padded, 64, 64).is_err(), "tools stop at the padding");
    }

    #[test]
    fn a_window_beyond_what_tools_take_is_refused_with_advice() {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(28)).unwrap();
        encoder.write_all(&content(5000)).unwrap();
        let (fault, _) = unpack(&encoder.finish().unwrap(), 64, 64).unwrap_err();
        assert_eq!(fault.error.kind(), ErrorKind::Invalid, "{}", fault.error);
        assert!(fault.error.to_string().contains("--long=27"), "{}", fault.error);
    }
}
