//! The token by which admins are known over TCP.
//!
//! It lies in a file that nobody else may read, is compared in constant time, and is
//! shown nowhere.

use std::fmt;
use std::path::Path;

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{SecretReaders, read_secret};
use subtle::ConstantTimeEq;

/// Characters that it has at least: 128 bits written as hexadecimal digits.
const LEAST: usize = 32;

/// Bytes that its file has at most.
const MOST: u64 = 4096;

/// A secret that admins show.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads a file, without the spaces around the content.
    pub fn read(path: &Path) -> Result<Self> {
        let at = |error: Error| error.at("token_file", path.display());
        let bytes = read_secret(path, "token_file", MOST, SecretReaders::Group)?;
        let text = String::from_utf8_lossy(&bytes);
        let token = text.trim();
        let is_one = token.len() >= LEAST && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_one || text.len() as u64 > MOST {
            let what = format!("a token needs at least {LEAST} characters, without spaces");
            return Err(at(Error::new(ErrorKind::Invalid, what)
                .advise("create one: `openssl rand -hex 32 > FILE`")));
        }
        Ok(Self(token.as_bytes().into()))
    }

    /// Returns true if the token matches.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(shown).into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn token_must_be_long_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        let good = "0123456789abcdef0123456789abcdef";
        for mode in [0o600, 0o400, 0o640] {
            let token = read(&format!(" {good}\n"), mode).unwrap();
            assert!(token.is(good.as_bytes()));
            for other in ["", "0", &good[1..], "0123456789abcdef0123456789abcdeF"] {
                assert!(!token.is(other.as_bytes()), "{other}");
            }
            assert!(!format!("{token:?}").contains("0123"));
        }
        for mode in [0o644, 0o604, 0o660, 0o601] {
            assert_eq!(
                read(good, mode).unwrap_err().kind(),
                ErrorKind::PermissionDenied,
                "{mode:o}"
            );
        }
        for text in [
            "",
            "short",
            "0123456789abcdef 0123456789abcdef",
            "é".repeat(40).as_str(),
            &"x".repeat(5000),
        ] {
            assert_eq!(read(text, 0o600).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        assert_eq!(Token::read(folder.path()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
