//! File of pins in the directory. The content is defined in [`crate::pins`].

use forebay_error::Result;

use super::Directory;
use crate::pins::FILE;

impl Directory {
    /// Saves the pins for the next start.
    pub(crate) fn save_pins(&self, text: &[u8]) -> Result<()> {
        let aside = self.root.join(format!("{FILE}.new"));
        self.put(&self.root.join(FILE), &aside, text)
    }
}
