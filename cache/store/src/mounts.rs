//! Mounts that tiers lay on, remembered outside of them.
//!
//! If a disk is not mounted, its mount point is a directory of another disk, often the root's. A
//! cache must not grow there. So the place of each tier is noted in the daemon's own directory, and
//! compared before the tier's directory is opened.
//!
//! # Layout
//! A file `<hash of the path>.json` for each tier's directory, replaced whole.

use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_source::mount_point;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::directory::is_cache;

/// Layout that this build reads and writes.
const FORMAT: u32 = 1;

/// Reason of an error, in its place `reason`: nothing is mounted where a tier's disk was.
const NOT_MOUNTED: &str = "not-mounted";

/// Reason of an error: another file system is mounted there.
const ANOTHER: &str = "another-file-system";

/// Mount that a directory lies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountPlace {
    /// Mount point.
    point: PathBuf,
    /// Identity of the file system, as statfs(2) reports it.
    file_system: String,
}

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    format: u32,
    path: PathBuf,
    #[serde(flatten)]
    place: MountPlace,
}

/// Requirements on the mount of a tier's directory.
#[derive(Debug, Clone)]
pub(crate) struct MountRequirement {
    /// Directory of the tier.
    pub(crate) path: PathBuf,
    /// True if it must not lie on the root's file system.
    pub(crate) is_required: bool,
    /// The daemon's own directory; none: nothing is remembered.
    pub(crate) state: Option<PathBuf>,
}

/// Returns true if a tier is down only because its disk is not mounted.
pub(crate) fn is_unmounted(error: &Error) -> bool {
    error.place("reason").is_some_and(|reason| [NOT_MOUNTED, ANOTHER].contains(&reason))
}

impl MountRequirement {
    /// Rejects a directory that does not lie where it did, or not where it must.
    pub(crate) fn check(&self) -> Result<()> {
        let now = MountPlace::of(&self.path)?;
        let refuse = |what: &str, reason: &str| {
            Err(Error::new(ErrorKind::Unavailable, what)
                .at("directory", self.path.display())
                .at("reason", reason)
                .at("mount", now.point.display()))
        };
        if self.is_required && now.is_root() {
            return refuse("no disk is mounted at the tier's directory", NOT_MOUNTED)
                .map_err(|error: Error| error.advise("mount it, or set require_mount = false"));
        }
        let Some(before) = self.remembered() else { return Ok(()) };
        // On the root's file system nothing has to be mounted. A deeper mount is a new disk.
        if before.is_root() || now == before {
            return Ok(());
        }
        let advice = "mount its disk; for a new disk, run `forebay tier enable`";
        if !now.point.starts_with(&before.point) {
            return refuse("the disk of the tier's directory is not mounted", NOT_MOUNTED)
                .map_err(|error: Error| error.at("was", before.point.display()).advise(advice));
        }
        // Some file systems have another identity after each start; a cache shows the right one.
        match is_cache(&self.path) {
            true => Ok(()),
            false => refuse("another file system is mounted at the tier's directory", ANOTHER)
                .map_err(|error: Error| error.advise(advice)),
        }
    }

    /// Notes the place of an opened directory.
    pub(crate) fn note(&self) -> Result<()> {
        let Some(file) = self.file() else { return Ok(()) };
        let place = MountPlace::of(&self.path)?;
        let before = self.remembered();
        if before.as_ref() == Some(&place) || before.is_none() && place.is_root() {
            return Ok(());
        }
        let written = Written { format: FORMAT, path: self.path.clone(), place };
        let text = serde_json::to_vec(&written).expect("paths and numbers have a form in JSON");
        let aside = file.with_extension("new");
        let put = || {
            std::fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
            std::fs::write(&aside, &text)?;
            std::fs::File::open(&aside)?.sync_all()?;
            std::fs::rename(&aside, &file)
        };
        put().doing("note a tier's mount").map_err(|error| error.at("path", file.display()))
    }

    fn remembered(&self) -> Option<MountPlace> {
        let file = self.file()?;
        let bytes = std::fs::read(&file).ok()?;
        match serde_json::from_slice::<Written>(&bytes) {
            Ok(written) if written.format == FORMAT && written.path == self.path => {
                Some(written.place)
            }
            // Written anew once the directory is open.
            other => {
                let why = other.err().map(|error| error.to_string());
                tracing::warn!(path = %file.display(), why, "ignored an unreadable note of a mount");
                None
            }
        }
    }

    fn file(&self) -> Option<PathBuf> {
        let hash = xxh3_128(self.path.as_os_str().as_encoded_bytes());
        Some(self.state.as_ref()?.join("mounts").join(format!("{hash:032x}.json")))
    }
}

impl MountPlace {
    /// Returns true for the root's file system, which is always mounted.
    fn is_root(&self) -> bool {
        self.point == Path::new("/")
    }

    /// Place of a directory, which may not exist yet.
    fn of(path: &Path) -> Result<Self> {
        let point = mount_point(&real(path))?;
        let stat = rustix::fs::statfs(&point).doing("stat a file system")?;
        let id = rustix::fs::statvfs(&point).doing("stat a file system")?.f_fsid;
        let file_system = format!("{:x}-{id:x}", stat.f_type);
        Ok(Self { point, file_system })
    }
}

/// Resolves links, as far as the path exists.
pub(crate) fn real(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(parent), Some(name)) if !parent.as_os_str().is_empty() => {
            real(parent).join(name)
        }
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement_of(path: &Path, state: &Path) -> MountRequirement {
        let (path, state) = (path.to_owned(), Some(state.to_owned()));
        MountRequirement { path, is_required: false, state }
    }

    #[test]
    fn tier_that_left_its_mount_is_rejected() {
        let (tier, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let requirement = requirement_of(tier.path(), state.path());
        requirement.check().unwrap();
        let note = |point: PathBuf| {
            let place = MountPlace { point, ..MountPlace::of(tier.path()).unwrap() };
            let written = Written { format: FORMAT, path: tier.path().to_owned(), place };
            let file = requirement.file().unwrap();
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, serde_json::to_vec(&written).unwrap()).unwrap();
            file
        };
        note(MountPlace::of(tier.path()).unwrap().point);
        requirement.check().unwrap();
        // It lay on a mount below.
        let file = note(tier.path().join("below"));
        let error = requirement.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.place("reason"), Some(NOT_MOUNTED));
        assert!(is_unmounted(&error));
        // A note that cannot be read is none.
        std::fs::write(&file, "{").unwrap();
        requirement.check().unwrap();
    }
}
