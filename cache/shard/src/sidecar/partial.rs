//! Record of a shard in flight: the blocks that are durable on the disk.
//! A block is entered only after its data was synced, with the checksum of the origin's bytes.
//! So a fill that resumes after a crash trusts nothing: it reads and compares.

use forebay_error::{Error, ErrorKind, Result};

use super::names::Names;
use super::reader::Reader;
use super::{BLOCK_BYTES, CRC_AT, Origin, damaged, zeroed_crc32c};

const MAGIC: &[u8; 8] = b"FOREBAYP";
const FORMAT: u32 = 2;
/// The oldest format that is read: it names no tenant.
const FORMAT_OLDEST: u32 = 1;

/// Bytes of one block's entry.
const ENTRY_BYTES: u64 = 5;

/// Progress of a shard's fill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// Identity of the bytes.
    pub origin: Origin,
    /// Tenant of the job that fetches them, if any.
    pub tenant: Option<String>,
    /// The shard's length in bytes.
    pub len: u64,
    /// CRC32C of each [`BLOCK_BYTES`] that is on the disk, the last one shorter.
    pub blocks: Vec<Option<u32>>,
}

impl Partial {
    /// Bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.len.to_le_bytes());
        Names::put(&self.origin, self.tenant.as_deref(), &mut bytes)?;
        for block in &self.blocks {
            bytes.push(u8::from(block.is_some()));
            bytes.extend_from_slice(&block.unwrap_or_default().to_le_bytes());
        }
        let crc = zeroed_crc32c(&bytes);
        bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    /// Reads what [`Partial::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` if any bit differs, `Invalid` if another format version wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(damaged("it does not start with the magic bytes"));
        }
        let format = reader.u32()?;
        if reader.u32()? != zeroed_crc32c(bytes) {
            return Err(damaged("it has a wrong checksum"));
        }
        if !(FORMAT_OLDEST..=FORMAT).contains(&format) {
            return Err(Error::new(ErrorKind::Invalid, "a partial shard has another format"));
        }
        let len = reader.u64()?;
        let Names { origin, tenant } = Names::read(&mut reader, format > FORMAT_OLDEST)?;
        let count = len.div_ceil(BLOCK_BYTES);
        if count.checked_mul(ENTRY_BYTES) != Some(reader.left() as u64) {
            return Err(damaged("it does not have one entry per block"));
        }
        let block = |_| {
            let there = reader.take(1)?[0] != 0;
            let crc32c = reader.u32()?;
            Ok(there.then_some(crc32c))
        };
        let blocks = (0..count).map(block).collect::<Result<_>>()?;
        Ok(Self { origin, tenant, len, blocks })
    }
}
