//! Files that this process writes itself, by its own rights.
//!
//! A file appears by one rename or link of a file that is synced, in a folder that is synced after
//! it. What a crash leaves behind has names of its own ([`PUT`], [`UPLOAD`]) and is no object.
//!
//! System calls run on threads of their own, few at once for each mount: a file system that hangs
//! holds those and no others, and whoever waits is told so. Such a thread outlives even SIGKILL,
//! for which reason other processes read shards; so only paths that an administrator chose are
//! written here.

use std::collections::HashMap;
use std::fs::{DirEntry, File};
use std::io::{ErrorKind as IoKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_error::{Doing as _, Error, ErrorKind, Result};
use tokio::sync::Semaphore;

use crate::posix::{ENDPOINT, path_of};
use crate::readers::mount_point;
use crate::sink::{self, Found, Named, Overwrite, PartTag, Sink, Tag, UploadId};
use crate::stat::file_version;

/// System calls under way at once on a mount: enough to keep a file server busy, few enough to
/// leave threads where several hang.
const AT_ONCE: usize = 8;

/// Start of the names of whole objects that are being written.
const PUT: &str = ".forebay-put-";

/// Start of the names of uploads in parts.
const UPLOAD: &str = ".forebay-upload-";

/// Age at which an unfinished write is a leftover of a crash: an upload that waits for somebody's
/// help goes on within days.
const LEFTOVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Digits of the random part of such names: 128 bits.
const DIGITS: usize = 32;

/// Writes files.
pub(crate) struct FileSink {
    /// Turns on the mounts in use.
    turns: Mutex<HashMap<PathBuf, Arc<Semaphore>>>,
    /// Time for one operation, after which its file system counts as hung.
    patience: Duration,
}

impl FileSink {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { turns: Mutex::default(), patience }
    }

    /// Turns on the mount that a path lies on.
    fn turns(&self, path: &Path) -> Result<Arc<Semaphore>> {
        let mount = mount_point(path)?;
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turns| Arc::strong_count(turns) > 1);
        let new = || Arc::new(Semaphore::new(AT_ONCE));
        Ok(turns.entry(mount).or_insert_with(new).clone())
    }

    /// Runs `work` on a thread that may wait for a file system.
    async fn run<T: Send + 'static>(
        &self,
        url: &str,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let at = |error: Error| error.at("url", url);
        let path = place(url)?;
        let turns = self.turns(&path).map_err(at)?;
        let done = async move {
            let turn = turns.acquire_owned().await.map_err(|_| Error::shutting_down())?;
            let worked = move || {
                let done = work(&path);
                // Held by the thread, not by whoever waits for it.
                drop(turn);
                done
            };
            tokio::task::spawn_blocking(worked).await.map_err(|_| Error::shutting_down())?
        };
        let late = |_| Err(hangs(self.patience));
        tokio::time::timeout(self.patience, done).await.unwrap_or_else(late).map_err(at)
    }
}

#[async_trait]
impl Sink for FileSink {
    fn endpoint(&self) -> &str {
        ENDPOINT
    }

    fn server(&self, url: &str) -> String {
        let mount = place(url).and_then(|path| mount_point(&path));
        mount.map_or_else(|_| ENDPOINT.to_owned(), |mount| mount.display().to_string())
    }

    async fn put(&self, url: &str, bytes: Bytes, overwrite: Overwrite) -> Result<Tag> {
        let named = url.to_owned();
        self.run(url, move |path| put(&named, path, &bytes, overwrite)).await
    }

    async fn begin_upload(&self, url: &str, part_bytes: u64) -> Result<UploadId> {
        sink::check_part_bytes(url, part_bytes)?;
        self.run(url, move |path| {
            let upload = UploadId::new(format!("{part_bytes}-{}", random()));
            let folder = folder_of(path)?;
            make_folder(folder)?;
            File::create_new(place_of(folder, &upload)).doing("begin an upload")?;
            sync(folder)?;
            Ok(upload)
        })
        .await
    }

    async fn upload_part(
        &self,
        url: &str,
        upload: &UploadId,
        number: u32,
        bytes: Bytes,
    ) -> Result<PartTag> {
        sink::check_part(url, number, &bytes)?;
        let part_bytes = part_bytes(upload).ok_or_else(|| sink::no_upload(url))?;
        let len = bytes.len() as u64;
        if len > part_bytes {
            let error = Error::new(ErrorKind::Invalid, "a part is larger than the upload's parts");
            return Err(error.at("url", url).at("len", len).at("part_bytes", part_bytes));
        }
        let (named, upload) = (url.to_owned(), upload.clone());
        self.run(url, move |path| {
            let file = open_upload(&named, path, &upload)?;
            let offset = u64::from(number).saturating_mul(part_bytes);
            file.write_all_at(&bytes, offset).doing("write a part")?;
            // A journal may count on it from now on.
            file.sync_data().doing("sync a part")?;
            Ok(PartTag::of(len, &number.to_string()))
        })
        .await
    }

