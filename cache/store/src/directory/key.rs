//! Key record of a directory: the kind of its key, its salt, and a value that tells the right key.
//!
//! Nothing is deleted for a wrong key. Only a directory whose record says that its key was
//! ephemeral is emptied when the key is gone: its files are noise. A directory without shards and
//! checkpoints takes any key, or none.
//!
//! The record comes before the format that names it, and goes after it: a crash between the two
//! leaves a directory without shards, which takes any key.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;
use std::sync::Arc;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::{DiskFile, Engine, EnginePlace, FileCipher, GRANULE, Open, fill_random};
use serde::{Deserialize, Serialize};

use super::{
    Directory, FORMAT, FORMAT_ENCRYPTED, ShardName, check_staged_id, replace, write_format,
};
use crate::device;
use crate::encryption::{KeyKind, Secret, TierCipher};
use crate::files::Files;

/// Name of the record,
pub(super) const KEY: &str = "KEY";

/// and while it is being written.
pub(super) const KEY_ASIDE: &str = "KEY.new";

/// Bytes of a record, at most: a line.
const RECORD_MAX: usize = 1024;

/// The cipher of this release.
const CIPHER: &str = "aes-256-xts";

/// Bytes at the end of a small file that give its length: it is padded to whole blocks.
const LENGTH_BYTES: usize = 8;

/// Key to open a directory with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    /// The secret; none for a directory that is not encrypted.
    pub(crate) secret: Option<Arc<Secret>>,
    /// True if nothing may be changed: a directory with another key is rejected in any case.
    pub(crate) is_check: bool,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyRecord {
    cipher: String,
    key: KeyKind,
    /// Part of every derived key, in hexadecimal digits.
    salt: String,
    /// Value of the right key, in hexadecimal digits.
    check: String,
}

impl KeyRecord {
    fn read(root: &Path) -> Result<Option<Self>> {
        let at = |error: Error| error.at("path", root.join(KEY).display());
        let bytes = match fs::read(root.join(KEY)) {
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
            read => read.doing("read a key record").map_err(at)?,
        };
        let record = (bytes.len() <= RECORD_MAX).then(|| serde_json::from_slice::<Self>(&bytes));
        match record {
            Some(Ok(record)) if record.cipher == CIPHER => Ok(Some(record)),
            _ => Err(at(Error::new(ErrorKind::Corrupt, "the tier's key record cannot be read")
                .at("reason", "key-record")
                .advise("restore the file KEY, or empty the directory: nothing was deleted"))),
        }
    }

    fn of(secret: &Secret) -> Result<Self> {
        let mut salt = [0; 16];
        fill_random(&mut salt)?;
        let salt = u128::from_be_bytes(salt);
        Ok(Self {
            cipher: CIPHER.to_owned(),
            key: secret.kind(),
            salt: format!("{salt:032x}"),
            check: format!("{:032x}", secret.check_value(salt)?),
        })
    }

    /// Ciphers of the directory, if this is the secret.
    fn unlock(&self, secret: &Secret) -> Result<Option<TierCipher>> {
        let number = |text: &str| u128::from_str_radix(text, 16).ok();
        let Some((salt, check)) = number(&self.salt).zip(number(&self.check)) else {
            return Ok(None);
        };
        let is_right = self.key == secret.kind() && secret.check_value(salt)? == check;
        is_right.then(|| secret.ciphers(salt)).transpose()
    }
}

