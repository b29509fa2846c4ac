//! Digest of a shard's members, by which an index and a shard are known to belong together.
//!
//! An object's version changes when it is copied, and that of a file differs between nodes. The
//! digest depends on keys, fields, places and contents alone, so it moves with the data set.

use crate::checksum::Crc32c;
use crate::index::Member;
use crate::packed::Catalogue;

/// CRC32C over all samples of a shard, in order.
#[derive(Debug, Clone, Default)]
pub struct Digest(Crc32c);

impl Digest {
    /// Takes the next sample in; each member comes with its field's name.
    pub fn add<'a>(&mut self, key: &str, members: impl IntoIterator<Item = (&'a str, &'a Member)>) {
        self.text(key);
        for (field, member) in members {
            self.text(field);
            self.0.update(&member.offset.to_le_bytes());
            self.0.update(&member.len.to_le_bytes());
            self.0.update(&member.crc32c.to_le_bytes());
        }
    }

    /// Returns the digest of all samples so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.value()
    }

    /// Returns the digest of a whole shard.
    #[must_use]
    pub fn of(catalogue: &Catalogue) -> u32 {
        let mut digest = Self::default();
        let fields = catalogue.fields();
        for sample in (0..).map_while(|at| catalogue.sample(at)) {
            let members = catalogue.members_of(&sample);
            digest.add(&sample.key, members.iter().map(|m| (&*fields[m.field as usize], m)));
        }
        digest.value()
    }

    /// Takes a text in behind its length, so that two lists of texts never look the same.
    fn text(&mut self, text: &str) {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
    }
}