    async fn complete(&self, url: &str, upload: &UploadId, parts: &[PartTag]) -> Result<Tag> {
        sink::check_parts(url, parts)?;
        let part_bytes = part_bytes(upload).ok_or_else(|| sink::no_upload(url))?;
        let len = whole(parts, part_bytes).map_err(|error| error.at("url", url))?;
        let (named, upload) = (url.to_owned(), upload.clone());
        self.run(url, move |path| {
            let folder = folder_of(path)?;
            let file = open_upload(&named, path, &upload)?;
            let found = file.metadata().doing("stat an upload")?;
            if found.len() != len {
                let what = "the upload has more parts, or fewer";
                let error = Error::new(ErrorKind::Invalid, what);
                return Err(error.at("len", len).at("written", found.len()));
            }
            file.sync_all().doing("sync an upload")?;
            std::fs::rename(place_of(folder, &upload), path).doing("name an upload")?;
            sync(folder)?;
            Ok(tag_of(&found))
        })
        .await
    }

    async fn abort(&self, url: &str, upload: &UploadId) -> Result<()> {
        if part_bytes(upload).is_none() {
            return Ok(());
        }
        let upload = upload.clone();
        self.run(url, move |path| remove(&place_of(folder_of(path)?, &upload))).await
    }

    async fn head(&self, url: &str) -> Result<Option<Found>> {
        self.run(url, |path| {
            let found = absent(std::fs::metadata(path)).doing("stat a file")?;
            Ok(found.filter(std::fs::Metadata::is_file).map(|found| Found {
                len: found.len(),
                tag: tag_of(&found),
                version: None,
            }))
        })
        .await
    }

    async fn get(&self, url: &str, limit: usize) -> Result<Option<Bytes>> {
        let named = url.to_owned();
        self.run(url, move |path| {
            // A pipe would make the thread wait for its writer.
            let is_file = |found: &std::fs::Metadata| found.is_file();
            let found = absent(std::fs::metadata(path)).doing("stat a file")?;
            if !found.as_ref().is_some_and(is_file) {
                return Ok(None);
            }
            let Some(file) = absent(File::open(path)).doing("open a file")? else {
                return Ok(None);
            };
            let mut bytes = Vec::new();
            // One more tells that there are too many.
            file.take(limit as u64 + 1).read_to_end(&mut bytes).doing("read a file")?;
            match bytes.len() > limit {
                true => Err(sink::too_large(&named, limit)),
                false => Ok(Some(bytes.into())),
            }
        })
        .await
    }

    async fn delete(&self, url: &str) -> Result<()> {
        self.run(url, |path| {
            remove(path)?;
            match folder_of(path)? {
                folder if folder.exists() => sync(folder),
                _ => Ok(()),
            }
        })
        .await
    }

    async fn list(&self, folder: &str) -> Result<Vec<Named>> {
        let named = folder.to_owned();
        self.run(folder, move |folder| list(&named, folder)).await
    }

    async fn conditional(&self, _: &str) -> Result<bool> {
        // A link fails if its name is taken, on every file system that has links.
        Ok(true)
    }
}

/// The path that a URL names, which leads nowhere but down.
fn place(url: &str) -> Result<PathBuf> {
    let path = Path::new(path_of(url)?);
    let is_plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    let is_ours = path.file_name().and_then(|name| name.to_str()).is_some_and(is_unfinished);
    if is_plain && !is_ours {
        return Ok(path.to_owned());
    }
    let error = Error::new(ErrorKind::Invalid, "the path cannot be an object's name");
    Err(error.at("url", url).advise("write it without `..`, and without a name of Forebay's own"))
}

/// Returns true for the names of what is not finished.
fn is_unfinished(name: &str) -> bool {
    name.starts_with(PUT) || name.starts_with(UPLOAD)
}

fn random() -> String {
    format!("{:0DIGITS$x}", fastrand::u128(..))
}

/// Returns the part size of an upload; `None` for what was never an id of one.
fn part_bytes(upload: &UploadId) -> Option<u64> {
    let (bytes, random) = upload.as_str().split_once('-')?;
    let is_random = random.len() == DIGITS && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    bytes.parse().ok().filter(|_| is_random)
}

/// The file of an upload, in the folder of what becomes of it. Call for what [`part_bytes`] knows.
fn place_of(folder: &Path, upload: &UploadId) -> PathBuf {
    folder.join(format!("{UPLOAD}{}", upload.as_str()))
}

