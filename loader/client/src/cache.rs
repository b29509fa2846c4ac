//! Cache of a user's embedded daemon: its directory, and the capacity that the environment names.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use forebay_error::{Doing, Error, ErrorKind, Result};

/// Directory of the cache, unless it is the user's own.
pub const CACHE: &str = "FOREBAY_CACHE";

/// Bytes the cache may hold.
pub const CAPACITY: &str = "FOREBAY_CAPACITY";

/// File systems behind a network, by the magic numbers of statfs(2): a cache there would read every
/// byte over the network twice.
const NETWORK: [(u64, &str); 8] = [
    (0x6969, "NFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00C3_6400, "CephFS"),
    (0xFE53_4D42, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0x6573_5546, "FUSE"),
];

/// The cache directory, as an absolute path: `FOREBAY_CACHE`, else one under the user's cache
/// directory that bears the machine's id, for homes that several nodes mount.
///
/// # Errors
/// `Invalid` if the choice would fall on a network file system nobody asked for.
pub fn cache_directory() -> Result<PathBuf> {
    if let Some(chosen) = std::env::var_os(CACHE).filter(|path| !path.is_empty()) {
        let absolute = std::path::absolute(&chosen).doing("find the cache directory");
        return absolute.map_err(|error| error.at(CACHE, Path::new(&chosen).display()));
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let base = base.filter(|base| base.is_absolute()).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "there is no home directory to put a cache in")
            .advise("set FOREBAY_CACHE to a directory on a local disk")
    })?;
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let machine = match machine.trim() {
        "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        id => id.to_owned(),
    };
    let directory = base.join("forebay").join(machine);
    match network(&directory)? {
        None => Ok(directory),
        Some(kind) => {
            Err(Error::new(ErrorKind::Invalid, "the user's cache directory is on a network")
                .at("directory", directory.display())
                .at("file_system", kind)
                .advise("set FOREBAY_CACHE to a directory on a local disk"))
        }
    }
}

/// The capacity in bytes that `FOREBAY_CAPACITY` names.
///
/// # Errors
/// `Invalid` if it is no size above 0.
pub fn wanted_capacity() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os(CAPACITY).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    let size = capacity(&text).map_err(|why| {
        Error::new(ErrorKind::Invalid, format!("invalid size: {why}"))
            .at(CAPACITY, &text)
            .advise("write it like '200GB'")
    })?;
    Ok(Some(size.as_u64()))
}

/// The capacity of a cache, as people write it.
///
/// # Errors
/// The reason, if it is no size above 0.
pub fn capacity(text: &str) -> std::result::Result<ByteSize, String> {
    match text.parse()? {
        ByteSize(0) => Err("a cache needs room".to_owned()),
        size => Ok(size),
    }
}

fn network(directory: &Path) -> Result<Option<&'static str>> {
    let found = rustix::fs::statfs(existing(directory)).doing("stat the file system")?;
    let magic = found.f_type as u64 & 0xFFFF_FFFF;
    Ok(NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name))
}

/// The nearest directory above that exists.
#[must_use]
pub fn existing(directory: &Path) -> &Path {
    directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}
