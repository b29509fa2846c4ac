//! Rest of a drive's daily write allowance, saved for the next start.
//!
//! It is a hint, as the order of use. If the file is missing or damaged, a whole day's
//! allowance is given.
//!
//! # Layout
//! One line of text: bytes left (negative if overdrawn), and the time in seconds since 1970.

use std::fs;
use std::time::{Duration, SystemTime};

use forebay_error::Result;

use super::Directory;

/// Longer than any valid line: two numbers of 20 digits.
const LINE: usize = 64;

impl Directory {
    /// Saves the rest of the allowance for the next start.
    pub(crate) fn save_wear(&self, left: i64, at: SystemTime) -> Result<()> {
        let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let line = format!("{left} {seconds}\n");
        self.put(&self.root.join("WEAR"), &self.root.join("WEAR.new"), line.as_bytes())
    }

    /// Loads the rest that the last daemon saved.
    pub(crate) fn load_wear(&self) -> Option<(i64, SystemTime)> {
        let text = fs::read_to_string(self.root.join("WEAR")).ok().filter(|t| t.len() <= LINE)?;
        let (left, seconds) = text.trim_end().split_once(' ')?;
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?))?;
        Some((left.parse().ok()?, at))
    }
}

#[cfg(test)]
mod tests;
