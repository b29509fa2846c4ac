//! Files with secrets of the daemon.
//!
//! A secret that other users could read is rejected.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};

/// Others may not read it, nor write it; nor may its group write it.
const FORBIDDEN: u32 = 0o027;

/// Reads a file, up to one byte more than `most`; `key` is its key in the configuration.
pub(crate) fn read(path: &Path, key: &'static str, most: u64) -> Result<Vec<u8>> {
    let at = |error: Error| error.at(key, path.display());
    let file = File::open(path).doing("open a secret's file").map_err(at)?;
    let found = file.metadata().doing("stat a secret's file").map_err(at)?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_file() {
        return Err(at(Error::new(ErrorKind::Invalid, "a secret's path is not a file")));
    }
    if found.mode() & FORBIDDEN != 0 || ![0, own].contains(&found.uid()) {
        let what = "users other than the daemon's could read the secret";
        return Err(at(Error::new(ErrorKind::PermissionDenied, what)
            .at("mode", format_args!("{:o}", found.mode() & 0o7777))
            .at("uid", found.uid())
            .advise("make the daemon's user its owner, `chmod 600` it, and create a new secret")));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).doing("read a secret").map_err(at)?;
    Ok(bytes)
}