/// Opens the ciphers of a directory, whose lock is held; none if it is not encrypted.
///
/// # Errors
/// `Invalid` if the directory holds shards or checkpoints under another key, or under none where
/// one is given, and the other way round; then nothing is changed.
pub(super) fn unlock(root: &Path, files: &dyn Files, keys: &Keys) -> Result<Option<TierCipher>> {
    let (record, secret) = (KeyRecord::read(root)?, keys.secret.as_deref());
    let is_marked = fs::read_to_string(root.join("FORMAT")).is_ok_and(|it| it == FORMAT_ENCRYPTED);
    match (&record, secret) {
        (None, None) if !is_marked => return Ok(None),
        (Some(record), Some(secret)) => {
            if let Some(ciphers) = record.unlock(secret)? {
                return Ok(Some(ciphers));
            }
        }
        _ => {}
    }
    let was_ephemeral = record.as_ref().is_some_and(|record| record.key == KeyKind::Ephemeral);
    if keys.is_check || !was_ephemeral && !is_vacant(root)? {
        return Err(refusal(record.as_ref(), secret, is_marked));
    }
    let removed = clear(root, files).doing("empty a tier whose key is gone")?;
    if removed > 0 && was_ephemeral {
        tracing::info!(removed, "removed the files of an ephemeral tier: their key is gone");
    }
    let Some(secret) = secret else {
        write_format(root, files, FORMAT).doing("write the cache directory's format")?;
        return match files.remove(&root.join(KEY)) {
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            removed => removed.doing("remove a key record").map(|()| None),
        };
    };
    let record = KeyRecord::of(secret)?;
    let line = serde_json::to_string(&record).expect("texts have a form in JSON") + "\n";
    replace(root, files, (KEY, KEY_ASIDE), &line).doing("write a key record")?;
    record.unlock(secret)
}

/// Returns true if the directory holds no shard, whole or not, and no checkpoint.
fn is_vacant(root: &Path) -> Result<bool> {
    Ok(own_files(root).doing("list the cache directory")?.is_empty())
}

/// Files of shards and checkpoints.
fn own_files(root: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut own = Vec::new();
    for folder in ["shards", "checkpoints"] {
        let listed = match fs::read_dir(root.join(folder)) {
            Err(error) if error.kind() == IoErrorKind::NotFound => continue,
            listed => listed?,
        };
        for entry in listed {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let id = name.split('.').next().unwrap_or_default();
            let is_own = ShardName::is_shard_file(name) || check_staged_id(id).is_ok();
            if is_own && entry.file_type()?.is_file() {
                own.push(entry.path());
            }
        }
    }
    Ok(own)
}

/// Removes shards, checkpoints and indexes. Returns the number of removed files.
fn clear(root: &Path, files: &dyn Files) -> std::io::Result<usize> {
    let mut paths = own_files(root)?;
    match fs::read_dir(root.join("indexes")) {
        Err(error) if error.kind() == IoErrorKind::NotFound => {}
        listed => {
            for entry in listed? {
                let entry = entry?;
                let is_own = entry.file_name().to_str().is_some_and(ShardName::is_shard_file);
                paths.extend(is_own.then(|| entry.path()));
            }
        }
    }
    for path in &paths {
        files.remove(path)?;
    }
    for folder in ["shards", "checkpoints", "indexes"].map(|folder| root.join(folder)) {
        if !paths.is_empty() && folder.exists() {
            files.sync_directory(&folder)?;
        }
    }
    Ok(paths.len())
}

/// Error of a directory that does not fit the configuration.
fn refusal(record: Option<&KeyRecord>, secret: Option<&Secret>, is_marked: bool) -> Error {
    let (what, reason, advice) = match (record.map(|record| record.key), secret.map(Secret::kind)) {
        (Some(KeyKind::Ephemeral), _) => (
            "the tier's key was ephemeral and is gone: its files are noise",
            "ephemeral",
            "a daemon with this tier starts empty",
        ),
        (None, _) if is_marked => (
            "the tier is encrypted, and its key record is missing",
            "key-record",
            "restore the file KEY of the tier's directory, or empty the directory",
        ),
        (None, _) => (
            "the tier's configuration has encryption, and its directory holds plain files",
            "plain",
            "remove `encryption` and `forebay tier drain` it, or empty the directory",
        ),
        (Some(KeyKind::KeyFile), None) => (
            "the tier is encrypted, and its configuration has no encryption",
            "encrypted",
            "configure its key file, or empty the directory",
        ),
        (Some(KeyKind::KeyFile), Some(KeyKind::KeyFile)) => (
            "the key file is not the one that the tier was encrypted with",
            "wrong-key",
            "configure the right key file; to change the key, drain the tier with the old one",
        ),
        (Some(KeyKind::KeyFile), Some(KeyKind::Ephemeral)) => (
            "the tier was encrypted with a key file, and is configured as ephemeral",
            "key-kind",
            "configure its key file and drain the tier, or empty the directory",
        ),
    };
    Error::new(ErrorKind::Invalid, what)
        .at("reason", reason)
        .advise(format!("{advice}; nothing was deleted"))
}

