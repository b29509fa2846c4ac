//! Kinds of requests, by which a daemon reserves memory before it decodes one.

/// Kind of a request, as the first byte of its encoding tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestKind(u8);

impl RequestKind {
    pub(crate) const OPEN: Self = Self(1);
    pub(crate) const MIX: Self = Self(6);
    pub(crate) const EXTENT: Self = Self(8);
    pub(crate) const CHOOSE: Self = Self(19);
    pub(crate) const LOCATE: Self = Self(21);
    pub(crate) const JOIN: Self = Self(23);
    pub(crate) const BIN: Self = Self(24);

    /// Kind of the request that begins with this byte.
    #[must_use]
    pub fn of(first: u8) -> Self {
        Self(first)
    }

    /// True for a request that lists shards or samples of a job, which the daemon keeps.
    #[must_use]
    pub fn is_list(self) -> bool {
        let facts = [Self::OPEN, Self::MIX, Self::EXTENT, Self::CHOOSE, Self::JOIN, Self::BIN];
        facts.contains(&self) || self == Self::LOCATE
    }
}
