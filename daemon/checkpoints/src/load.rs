//! Reading side: files of published checkpoints, from this node's disk or from the store.
//!
//! The manifest tells length and checksums of each file. A file that this node staged, and that the
//! manifest names, is read from its tier. All else comes from the store, block by block.

use std::sync::Arc;

use forebay_checkpoint::{
    BLOCK_BYTES, DOCUMENT_BYTES_MAX, Entry, FileId, FileName, Level, MANIFEST, METADATA, Manifest,
    Progress, Record, block_count, object_url,
};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_source::{Named, Options, Rank, Sink, Source, Stat};
use forebay_store::StagedFile;
use forebay_uring::{GRANULE, LentRegion};
use forebay_wire::checkpoint::{BLOCK, Block, FileFacts, Place, Published};
use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::registry::Tracked;
use crate::{Checkpoints, Inner, checked_url};

// Blocks of the wire are those of the manifest: one checksum each.
const _: () = assert!(BLOCK == BLOCK_BYTES, "a block has one length");

/// Largest `.metadata`, which is put as a whole: that of a million tensors has some 500 MiB.
pub(crate) const METADATA_MAX: usize = 1 << 30;

/// Manifests asked for at once.
const ASKED_AT_ONCE: usize = 16;

/// A file that a client reads.
pub struct Loading {
    url: String,
    len: u64,
    blocks: Option<Vec<u32>>,
    local: Option<StagedFile>,
    origin: Option<(Arc<dyn Source>, Stat)>,
    rank: Rank,
}

impl Checkpoints {
    /// Finds a file of a published checkpoint, or a file of its own.
    ///
    /// # Errors
    /// `NotFound` if there is none; those of the store.
    pub async fn load(&self, place: Place) -> Result<Loading> {
        self.inner.resumed.wait().await;
        let url = checked_url(&place.url)?;
        let (name, options) = (FileName::new(place.name)?, Options::from(place.origin));
        let place = object_url(&url, &name);
        let rank = self.inner.store.rank_now();
        let is_ours = |record: &Record| record.url == url && record.name == name;
        // What this node is still uploading is newer than what the store has.
        let lone = self.inner.registry.select(|record| record.is_lone && is_ours(record));
        if let Some(newest) = lone.first().filter(|newest| newest.level() < Level::Uploaded) {
            let record = newest.record();
            let (len, blocks) = (record.len, Some(record.blocks.clone()));
            let local = Some(newest.file.clone());
            return Ok(Loading { url: place, len, blocks, local, origin: None, rank });
        }
        let entry = self.inner.entry(&url, &name, &options).await?;
        let source = self.inner.store.origin(&place, &options)?;
        let stat = source.stat(&place).await?;
        let local = match &entry {
            Some(entry) => self.inner.here(entry.id),
            None => lone.into_iter().find(|one| is_tag(&one.record(), &stat)),
        };
        let (len, blocks) = match (&entry, &local) {
            (Some(entry), _) => (entry.len, Some(entry.blocks.clone())),
            (None, Some(lone)) => (stat.len, Some(lone.record().blocks.clone())),
            (None, None) => (stat.len, None),
        };
        if len != stat.len {
            let what = "the object is not the file that the checkpoint's manifest names";
            return Err(Error::new(ErrorKind::Corrupt, what).at("url", place).at("len", stat.len));
        }
        let local = local.map(|tracked| tracked.file.clone());
        Ok(Loading { url: place, len, blocks, local, origin: Some((source, stat)), rank })
    }

    /// Reads a block into lent memory.
    ///
    /// # Errors
    /// `Invalid` for a block that is none of the file; those of the store.
    pub async fn read(
        &self,
        loading: &Loading,
        block: Block,
        lent: &LentRegion,
        is_distrusted: bool,
    ) -> Result<()> {
        let Block { number, memory, len, .. } = block;
        let wanted = (number < block_count(loading.len)).then(|| {
            let start = number * BLOCK;
            (start, BLOCK.min(loading.len - start))
        });
        let Some((start, bytes)) = wanted.filter(|(_, bytes)| *bytes == len) else {
            return Err(Error::new(ErrorKind::Invalid, "a block is none of the file")
                .at("block", number)
                .at("len", len));
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let padded = len.next_multiple_of(GRANULE as u64);
        let into = lent.span(memory..memory.saturating_add(padded))?;
        if let (Some(file), false) = (&loading.local, is_distrusted && loading.origin.is_some()) {
            match file.read_lent(start, into, bytes).await {
                Ok(()) => {
                    self.inner.counts.local.add(bytes as u64);
                    return Ok(());
                }
                // The store has it, too.
                Err(error) if loading.origin.is_some() => {
                    tracing::warn!(url = loading.url, %error, "a checkpoint's file is read from the store");
                }
                Err(error) => return Err(error),
            }
        }
        let Some((source, stat)) = &loading.origin else {
            return Err(Error::new(ErrorKind::Corrupt, "the only copy of a file is damaged")
                .at("url", &loading.url)
                .at("block", number));
        };
        let span = self.inner.store.frames().lease(bytes).await?;
        let span = source.read_part(&loading.url, stat, start, span, &loading.rank).await?;
        self.inner.counts.remote.add(bytes as u64);
        lent.fill(memory, &span[..bytes]).doing("fill lent memory")
    }

    /// Returns the files of a published checkpoint, by its manifest; of one that Forebay did not
    /// publish, by the store's listing.
    ///
    /// # Errors
    /// `NotFound` if nothing is published there; those of the store.
    pub async fn list(&self, place: Place) -> Result<Published> {
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin));
        let sink = self.inner.sink(&url, &options)?;
        if !is_published(&*sink, &url).await? {
            return Err(Error::new(ErrorKind::NotFound, "no checkpoint is published there")
                .at("url", url)
                .advise("look at `forebay checkpoint ls` on the nodes that save it"));
        }
        if let Some(manifest) = visible_manifest(&*sink, &url).await? {
            let facts = |entry: &Entry| FileFacts {
                name: entry.name.to_string(),
                len: entry.len,
                is_checked: true,
            };
            let files = manifest.entries().map(facts).collect();
            let at_ms = Some(manifest.published_at_ms);
            return Ok(Published { at_ms, step: manifest.step, files });
        }
        let listed = sink.list(&url).await?.into_iter();
        let files = listed.filter(|one| FileName::new(&*one.name).is_ok());
        let facts = |one: Named| FileFacts { name: one.name, len: one.len, is_checked: false };
        let mut files: Vec<_> = files.map(facts).collect();
        files.sort_by_key(|file| file.name == METADATA);
        Ok(Published { at_ms: None, step: None, files })
    }

    /// Returns the newest published checkpoint in a folder, by the manifests.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` for a damaged manifest.
    pub async fn latest(&self, place: Place) -> Result<Option<String>> {
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin));
        let sink = self.inner.sink(&url, &options)?;
        let published = self.inner.published(&*sink, &url).await?;
        let newest = published.into_iter().max_by_key(|(_, one)| (one.saved_at_ms, one.step));
        Ok(newest.map(|(url, _)| url))
    }
}

