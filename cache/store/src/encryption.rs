//! Keys of encrypted tiers, and the ciphers of a tier's files.
//!
//! A secret of 32 bytes comes from a key file, or is made at random for one life of the daemon.
//! A tier's own keys are derived from the secret and the salt of its directory: so two directories
//! under one key file share no key. No key is shown anywhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::{CIPHER_KEY_BYTES, CipherKey, FileCipher, MAC_BYTES, fill_random, mac};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::secret_file::{SecretReaders, read_secret};

/// Bytes of a key file: as many as an AES-256 key has, from which the keys of XTS are derived.
pub const KEY_FILE_BYTES: usize = 32;

/// Memory in which an encrypted tier encrypts bytes that others read meanwhile: eight parts in the
/// kernel's hands keep a drive busy.
pub const ENCRYPTION_BYTES: usize = 8 * crate::sizes::PART_BYTES;

/// Uses of a derived key.
const BLOCKS: &str = "forebay tier: key of blocks";
const TWEAKS: &str = "forebay tier: key of tweaks";
const NAMES: &str = "forebay tier: key of names";
const CHECK: &str = "forebay tier: check of the key";

/// Encryption of a tier, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encryption {
    /// By a key that lies in a file.
    KeyFile(PathBuf),
    /// By a key that lives as long as the daemon.
    Ephemeral,
}

/// Kind of a tier's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeyKind {
    /// The key lies in a file.
    KeyFile,
    /// The key lives as long as the daemon.
    Ephemeral,
}

impl Encryption {
    /// Kind of the key.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        match self {
            Self::KeyFile(_) => KeyKind::KeyFile,
            Self::Ephemeral => KeyKind::Ephemeral,
        }
    }
}

/// A secret. Its bytes are zeroed when it drops.
pub struct Secret {
    kind: KeyKind,
    bytes: Zeroizing<[u8; KEY_FILE_BYTES]>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secret").field(&self.kind).finish()
    }
}

impl Secret {
    /// Reads a key file.
    ///
    /// # Errors
    /// `PermissionDenied` if others could read or change it; `Invalid` if it does not hold
    /// [`KEY_FILE_BYTES`] bytes; errors of reading it.
    pub fn read(path: &Path) -> Result<Self> {
        let at = |error: Error| error.at("key_file", path.display());
        let bytes = read_secret(path, "key_file", KEY_FILE_BYTES as u64, SecretReaders::Owner)?;
        let advice = format!("create one: `openssl rand -out FILE {KEY_FILE_BYTES}`");
        if bytes.len() != KEY_FILE_BYTES {
            let what = format!("a key file holds {KEY_FILE_BYTES} bytes, no more and no less");
            return Err(at(Error::new(ErrorKind::Invalid, what).advise(advice)));
        }
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            let what = "a key file holds one byte over and over: that is no key";
            return Err(at(Error::new(ErrorKind::Invalid, what).advise(advice)));
        }
        let mut secret = Self { kind: KeyKind::KeyFile, bytes: Zeroizing::default() };
        secret.bytes.copy_from_slice(&bytes);
        Ok(secret)
    }

    /// Makes a secret at random, for one life of the daemon.
    ///
    /// # Errors
    /// `Unavailable` if the system has no random bytes.
    pub fn ephemeral() -> Result<Self> {
        let mut secret = Self { kind: KeyKind::Ephemeral, bytes: Zeroizing::default() };
        fill_random(&mut secret.bytes[..])?;
        Ok(secret)
    }

    /// Kind of the key.
    pub(crate) fn kind(&self) -> KeyKind {
        self.kind
    }

    fn derive(&self, usage: &str, salt: u128) -> Result<Zeroizing<[u8; MAC_BYTES]>> {
        let text = [usage.as_bytes(), &salt.to_be_bytes()].concat();
        mac(&self.bytes[..], &text)
    }

    /// A value that tells the right secret, and nothing of it.
    pub(crate) fn check_value(&self, salt: u128) -> Result<u128> {
        Ok(first_half(&*self.derive(CHECK, salt)?))
    }

    /// Ciphers of the directory with this salt.
    pub(crate) fn ciphers(&self, salt: u128) -> Result<TierCipher> {
        let mut key = Zeroizing::new([0; CIPHER_KEY_BYTES]);
        let (blocks, tweaks) = key.split_at_mut(MAC_BYTES);
        blocks.copy_from_slice(&self.derive(BLOCKS, salt)?[..]);
        tweaks.copy_from_slice(&self.derive(TWEAKS, salt)?[..]);
        let names = Arc::new(self.derive(NAMES, salt)?);
        Ok(TierCipher { key: Arc::new(CipherKey::new(key)?), names })
    }
}

/// Ciphers of a directory's files.
#[derive(Clone)]
pub(crate) struct TierCipher {
    key: Arc<CipherKey>,
    /// Key of the files' tweaks.
    names: Arc<Zeroizing<[u8; MAC_BYTES]>>,
}

impl fmt::Debug for TierCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TierCipher")
    }
}

impl TierCipher {
    /// Cipher of a file, by its path in the directory: the bytes of one file are noise under the
    /// name of another.
    ///
    /// # Errors
    /// `Unavailable` without memory.
    pub(crate) fn of(&self, path: &[u8]) -> Result<FileCipher> {
        let tweak = first_half(&*mac(&self.names[..], path)?);
        Ok(FileCipher::new(&self.key, tweak))
    }
}

fn first_half(value: &[u8; MAC_BYTES]) -> u128 {
    let half = value.first_chunk().expect("a value has two halves");
    u128::from_be_bytes(*half)
}

/// Source of a tier's secret while the daemon runs.
#[derive(Debug, Clone)]
pub(crate) enum KeySource {
    /// A file, which is read whenever the directory is opened.
    File(PathBuf),
    /// This secret.
    Here(Arc<Secret>),
}

impl KeySource {
    /// The source of a secret, made now if it is ephemeral.
    pub(crate) fn of(encryption: &Encryption) -> Result<Self> {
        Ok(match encryption {
            Encryption::KeyFile(path) => Self::File(path.clone()),
            Encryption::Ephemeral => Self::Here(Arc::new(Secret::ephemeral()?)),
        })
    }

    /// Reads the secret.
    pub(crate) fn secret(&self) -> Result<Arc<Secret>> {
        match self {
            Self::File(path) => Secret::read(path).map(Arc::new),
            Self::Here(secret) => Ok(secret.clone()),
        }
    }

    /// Kind of the key.
    pub(crate) fn kind(&self) -> KeyKind {
        match self {
            Self::File(_) => KeyKind::KeyFile,
            Self::Here(secret) => secret.kind(),
        }
    }
}

#[cfg(test)]
mod tests;
