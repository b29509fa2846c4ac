//! From header to header: the members of a tar, with their long names and true sizes resolved.
//!
//! An archive that two readers could understand differently is refused, and every size is
//! held against the shard's length before it is believed; where nobody knows that length yet, no
//! more is asked for than a header of 512 bytes, or what the bytes themselves then refuse.

use std::io::{self, Read as _, SeekFrom};

use forebay_error::{Error, ErrorKind, Result};
use tar::{EntryType, Header};

use super::links::Link;
use super::pax::{self, Pax};
use super::{ShardBytes, UNKNOWN, foreign};

/// The unit of a tar.
const BLOCK: u64 = 512;

/// Size field of a header.
const SIZE: std::ops::Range<usize> = 124..136;

/// The most a long name or a PAX header may take. Linux paths end at 4 KiB; a PAX header also holds
/// extended attributes, whose sum per file is 64 KiB on common file systems.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// The first bytes of formats that people upload in place of a tar.
const COMPRESSED: [(&[u8], &str); 6] = [
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
];

/// A regular file in the tar, or a link.
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    /// Start of its data; of a link, which has none, the start of its header.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) link: Option<Link>,
}

/// Extension headers met since the last member; they describe the next one.
#[derive(Default)]
struct Extensions {
    long_name: Option<Vec<u8>>,
    pax: Option<Pax>,
    long_link: Option<Vec<u8>>,
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.long_name.is_none() && self.pax.is_none() && self.long_link.is_none()
    }
}

pub(super) struct Walk<B> {
    bytes: B,
    len: u64,
    next: u64,
}

impl<B: ShardBytes> Walk<B> {
    pub(super) fn new(bytes: B, len: u64) -> Self {
        Self { bytes, len, next: 0 }
    }

    pub(super) fn bytes(&mut self) -> &mut B {
        &mut self.bytes
    }

