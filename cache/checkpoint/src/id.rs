//! Identity of a staged file.

use std::fmt;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::blocks::hex_digit;

/// Bytes of an id: as many as a random UUID has, so ids of all attempts of all jobs differ.
const BYTES: usize = 16;

/// Random identity of one file of one attempt, written as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileId([u8; BYTES]);

impl FileId {
    /// Returns the id of these bytes, which the caller has drawn at random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileId({self})")
    }
}

impl FromStr for FileId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            Error::new(ErrorKind::Invalid, "a file's id has 32 lower-case hexadecimal digits")
                .at("id", text)
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != BYTES || !rest.is_empty() {
            return Err(invalid());
        }
        let mut bytes = [0; BYTES];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let digits = hex_digit(*high).zip(hex_digit(*low));
            let (high, low) = digits.ok_or_else(invalid)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for FileId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<FileId> for String {
    fn from(id: FileId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_of_another_form_are_rejected() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert_eq!(digits.parse::<FileId>().unwrap().to_string(), digits);
        for text in [
            String::new(),
            digits[1..].to_owned(),
            format!("{digits}0"),
            digits.to_uppercase(),
            digits.replace('a', "g"),
            digits.replace("0123", "+123"),
            "é".repeat(16),
        ] {
            let error = text.parse::<FileId>().unwrap_err();
            assert_eq!((error.kind(), error.place("id")), (ErrorKind::Invalid, Some(&*text)));
        }
    }

    proptest! {
        #[test]
        fn ids_survive_text_and_json(bytes in any::<[u8; BYTES]>()) {
            let id = FileId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().parse::<FileId>().unwrap(), id);
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<FileId>(&json).unwrap(), id);
            prop_assert_eq!(id.as_bytes(), &bytes);
        }
    }
}
