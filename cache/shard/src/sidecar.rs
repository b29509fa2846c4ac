//! Sidecar of a cached shard: its identity, and the place of each field.
//! A sidecar verifies itself. One of two checksums detects any flipped bit, and no
//! length is trusted before it is compared with the bytes present.

mod body;
mod names;
mod partial;
mod reader;

use forebay_error::{Error, ErrorKind, Result};

use crate::checksum::crc32c;
use crate::index::Index;
use names::Names;
pub use partial::Partial;
use reader::Reader;

/// Bytes under one checksum of [`Sidecar::blocks`]: what a fill fetches at once, and so small that
/// a gigabyte's checksums take 1 KiB.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// The head's size: one page, one aligned read on 512-byte and 4 KiB disks.
pub const HEAD_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"FOREBAY\x1a";
const FORMAT: u32 = 5;
/// The first format whose members may lie before earlier ones: links.
const FORMAT_LINKS: u32 = 5;
/// The first format that knows of compressed objects.
const FORMAT_COMPRESSED: u32 = 4;
/// The oldest format that is read: it names no tenant.
const FORMAT_OLDEST: u32 = 2;
/// Place of the head's own checksum.
const CRC_AT: std::ops::Range<usize> = 12..16;
/// The head's bytes in front of its texts.
const FIXED_BYTES: usize = 64;

/// Identity of a copy's bytes. The parts together name one state of one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The store's identity, such as `https://s3.eu-west-1.amazonaws.com` or `file`.
    pub endpoint: String,
    /// The shard's URL.
    pub url: String,
    /// The object's version: an etag or what stands for it.
    pub version: String,
}

impl Origin {
    /// Refuses names that, with that of the tenant, do not fit a sidecar's head.
    ///
    /// # Errors
    /// `Invalid` with the limit.
    pub fn check(&self, tenant: Option<&str>) -> Result<()> {
        let limit = HEAD_BYTES - FIXED_BYTES;
        if Names::texts(self, tenant).iter().map(|text| text.len()).sum::<usize>() > limit {
            let error = Error::new(ErrorKind::Invalid, "the shard's URL is too long to be cached");
            return Err(error.at("url", &self.url).at("limit", limit));
        }
        Ok(())
    }
}

/// The self-checked record beside one cached shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Identity of the bytes.
    pub origin: Origin,
    /// Tenant of the job that fetched them, if any.
    pub tenant: Option<String>,
    /// The shard's length in bytes.
    pub len: u64,
    /// The length of the origin's object, where that is compressed and the shard what it holds, or
    /// where it comes only as a whole.
    pub compressed_len: Option<u64>,
    /// CRC32C of each [`BLOCK_BYTES`] of the shard, the last one shorter.
    pub blocks: Vec<u32>,
    /// Place of each field of each sample.
    pub index: Index,
}

/// Facts in the first [`HEAD_BYTES`] of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Identity of the bytes.
    pub origin: Origin,
    /// Tenant of the job that fetched them, if any.
    pub tenant: Option<String>,
    /// The shard's length in bytes.
    pub len: u64,
    /// The length of the origin's object, where that is compressed.
    pub compressed_len: Option<u64>,
    /// The body's length in bytes: the file is [`HEAD_BYTES`] longer.
    pub body_len: u64,
    /// Number of distinct fields in the shard.
    pub fields: u32,
    /// Number of members in its samples.
    pub members: u32,
    /// Number of samples.
    pub samples: u32,
    body_crc32c: u32,
}