    /// The next regular file or link, or `None` at the end-of-archive marker.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>> {
        let is_first = self.next == 0;
        self.entry().map_err(|error| match is_first && error.place("offset") == Some("0") {
            true => self.explained(error),
            false => error,
        })
    }

    /// The error of a shard that fails at its first byte, with what its bytes seem to be, if that
    /// is no tar.
    fn explained(&mut self, error: Error) -> Error {
        let mut first = Vec::new();
        let read = self.bytes.seek(SeekFrom::Start(0)).and_then(|_| {
            let most = self.len.min(foreign::LOOKED_AT as u64);
            self.bytes.by_ref().take(most).read_to_end(&mut first)
        });
        let header = first.get(..BLOCK as usize).map(Header::from_byte_slice);
        match error.kind() == ErrorKind::Corrupt
            && read.is_ok()
            && !header.is_some_and(checksum_holds)
        {
            true => foreign::explain(error, &first),
            false => error,
        }
    }

    fn entry(&mut self) -> Result<Option<Entry>> {
        let mut extensions = Extensions::default();
        loop {
            let at = self.next;
            let Some(block) = self.block(at)? else { return Err(self.ends_early(at)) };
            if block.iter().all(|&byte| byte == 0) {
                if !extensions.is_empty() {
                    return Err(corrupt("a long name describes no member", at));
                }
                self.next = at + BLOCK;
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            if !checksum_holds(header) {
                return Err(not_a_header(&block, at));
            }
            let size = match number(&block[SIZE]) {
                Number::Octal(size) => Some(size),
                Number::Binary => header.entry_size().ok(),
                Number::Invalid => None,
            };
            let size = size.ok_or_else(|| corrupt("a member's size field is not a number", at))?;
            if self.extension(header, at, size, &mut extensions)? {
                continue;
            }
            if let Some(entry) = self.member(header, at, size, &mut extensions)? {
                return Ok(Some(entry));
            }
        }
    }

    /// Holds what follows the end-of-archive marker against the rule that no member may hide there.
    pub(super) fn check_tail(&mut self) -> Result<()> {
        while let Some(block) = self.block(self.next)? {
            let at = self.next;
            if block.iter().any(|&byte| byte != 0)
                && checksum_holds(Header::from_byte_slice(&block))
            {
                return Err(corrupt("another archive follows the end of this one", at).advise(
                    "unpack both and pack them as one tar; joining tars by cat loses data",
                ));
            }
            self.next = at + BLOCK;
        }
        Ok(())
    }

    /// Takes in an extension header; `false` means that `header` is a member's own.
    fn extension(
        &mut self,
        header: &Header,
        at: u64,
        size: u64,
        to: &mut Extensions,
    ) -> Result<bool> {
        let twice = || corrupt("two extension headers of one kind describe one member", at);
        match header.entry_type() {
            EntryType::GNULongName => {
                if to.long_name.replace(self.long_name(at, size)?).is_some() {
                    return Err(twice());
                }
            }
            EntryType::GNULongLink => {
                if to.long_link.replace(self.long_name(at, size)?).is_some() {
                    return Err(twice());
                }
            }
            // Solaris writes `X` for `x`.
            kind if kind.is_pax_local_extensions() || kind.as_byte() == b'X' => {
                let data = self.extension_data(at, size)?;
                let pax =
                    pax::parse(&data).map_err(|what| corrupt(&format!("it has {what}"), at))?;
                if to.pax.replace(pax).is_some() {
                    return Err(twice());
                }
            }
            EntryType::XGlobalHeader => {
                let data = self.extension_data(at, size)?;
                let pax =
                    pax::parse(&data).map_err(|what| corrupt(&format!("it has {what}"), at))?;
                if pax != Pax::default() {
                    let what = "a global PAX header sets a path, a link or a size";
                    return Err(corrupt(what, at));
                }
            }
            _ => return Ok(false),
        }
        if to.long_name.is_some() && to.pax.as_ref().is_some_and(|pax| pax.path.is_some()) {
            return Err(corrupt("a member has both a GNU and a PAX long name", at));
        }
        if to.long_link.is_some() && to.pax.as_ref().is_some_and(|pax| pax.linkpath.is_some()) {
            return Err(corrupt("a link has both a GNU and a PAX long target", at));
        }
        Ok(true)
    }

    /// Resolves a member and steps over its data; `None` for directories, devices and the like.
    fn member(
        &mut self,
        header: &Header,
        at: u64,
        size: u64,
        extensions: &mut Extensions,
    ) -> Result<Option<Entry>> {
        let Extensions { long_name, pax, long_link } = std::mem::take(extensions);
        let Pax { path, size: pax_size, linkpath } = pax.unwrap_or_default();
        let short = header.path_bytes();
        let kind = header.entry_type();
        let old_directory = header.as_bytes()[156] == 0 && short.last() == Some(&b'/');
        if kind == EntryType::GNUSparse {
            return Err(corrupt("it has a sparse file, which a shard may not hold", at));
        }
        let name = long_name.or(path).unwrap_or_else(|| short.into_owned());
        // Links, devices, directories and pipes have no data, whatever their size field says: that
        // is how Python's tarfile, and so WebDataset, reads them.
        if old_directory || matches!(header.as_bytes()[156], b'1'..=b'6') {
            self.advance(at, 0)?;
            let short = || header.link_name_bytes().unwrap_or_default().into_owned();
            let link: Option<fn(Vec<u8>) -> Link> = match kind {
                EntryType::Link => Some(Link::Hard),
                EntryType::Symlink => Some(Link::Symbolic),
                _ => None,
            };
            let link = link.map(|link| link(linkpath.or(long_link).unwrap_or_else(short)));
            return Ok(link.map(|link| Entry { name, offset: at, len: 0, link: Some(link) }));
        }
        let len = pax_size.unwrap_or(size);
        self.advance(at, len)?;
        let regular = matches!(kind, EntryType::Regular | EntryType::Continuous);
        Ok(regular.then(|| Entry { name, offset: at + BLOCK, len, link: None }))
    }

    /// Moves past `size` bytes of data behind the header at `at`, if the shard can hold them.
    fn advance(&mut self, at: u64, size: u64) -> Result<()> {
        let data = at + BLOCK;
        let end = data.checked_add(size).filter(|&end| end <= self.len);
        match end.and_then(|end| end.checked_next_multiple_of(BLOCK)) {
            Some(next) => {
                self.next = next;
                Ok(())
            }
            None => Err(corrupt("a member reaches past the end of the shard", at)
                .at("member_bytes", size)
                .at("shard_bytes", self.len)
                .advise("upload the shard again; it looks truncated")),
        }
    }

    /// The text of a GNU long name, up to its NUL.
    fn long_name(&mut self, at: u64, size: u64) -> Result<Vec<u8>> {
        let mut name = self.extension_data(at, size)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn extension_data(&mut self, at: u64, size: u64) -> Result<Vec<u8>> {
        if size > MAX_EXTENSION_BYTES {
            let error = corrupt("a long name or PAX header is too large", at);
            return Err(error.at("bytes", size).at("limit", MAX_EXTENSION_BYTES));
        }
        self.advance(at, size)?;
        let mut data = vec![0; size as usize];
        self.read_at(at + BLOCK, &mut data)?;
        Ok(data)
    }

    /// The block at `at`, unless the shard ends before its end.
    fn block(&mut self, at: u64) -> Result<Option<[u8; BLOCK as usize]>> {
        if at.checked_add(BLOCK).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let mut block = [0; BLOCK as usize];
        self.bytes.seek(SeekFrom::Start(at)).map_err(|error| own_or_io(error, at))?;
        match self.bytes.read_exact(&mut block) {
            Ok(()) => Ok(Some(block)),
            // The end of a shard whose length was not known.
            Err(error) if self.len == UNKNOWN && error.kind() == io::ErrorKind::UnexpectedEof => {
                Ok(None)
            }
            Err(error) => Err(own_or_io(error, at)),
        }
    }

    fn ends_early(&mut self, at: u64) -> Error {
        // A small file that is no tar.
        let mut first = [0; BLOCK as usize];
        let len = self.len.min(BLOCK) as usize;
        if at == 0
            && self.len != UNKNOWN
            && self.read_at(0, &mut first[..len]).is_ok()
            && let Some(error) = compressed(&first)
        {
            return error;
        }
        let what = match self.len {
            0 => "the shard is empty",
            _ => "the shard ends without an end-of-archive marker",
        };
        corrupt(what, at).advise("upload the shard again; it looks truncated")
    }

    fn read_at(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        self.bytes.seek(SeekFrom::Start(at)).map_err(|error| own_or_io(error, at))?;
        self.bytes.read_exact(into).map_err(|error| own_or_io(error, at))
    }
}

/// Numeric field of a header.
enum Number {
    /// Octal digits, or nothing, which is 0.
    Octal(u64),
    /// GNU's base 256, for sizes beyond 8 GiB.
    Binary,
    Invalid,
}

/// Reads a numeric field as tar and Python's tarfile do: up to its NUL, without blanks around it. A
/// field that a writer left empty, as a volume label's size, is 0.
fn number(field: &[u8]) -> Number {
    if field.first().is_some_and(|first| matches!(first, 0x80 | 0xff)) {
        return Number::Binary;
    }
    let text = field.split(|&byte| byte == 0).next().unwrap_or_default().trim_ascii();
    if text.is_empty() {
        return Number::Octal(0);
    }
    let digits = std::str::from_utf8(text).ok();
    match digits.and_then(|digits| u64::from_str_radix(digits, 8).ok()) {
        Some(number) => Number::Octal(number),
        None => Number::Invalid,
    }
}

/// The sum of the header's bytes with the checksum field read as blanks; some old writers summed
/// signed bytes, and Python's tarfile accepts both.
fn checksum_holds(header: &Header) -> bool {
    let Ok(stored) = header.cksum() else { return false };
    let bytes = header.as_bytes();
    let others = || bytes[..148].iter().chain(&bytes[156..]);
    let blanks = 8 * u32::from(b' ');
    let unsigned: u32 = blanks + others().map(|&byte| u32::from(byte)).sum::<u32>();
    let signed: i32 = blanks as i32 + others().map(|&byte| i32::from(byte as i8)).sum::<i32>();
    stored == unsigned || i64::from(stored) == i64::from(signed)
}

fn not_a_header(block: &[u8], at: u64) -> Error {
    let format = (at == 0).then(|| compressed(block)).flatten();
    format.unwrap_or_else(|| corrupt("a tar header has a wrong checksum", at))
}

/// Returns the error of a file in a compressed format, by its first bytes.
fn compressed(first: &[u8]) -> Option<Error> {
    let (_, name) = COMPRESSED.iter().find(|(magic, _)| first.starts_with(magic))?;
    let error = Error::new(ErrorKind::Invalid, format!("the shard is a {name} file, not a tar"));
    Some(
        error
            .at("format", name)
            .advise("pack it as a plain tar, or one that gzip or zstd compressed once"),
    )
}

pub(super) fn corrupt(what: &str, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, what).at("offset", offset)
}

/// The error that the source of the bytes wrapped, or what the system call said.
fn own_or_io(error: io::Error, offset: u64) -> Error {
    match error.downcast::<Error>() {
        Ok(own) => own,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            corrupt("the shard is shorter than its stated length", offset)
        }
        Err(error) => Error::from_io("read the shard", &error).at("offset", offset),
    }
}
