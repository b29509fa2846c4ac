//! Identity of a shard's bytes, and tenant of the job: the texts that open both kinds of record.
//!
//! A shard's names fit a sidecar's head from the beginning, so that a recorded fill can be
//! committed.

use forebay_error::Result;

use super::Origin;
use super::reader::Reader;

/// An origin, and the tenant whose job fetched it.
pub(super) struct Names {
    pub(super) origin: Origin,
    pub(super) tenant: Option<String>,
}

impl Names {
    /// The texts in their order; no tenant is an empty one.
    pub(super) fn texts<'a>(origin: &'a Origin, tenant: Option<&'a str>) -> [&'a str; 4] {
        [&origin.endpoint, &origin.url, &origin.version, tenant.unwrap_or_default()]
    }

    /// Appends the texts' lengths, then the texts.
    pub(super) fn put(origin: &Origin, tenant: Option<&str>, into: &mut Vec<u8>) -> Result<()> {
        origin.check(tenant)?;
        let texts = Self::texts(origin, tenant);
        for text in texts {
            // Their sum was checked, so each length fits 16 bits.
            into.extend_from_slice(&(text.len() as u16).to_le_bytes());
        }
        into.extend(texts.iter().flat_map(|text| text.bytes()));
        Ok(())
    }

    /// Reads what [`Names::put`] appended, or what an older format did, which knew no tenants.
    pub(super) fn read(reader: &mut Reader<'_>, has_tenant: bool) -> Result<Self> {
        let lens = [reader.u16()?, reader.u16()?, reader.u16()?];
        let tenant = if has_tenant { reader.u16()? } else { 0 };
        let mut text = |len: u16| reader.text(usize::from(len));
        let origin =
            Origin { endpoint: text(lens[0])?, url: text(lens[1])?, version: text(lens[2])? };
        let tenant = Some(text(tenant)?).filter(|name| !name.is_empty());
        Ok(Self { origin, tenant })
    }
}
