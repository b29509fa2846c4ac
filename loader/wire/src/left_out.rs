//! Keys that a listing leaves out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Keys of a store that match a pattern and that no URL can name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Their number.
    pub count: u64,
    /// The first of them.
    pub keys: Vec<String>,
}

impl LeftOut {
    /// Returns true if every matching key has a URL.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the keys of another pattern.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.keys.extend(other.keys);
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys match that no URL can name, and are left out: ", self.count)?;
        let named = self.keys.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>();
        f.write_str(&named.join(", "))?;
        match self.count > self.keys.len() as u64 {
            true => f.write_str(", …"),
            false => Ok(()),
        }
    }
}
