//! Files with secrets: keys of tiers, and the daemon's tokens and private keys.
//!
//! Rule: a secret that other users could read or change is rejected.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};
use zeroize::Zeroizing;

/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Users who may read a secret's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretReaders {
    /// The owner alone: keys of data at rest are of use to the daemon only.
    Owner,
    /// The owner and the file's group: issuers of certificates write private keys for a group.
    Group,
}

impl SecretReaders {
    /// Mode bits that the file may not have.
    fn forbidden(self) -> u32 {
        match self {
            Self::Owner => PERMISSIONS & !0o600,
            Self::Group => 0o027,
        }
    }
}

/// Reads a secret of at most `most` bytes; of a longer file, one byte more. `key` is its key in the
/// configuration. The bytes are zeroed when they drop.
///
/// # Errors
/// `PermissionDenied` if others than `readers` could read it, or others than its owner change it;
/// `Invalid` if it is no plain file; errors of reading it.
pub fn read_secret(
    path: &Path,
    key: &'static str,
    most: u64,
    readers: SecretReaders,
) -> Result<Zeroizing<Vec<u8>>> {
    let at = |error: Error| error.at(key, path.display());
    let mut file = File::open(path).doing("open a secret's file").map_err(at)?;
    let found = file.metadata().doing("stat a secret's file").map_err(at)?;
    if !found.is_file() {
        return Err(at(Error::new(ErrorKind::Invalid, "a secret's path is not a plain file")));
    }
    let mode = found.mode() & PERMISSIONS;
    let own = rustix::process::geteuid().as_raw();
    if mode & readers.forbidden() != 0 || ![0, own].contains(&found.uid()) {
        let what = "users other than the daemon's could read or change the secret";
        let advice = "make the daemon's user its owner, `chmod 600` it, and replace the secret if \
                      others could read it";
        return Err(at(Error::new(ErrorKind::PermissionDenied, what)
            .at("mode", format_args!("{mode:o}"))
            .at("uid", found.uid())
            .advise(advice)));
    }
    // All of the room at once: a buffer that grows leaves copies of the secret behind.
    let room = usize::try_from(found.len().min(most)).unwrap_or(usize::MAX).saturating_add(1);
    let mut bytes = Zeroizing::new(vec![0; room]);
    let mut filled = 0;
    while filled < room {
        match file.read(&mut bytes[filled..]).doing("read a secret").map_err(at)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
