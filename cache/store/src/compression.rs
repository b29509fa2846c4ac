//! Compression of a shard at its origin, recognized by its first bytes or its name.

/// First bytes of each gzip member: two magic bytes, and the only compression method.
pub(crate) const GZIP: &[u8] = &[0x1f, 0x8b, 8];

/// First bytes of a zstd frame. A skippable frame, such as `pzstd` writes, may differ in the lowest
/// four bits of its first byte.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
pub(crate) const ZSTD_SKIPPED: &[u8] = &[0x50, 0x2a, 0x4d, 0x18];

/// File name endings of a compressed tar.
const ENDINGS: [&str; 5] = [".gz", ".tgz", ".zst", ".tzst", ".zstd"];

/// Compression format of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Recognizes the format by the first bytes. A plain tar begins with a file name or with zeros.
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

    /// Returns true if the name ends like a compressed tar. The name only decides how the first
    /// bytes are requested.
    pub(crate) fn is_promised(url: &str) -> bool {
        let path = url.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
        ENDINGS.iter().any(|ending| path.ends_with(ending))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}
