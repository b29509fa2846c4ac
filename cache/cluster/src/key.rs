//! Key of an object: what placement hashes.

use xxhash_rust::xxh3::Xxh3;

/// Key of an object, the same for all its versions: a hash of endpoint and URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(u128);

impl ObjectKey {
    /// Returns the key of the object at `url` of a store with this endpoint.
    #[must_use]
    pub fn new(endpoint: &str, url: &str) -> Self {
        let mut hash = Xxh3::new();
        for text in [endpoint, url] {
            // With the lengths, no two pairs give the same bytes.
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        Self(hash.digest128())
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}