fn open_upload(url: &str, path: &Path, upload: &UploadId) -> Result<File> {
    let place = place_of(folder_of(path)?, upload);
    let file = absent(File::options().write(true).open(place)).doing("open an upload")?;
    file.ok_or_else(|| sink::no_upload(url))
}

/// Returns the length of a file of these parts: each is in its place and full, the last perhaps
/// not.
fn whole(parts: &[PartTag], part_bytes: u64) -> Result<u64> {
    let last = parts.len().saturating_sub(1);
    parts.iter().enumerate().try_fold(0_u64, |sum, (at, part)| {
        let (len, number) = part.parts()?;
        let fits = number == at.to_string() && (at == last || len == part_bytes);
        let error =
            || Error::new(ErrorKind::Invalid, "the parts of an upload leave a gap").at("part", at);
        sum.checked_add(len).filter(|_| fits).ok_or_else(error)
    })
}

/// Removes a file that was not named when dropped.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Renamed, it is gone; else its name tells what it is.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn put(url: &str, path: &Path, bytes: &[u8], overwrite: Overwrite) -> Result<Tag> {
    let folder = folder_of(path)?;
    make_folder(folder)?;
    let unfinished = Unfinished(folder.join(format!("{PUT}{}", random())));
    let mut file = File::create_new(&unfinished.0).doing("create a file")?;
    file.write_all(bytes).doing("write a file")?;
    file.sync_all().doing("sync a file")?;
    let tag = tag_of(&file.metadata().doing("stat a file")?);
    match overwrite {
        Overwrite::Allowed => std::fs::rename(&unfinished.0, path).doing("name a file")?,
        Overwrite::Rejected => match std::fs::hard_link(&unfinished.0, path) {
            Err(error) if error.kind() == IoKind::AlreadyExists => return Err(sink::exists(url)),
            linked => linked.doing("name a file")?,
        },
    }
    drop(unfinished);
    sync(folder)?;
    Ok(tag)
}

/// Lists what lies in a folder and below it, by name.
fn list(url: &str, folder: &Path) -> Result<Vec<Named>> {
    let (mut listed, mut seen) = (Vec::new(), 0);
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        let Some(entries) = absent(std::fs::read_dir(&folder)).doing("list a folder")? else {
            continue;
        };
        for entry in entries {
            let entry: DirEntry = entry.doing("list a folder")?;
            seen += 1;
            if seen > sink::LISTED_MAX {
                return Err(sink::too_many(url));
            }
            // No URL names any other.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let kind = entry.file_type().doing("list a folder")?;
            let name_below = format!("{prefix}{name}");
            if kind.is_dir() {
                folders.push((entry.path(), format!("{name_below}/")));
            } else if kind.is_file() && is_unfinished(&name) {
                remove_leftover(&entry);
            } else if kind.is_file() {
                let Some(found) = absent(entry.metadata()).doing("stat a file")? else { continue };
                listed.push(Named { name: name_below, len: found.len() });
            }
        }
    }
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(listed)
}

/// Removes an unfinished write that nobody goes on with.
fn remove_leftover(entry: &DirEntry) {
    let age = entry.metadata().ok().and_then(|found| found.modified().ok()?.elapsed().ok());
    if age.is_some_and(|age| age > LEFTOVER)
        && let Err(error) = std::fs::remove_file(entry.path())
    {
        // The listing is right without it.
        tracing::debug!(path = %entry.path().display(), %error, "a leftover of a write stays");
    }
}

/// The version of a file, as sources of files tell it.
fn tag_of(found: &std::fs::Metadata) -> Tag {
    let time = (found.mtime(), found.mtime_nsec());
    Tag::new(file_version(found.ino(), found.len(), time))
}

fn folder_of(path: &Path) -> Result<&Path> {
    path.parent().ok_or_else(|| Error::new(ErrorKind::Invalid, "the path names no file"))
}

/// Makes a folder and those above it, each to stay.
fn make_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder_of(folder)?;
    make_folder(above)?;
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == IoKind::AlreadyExists => {}
        made => made.doing("make a folder")?,
    }
    sync(above)
}

fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).doing("sync a folder")
}

fn remove(path: &Path) -> Result<()> {
    absent(std::fs::remove_file(path)).map(drop).doing("remove a file")
}

/// `None` for what is not there.
fn absent<T>(found: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), IoKind::NotFound | IoKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

fn hangs(patience: Duration) -> Error {
    let what = format!("the file system did not answer within {} seconds", patience.as_secs());
    Error::new(ErrorKind::Unavailable, what)
        .advise("check the file system; what hangs in it ends with it")
}

#[cfg(test)]
mod tests;
