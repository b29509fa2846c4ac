//! What admins pinned, kept in the directory; what it says is [`crate::pins`]' business.

use forebay_error::Result;

use super::Directory;
use crate::pins::FILE;

impl Directory {
    /// Keeps what is pinned for the next start.
    pub(crate) fn save_pins(&self, text: &[u8]) -> Result<()> {
        let aside = self.root.join(format!("{FILE}.new"));
        self.put(&self.root.join(FILE), &aside, text)
    }
}