impl Sidecar {
    /// The sidecar's bytes.
    ///
    /// # Errors
    /// `Invalid` if the origin's names do not fit the head, or the index contradicts itself.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; HEAD_BYTES];
        body::encode_blocks(&self.blocks, self.len, &mut bytes)?;
        body::encode(&self.index, self.len, &mut bytes)?;
        let head = Head {
            origin: self.origin.clone(),
            tenant: self.tenant.clone(),
            len: self.len,
            compressed_len: self.compressed_len,
            body_len: (bytes.len() - HEAD_BYTES) as u64,
            fields: body::count(self.index.fields.len())?,
            members: body::count(self.index.members.len())?,
            samples: body::count(self.index.samples.len())?,
            body_crc32c: crc32c(&bytes[HEAD_BYTES..]),
        };
        // Releases that know no links keep and read everything else.
        let format = match body::is_ordered(&self.index) {
            true => FORMAT_COMPRESSED,
            false => FORMAT_LINKS,
        };
        head.encode(format, &mut bytes[..HEAD_BYTES])?;
        Ok(bytes)
    }

    /// Reads what [`Sidecar::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` if any bit differs, `Invalid` if another format version wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let head = Head::decode(bytes)?;
        let body = &bytes[HEAD_BYTES..];
        if body.len() as u64 != head.body_len {
            return Err(damaged("its body's length differs from the head's"));
        }
        if crc32c(body) != head.body_crc32c {
            return Err(damaged("its body has a wrong checksum"));
        }
        let (blocks, index) = body::decode(body, &head)?;
        let Head { origin, tenant, len, compressed_len, .. } = head;
        Ok(Self { origin, tenant, len, compressed_len, blocks, index })
    }

    /// The length of the origin's object.
    #[must_use]
    pub fn origin_len(&self) -> u64 {
        self.compressed_len.unwrap_or(self.len)
    }
}

impl Head {
    /// Returns true if the first [`HEAD_BYTES`] of a sound sidecar have a newer format than this
    /// release knows: it must not be judged or removed.
    #[must_use]
    pub fn is_newer(bytes: &[u8]) -> bool {
        Self::format(bytes).is_ok_and(|(format, _)| format > FORMAT)
    }

    /// The format of an undamaged head, and what follows its checksum.
    fn format(bytes: &[u8]) -> Result<(u32, Reader<'_>)> {
        let head = bytes.get(..HEAD_BYTES).ok_or_else(|| damaged("it is shorter than its head"))?;
        let mut reader = Reader::new(head);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(damaged("it does not start with the magic bytes"));
        }
        let format = reader.u32()?;
        if reader.u32()? != zeroed_crc32c(head) {
            return Err(damaged("its head has a wrong checksum"));
        }
        Ok((format, reader))
    }

    /// Reads the head from a sidecar's first [`HEAD_BYTES`]; what follows them is not looked at.
    ///
    /// # Errors
    /// `Corrupt` if any of its bits differs, `Invalid` if another format version wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (format, mut reader) = Self::format(bytes)?;
        if !(FORMAT_OLDEST..=FORMAT).contains(&format) {
            let what = format!(
                "a sidecar has format {format}; this version reads {FORMAT_OLDEST} to {FORMAT}"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let (len, body_len, body_crc32c) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let (fields, members, samples) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let compressed_len = match format >= FORMAT_COMPRESSED {
            true => Some(reader.u64()?).filter(|len| *len > 0),
            false => None,
        };
        let Names { origin, tenant } = Names::read(&mut reader, format > FORMAT_OLDEST)?;
        let head = Self {
            origin,
            tenant,
            len,
            compressed_len,
            body_len,
            fields,
            members,
            samples,
            body_crc32c,
        };
        Ok(head)
    }

    fn encode(&self, format: u32, into: &mut [u8]) -> Result<()> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&format.to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&self.len.to_le_bytes());
        head.extend_from_slice(&self.body_len.to_le_bytes());
        for number in [self.body_crc32c, self.fields, self.members, self.samples] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        head.extend_from_slice(&self.compressed_len.unwrap_or(0).to_le_bytes());
        Names::put(&self.origin, self.tenant.as_deref(), &mut head)?;
        head.resize(HEAD_BYTES, 0);
        let crc = zeroed_crc32c(&head);
        head[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        into.copy_from_slice(&head);
        Ok(())
    }
}

/// The checksum of bytes that hold it, its own field read as zero.
fn zeroed_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = crate::checksum::Crc32c::new();
    crc.update(&bytes[..CRC_AT.start]);
    crc.update(&[0; 4]);
    crc.update(&bytes[CRC_AT.end..]);
    crc.value()
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a sidecar is damaged: {what}"))
}
