//! Directory of a tier's disk: opened at the start, or once its disk is there.
//!
//! Nobody waits for a call longer than [`device::ANSWER_TIMEOUT`]. A call that does not return is
//! not made again: each would hold a thread.

use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::{Arena, Engine, Region};
use tokio::sync::Semaphore;

use super::{Disk, DiskConfig};
use crate::device;
use crate::directory::{Directory, Keys, is_cache};
use crate::encryption::{ENCRYPTION_BYTES, KeySource};
use crate::files::Extent;
use crate::mounts::MountRequirement;
use crate::pins::{Pinned, read_pins};
use crate::sizes::WINDOW;

/// Way to open a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attach {
    /// At the start: created if missing.
    AtStart,
    /// Later: as at the start.
    Again,
    /// Only if it holds a cache.
    Existing,
    /// Wherever its disk was before.
    Anywhere,
}

/// An opened directory.
pub(super) struct OpenedDirectory {
    pub(super) directory: Directory,
    pub(super) extent: Extent,
    /// Pins in it.
    pub(super) pinned: Option<Pinned>,
}

impl Disk {
    /// The disk, before its directory is open.
    ///
    /// # Errors
    /// If there is no memory to encrypt in, or no random bytes.
    pub(super) async fn new(config: DiskConfig, state: Option<&Path>) -> Result<Self> {
        let DiskConfig { path, engine, files, require_mount, encryption, .. } = config;
        let key = encryption.as_ref().map(KeySource::of).transpose()?;
        let bounce = match &key {
            Some(_) => Some(memory_to_encrypt(&engine).await?),
            None => None,
        };
        let state = state.map(Path::to_owned);
        let closed = Error::new(ErrorKind::Closed, "the tier is not attached");
        Ok(Self {
            mount: MountRequirement { path, is_required: require_mount, state },
            device: OnceLock::new(),
            engine,
            files,
            directory: RwLock::new(Err(closed)),
            looking: Arc::new(Semaphore::new(1)),
            probing: Arc::new(Semaphore::new(1)),
            writes: Arc::new(Semaphore::new(WINDOW)),
            key,
            bounce,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.mount.path
    }

    /// Sets the open directory, or the reason why there is none.
    pub(super) fn set(&self, directory: Result<Directory>) {
        let directory = directory.map(Arc::new);
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = directory;
    }

    /// Opens the directory.
    ///
    /// # Errors
    /// If it is not where it was; those of [`Directory::open`] and of its key; `Corrupt` if its
    /// pins cannot be read; `Unavailable` if the disk does not answer.
    pub(super) async fn open(&self, how: Attach) -> Result<OpenedDirectory> {
        let (mount, files, key) = (self.mount.clone(), self.files.clone(), self.key.clone());
        let opened = self.look(move || {
            if how != Attach::Anywhere {
                mount.check()?;
            }
            if how == Attach::Existing && !is_cache(&mount.path) {
                return Err(Error::new(ErrorKind::NotFound, "the cache directory is missing")
                    .at("directory", mount.path.display())
                    .advise("mount its device, or restart the daemon to create a new cache"));
            }
            // Read anew each time: an admin may have put the right key there.
            let secret = key.as_ref().map(KeySource::secret).transpose()?;
            let keys = Keys { secret, is_check: false };
            let directory = Directory::open(&mount.path, files, &keys)?;
            let extent = directory.extent()?;
            let pinned = read_pins(&mount.path)?;
            if let Err(error) = mount.note() {
                let what = "failed to note the mount of a tier; after a restart its absence is not noticed";
                tracing::warn!(%error, "{what}");
            }
            Ok((OpenedDirectory { directory, extent, pinned }, device_of(&mount.path)))
        });
        let (opened, device) = opened.await?;
        if let Some(device) = device {
            // A later disk keeps the name of the first.
            self.device.get_or_init(|| device);
        }
        Ok(opened)
    }

    /// Makes blocking calls on the directory, unless earlier ones have not returned.
    ///
    /// # Errors
    /// Those of the calls; `Unavailable` if the disk does not answer.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        calls: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let silent = || device::silent().at("directory", self.path().display());
        let Ok(turn) = self.looking.clone().try_acquire_owned() else { return Err(silent()) };
        let called = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            calls()
        });
        let called = device::answer(called).await.map_err(|_| silent())?;
        called.map_err(|_| Error::shutting_down())?
    }
}

/// Memory of the kind that the engine takes fastest.
async fn memory_to_encrypt(engine: &Engine) -> Result<Arena> {
    let made = || Region::create("forebay-encryption", ENCRYPTION_BYTES);
    let region = tokio::task::spawn_blocking(made).await.map_err(|_| Error::shutting_down())??;
    // Without it the kernel pins the pages of each write.
    let _is_registered = engine.attach(&region).await?;
    Ok(Arena::new(region))
}

/// Kernel name of the block device under a directory; none if there is none, as under a network
/// file system.
fn device_of(directory: &Path) -> Option<String> {
    let stat = rustix::fs::stat(directory).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let device = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(device.file_name()?.to_string_lossy().into_owned())
}
