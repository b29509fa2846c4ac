//! Rates as admins write them: `10Gbit/s`, `500MB/s`.
//!
//! A unit that could mean bits or bytes is refused, not guessed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// Bytes a second, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(u64);

/// Bits of a byte.
const BITS: f64 = 8.0;

/// Multipliers.
const PREFIXES: [(&str, f64); 9] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
];

impl Rate {
    /// Bytes a second.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a rate like \"10Gbit/s\" or \"500MB/s\"");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, unit) = trimmed.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim();
        let unit = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps")).ok_or_else(wrong)?;
        let per_byte = |unit: &str, per: f64| {
            let prefix = PREFIXES.iter().find(|(prefix, _)| *prefix == unit);
            if unit.is_empty() { Some(1.0 / per) } else { prefix.map(|(_, times)| times / per) }
        };
        let times = if let Some(prefix) = unit.strip_suffix("bit") {
            per_byte(prefix, BITS)
        } else if let Some(prefix) = unit.strip_suffix('B') {
            per_byte(prefix, 1.0)
        } else if let Some(prefix) = unit.strip_suffix('b').filter(|_| trimmed.ends_with("ps")) {
            // Mbps is bits, wherever links are sold.
            per_byte(prefix, BITS)
        } else {
            None
        };
        let bytes = number * times.ok_or_else(wrong)?;
        match bytes.is_finite() && (1.0..u64::MAX as f64).contains(&bytes) {
            true => Ok(Self(bytes as u64)),
            false => Err(format!("`{text}` is below one byte per second, or too large")),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_in_bits_and_bytes_are_distinguished() {
        for (text, bytes) in [
            ("10Gbit/s", 1_250_000_000),
            ("10 Gbps", 1_250_000_000),
            ("1.5GB/s", 1_500_000_000),
            ("1GiB/s", 1 << 30),
            ("800kbit/s", 100_000),
            ("64B/s", 64),
            ("8bit/s", 1),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.bytes(), bytes, "{text}");
            assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
    }

    #[test]
    fn invalid_rates_are_rejected() {
        for text in [
            "",
            "10",
            "10G",
            "10Gb/s",
            "Gbit/s",
            "-1GB/s",
            "1.2.3GB/s",
            "10Gbit",
            "10parsecs/s",
            "0GB/s",
            "1bit/s",
            "99999999999999TB/s",
            "10 Gbit per s",
            "1e3B/s",
        ] {
            assert!(text.parse::<Rate>().unwrap_err().contains(text), "{text}");
        }
    }
}
