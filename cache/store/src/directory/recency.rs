//! Order in which shards were last used, saved for the next start.
//!
//! It is a hint. A missing, damaged or old file costs some order, never a shard. Nothing else
//! depends on it, and it is replaced whole.
//!
//! # Layout (all integers little-endian)
//! magic `FOREBAYR`, `u32` format 1, `u32` CRC32C of the rest, then for each shard the XXH3-64 of
//! its name, least recently used first: 8 MB for a million.

use std::fs;
use std::path::PathBuf;

use forebay_error::Result;
use forebay_shard::checksum::crc32c;

use super::Directory;

const MAGIC: &[u8; 8] = b"FOREBAYR";
const FORMAT: u32 = 1;
/// Magic, format and checksum.
const HEAD_BYTES: usize = 16;

impl Directory {
    fn recency(&self) -> PathBuf {
        self.root.join("RECENCY")
    }

    /// Saves the order for the next start.
    pub(crate) fn save_recency(&self, oldest_first: &[u64]) -> Result<()> {
        let body: Vec<u8> = oldest_first.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        self.put(&self.recency(), &self.root.join("RECENCY.new"), &bytes)
    }

    /// Loads the order that the last daemon saved; empty if it cannot be read.
    pub(crate) fn load_recency(&self) -> Vec<u64> {
        let path = self.recency();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::warn!(%error, "failed to read the order in which shards were used");
                return Vec::new();
            }
        };
        parse(&bytes).unwrap_or_else(|| {
            let path = path.display();
            tracing::warn!(%path, "is damaged: shards count as used when they were written");
            Vec::new()
        })
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<u64>> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
    let right = [&MAGIC[..], &FORMAT.to_le_bytes(), &crc32c(body).to_le_bytes()].concat();
    let (hashes, rest) = body.as_chunks::<8>();
    (head == right && rest.is_empty())
        .then(|| hashes.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
}

#[cfg(test)]
mod tests;