impl Directory {
    /// Returns true if its files are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.ciphers.is_some()
    }

    /// Length of a data file with `len` bytes: blocks of a cipher are whole.
    pub(crate) fn stored_len(&self, len: u64) -> u64 {
        match self.is_encrypted() {
            true => len.next_multiple_of(GRANULE as u64),
            false => len,
        }
    }

    /// Opens the data of a shard.
    ///
    /// # Errors
    /// As [`Engine::open`]; `Unavailable` if the device does not answer.
    pub(crate) async fn open_data(
        &self,
        engine: &Engine,
        name: &ShardName,
        open: Open,
    ) -> Result<DiskFile> {
        self.open_file(engine, &self.data(name), open).await
    }

    /// Creates the data of a shard, with `len` bytes reserved. Data without an entry, left by a
    /// removal that failed, is removed. Blocks.
    ///
    /// # Errors
    /// As [`Engine::open`]; `Unavailable` if another directory lies where this one was.
    pub(crate) fn create_data(
        &self,
        place: &EnginePlace,
        name: &ShardName,
        len: u64,
    ) -> Result<DiskFile> {
        self.check_identity()?;
        let path = self.data(name);
        let create = || place.open(&path, Open::Create { len });
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                self.remove(name)?;
                create()?
            }
            created => created?,
        };
        Ok(match self.cipher(&path)? {
            Some(cipher) => file.encrypted(cipher),
            None => file,
        })
    }

    /// Opens a staged file.
    ///
    /// # Errors
    /// As [`Directory::open_data`].
    pub(crate) async fn open_staged(
        &self,
        engine: &Engine,
        id: &str,
        open: Open,
    ) -> Result<DiskFile> {
        self.open_file(engine, &self.staged(id), open).await
    }

    async fn open_file(&self, engine: &Engine, path: &Path, open: Open) -> Result<DiskFile> {
        let open = match open {
            Open::Create { len } => Open::Create { len: self.stored_len(len) },
            other => other,
        };
        let cipher = self.cipher(path)?;
        let file = device::answer(engine.open(path, open)).await??;
        Ok(match cipher {
            Some(cipher) => file.encrypted(cipher),
            None => file,
        })
    }

    /// Cipher of a file by its name in the directory, under which it is read later.
    fn cipher(&self, path: &Path) -> Result<Option<FileCipher>> {
        let Some(ciphers) = &self.ciphers else { return Ok(None) };
        let name = path.strip_prefix(&self.root).unwrap_or(path);
        ciphers.of(name.as_os_str().as_encoded_bytes()).map(Some)
    }

    /// Bytes of a small file as they lie on the disk. Files of the directory's root stay plain:
    /// they are read before the key is known.
    pub(super) fn sealed(&self, path: &Path, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        if path.parent() == Some(self.root.as_path()) {
            return Ok(None);
        }
        let Some(cipher) = self.cipher(path)? else { return Ok(None) };
        let len = (bytes.len() + LENGTH_BYTES).next_multiple_of(GRANULE);
        let mut sealed = Vec::with_capacity(len);
        sealed.extend_from_slice(bytes);
        sealed.resize(len - LENGTH_BYTES, 0);
        sealed.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        cipher.encrypt(0, &mut sealed)?;
        Ok(Some(sealed))
    }

    /// Reads a small file.
    pub(super) fn read_sealed(&self, path: &Path) -> Result<Vec<u8>> {
        let mut bytes = fs::read(path).doing("read a file of the cache")?;
        let Some(cipher) = self.cipher(path)? else { return Ok(bytes) };
        let damaged = || Error::new(ErrorKind::Corrupt, "an encrypted file is damaged");
        if bytes.is_empty() || !bytes.len().is_multiple_of(GRANULE) {
            return Err(damaged().at("path", path.display()));
        }
        cipher.decrypt(0, &mut bytes)?;
        let (rest, len) = bytes.split_last_chunk::<LENGTH_BYTES>().ok_or_else(damaged)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        if len > rest.len() || rest.len() - len >= GRANULE {
            return Err(damaged().at("path", path.display()));
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Decrypts the first block of a small file in place.
    pub(super) fn unseal_head(&self, path: &Path, block: &mut [u8]) -> Result<()> {
        match self.cipher(path)? {
            Some(cipher) => cipher.decrypt(0, block),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
