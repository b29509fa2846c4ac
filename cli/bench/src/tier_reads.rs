//! Bytes a daemon reads from its tiers.
//!
//! Bytes count as tiers transfer them, whole sectors and gaps between members included; payload is
//! counted elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use forebay_client::Address;
use forebay_error::Result;
use serde::{Deserialize, Serialize};

use crate::fetches;

/// Bytes by the tier's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TierReads(BTreeMap<String, u64>);

/// The part of a status document that is read here.
#[derive(Deserialize)]
struct Status {
    tiers: Vec<Tier>,
}

#[derive(Deserialize)]
struct Tier {
    name: String,
    tier_read_bytes: u64,
}

impl TierReads {
    /// Those of a daemon so far.
    pub(crate) fn of(address: &Address) -> Result<Self> {
        let Status { tiers } = fetches::status(address)?;
        Ok(Self(tiers.into_iter().map(|tier| (tier.name, tier.tier_read_bytes)).collect()))
    }

    /// Returns the bytes read since `before`.
    pub(crate) fn since(self, before: &Self) -> Self {
        let read = |(name, bytes): (String, u64)| {
            let before = before.0.get(&name).copied().unwrap_or(0);
            (name, bytes.saturating_sub(before))
        };
        Self(self.0.into_iter().map(read).collect())
    }
}

impl fmt::Display for TierReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = self.0.iter().filter(|(_, bytes)| **bytes > 0);
        let told = read.map(|(name, bytes)| format!("{name} {:.3} GB", *bytes as f64 / 1e9));
        let told: Vec<_> = told.collect();
        f.write_str(if told.is_empty() { "no tier" } else { "" })?;
        f.write_str(&told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_are_counted_by_tier() {
        let reads = |of: &[(&str, u64)]| {
            TierReads(of.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect())
        };
        let before = reads(&[("disk", 1_000_000_000), ("ram", 7)]);
        let read = reads(&[("disk", 3_500_000_000), ("new", 9), ("ram", 7)]).since(&before);
        assert_eq!(read, reads(&[("disk", 2_500_000_000), ("new", 9), ("ram", 0)]));
        assert_eq!(read.to_string(), "disk 2.500 GB, new 0.000 GB");
        assert_eq!(TierReads::default().to_string(), "no tier");
    }
}