impl Loading {
    /// Length of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a file without bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC32C of each block, if they are known.
    #[must_use]
    pub fn blocks(&self) -> Option<&[u32]> {
        self.blocks.as_deref()
    }
}

impl Inner {
    /// Returns a file on this node, be it a copy of another one's.
    fn here(&self, id: FileId) -> Option<Arc<Tracked>> {
        self.registry.get(id).or_else(|| self.keeping.files().get(id))
    }

    /// Entry of a file in its checkpoint's manifest; none without a manifest.
    async fn entry(&self, url: &str, name: &FileName, options: &Options) -> Result<Option<Entry>> {
        let sink = match self.sink(url, options) {
            Ok(sink) => sink,
            // A store that can only be read has no manifests of ours.
            Err(error) if error.kind() == ErrorKind::Invalid => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(manifest) = visible_manifest(&*sink, url).await? else { return Ok(None) };
        Ok(manifest.entries().find(|entry| entry.name == *name).cloned())
    }

    /// Returns the published checkpoints below a folder, with their manifests.
    pub(crate) async fn published(
        &self,
        sink: &dyn Sink,
        folder: &str,
    ) -> Result<Vec<(String, Manifest)>> {
        let named = sink.list(folder).await?;
        let ending = format!("/{METADATA}");
        let found = named.iter().filter_map(|one| one.name.strip_suffix(&*ending));
        let ask = |name: &str| {
            let url = object_url(folder, name);
            let asked = async move {
                let manifest = visible_manifest(sink, &url).await?;
                Ok::<_, Error>(manifest.map(|manifest| (url, manifest)))
            };
            asked.boxed()
        };
        let asked: Vec<_> = found.map(ask).collect();
        let all: Vec<_> =
            futures::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).try_collect().await?;
        Ok(all.into_iter().flatten().collect())
    }
}

/// Returns true if a checkpoint is visible, whoever published it.
///
/// # Errors
/// Those of the store.
pub(crate) async fn is_published(sink: &dyn Sink, url: &str) -> Result<bool> {
    Ok(sink.head(&object_url(url, METADATA)).await?.is_some())
}

/// Returns the manifest of a checkpoint that is visible, if Forebay published it; none while there
/// is only a manifest.
///
/// # Errors
/// As [`visible_manifest`].
pub(crate) async fn published_manifest(sink: &dyn Sink, url: &str) -> Result<Option<Manifest>> {
    match is_published(sink, url).await? {
        true => visible_manifest(sink, url).await,
        false => Ok(None),
    }
}

/// Returns the manifest of the visible checkpoint, if Forebay published it.
///
/// # Errors
/// Those of the store; `Corrupt` for a damaged manifest.
pub(crate) async fn visible_manifest(sink: &dyn Sink, url: &str) -> Result<Option<Manifest>> {
    let Some(manifest) = manifest_of(sink, url).await? else { return Ok(None) };
    if manifest.before.is_none() {
        return Ok(Some(manifest));
    }
    let metadata = sink.get(&object_url(url, METADATA), METADATA_MAX).await?;
    Ok(Some(manifest.visible(&metadata.unwrap_or_default())))
}

/// Returns the manifest of the last publication at a URL, which may be under way.
///
/// # Errors
/// As [`visible_manifest`].
pub(crate) async fn manifest_of(sink: &dyn Sink, url: &str) -> Result<Option<Manifest>> {
    let place = object_url(url, MANIFEST);
    let Some(bytes) = sink.get(&place, DOCUMENT_BYTES_MAX).await? else { return Ok(None) };
    Manifest::decode(&bytes).map(Some).map_err(|error| error.at("url", place))
}

/// Returns true if the object in the store is the file of this record.
fn is_tag(record: &Record, stat: &Stat) -> bool {
    match &record.progress {
        Progress::Uploaded { tag, .. } => {
            record.len == stat.len && stat.version.trim_matches('"') == tag.trim_matches('"')
        }
        _ => false,
    }
}
