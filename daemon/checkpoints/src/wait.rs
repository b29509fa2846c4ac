//! Waits for a level of durability.
//!
//! A wait is for the last save of a URL that this node has files of. A checkpoint that was there
//! before says nothing of it.

use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::{Level, Record};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_wire::checkpoint::Place;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::load::{is_published, manifest_of};
use crate::registry::Tracked;
use crate::{Checkpoints, Inner, checked_url};

/// Time between looks at the store for a publication by another node.
const LOOKS: Duration = Duration::from_secs(2);

impl Checkpoints {
    /// Waits until all files on this node of the last save of a URL have reached a level, or until
    /// that save is visible. Ends early with the reason if that needs somebody's help.
    ///
    /// Where this node has nothing of it, any visible checkpoint will do. A save is over as well
    /// once a later one of the same URL is visible: it was dropped.
    ///
    /// # Errors
    /// `NotFound` if nothing of the checkpoint is on this node and it is not in the store, or if
    /// the save was removed meanwhile; the error of an upload or a publication that fails for good.
    pub async fn reach(&self, place: Place, level: Level) -> Result<()> {
        self.inner.resumed.wait().await;
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin));
        let mut changed = self.inner.registry.subscribe();
        let mut looks = looks();
        let mut had_save = false;
        loop {
            changed.borrow_and_update();
            let Some(save) = self.inner.last_save(&url) else {
                // Other nodes have it, or had it.
                if self.inner.is_visible(&url, &options).await? {
                    return Ok(());
                }
                if had_save {
                    let what = "the save was removed from this node";
                    return Err(Error::new(ErrorKind::NotFound, what)
                        .at("url", url)
                        .advise("ask who removed it, or save again"));
                }
                if level < Level::Published {
                    let what = "nothing of this checkpoint is on its way from this node";
                    return Err(Error::new(ErrorKind::NotFound, what)
                        .at("url", url)
                        .advise("wait on a node that saved a part of it, or for `published`"));
                }
                looks.tick().await;
                continue;
            };
            had_save = true;
            if save.has_reached(level)? {
                return Ok(());
            }
            if level == Level::Replicated {
                for file in &save.0 {
                    self.inner.replicate(file).await?;
                }
                continue;
            }
            tokio::select! {
                // The registry is there for as long as this.
                _ = changed.changed() => {}
                _ = looks.tick(), if level == Level::Published && save.is_committed_elsewhere() => {
                    if self.inner.is_over(&url, &options, &save).await? {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Files on this node of one save, the newest first; never none.
struct Save(Vec<Arc<Tracked>>);

impl Save {
    /// Returns true if all files have reached a level.
    ///
    /// # Errors
    /// The failure of a file that has not, if time does not mend it.
    fn has_reached(&self, level: Level) -> Result<bool> {
        // With the newest one the whole save is visible. An older one may be left of a save that
        // was never committed.
        let files = if level == Level::Published { &self.0[..1] } else { &self.0 };
        if files.iter().all(|file| is_at(&file.record(), level)) {
            return Ok(true);
        }
        // A second copy needs no store.
        if level == Level::Replicated {
            return Ok(false);
        }
        let late = self.0.iter().filter(|file| !is_at(&file.record(), level));
        match late.filter_map(|file| file.trouble()).find(is_final) {
            Some(error) => Err(error),
            None => Ok(false),
        }
    }

    /// Returns true if this node does not publish it.
    fn is_committed_elsewhere(&self) -> bool {
        !self.0.iter().any(|file| {
            let record = file.record();
            record.commit.is_some() || record.is_lone
        })
    }
}

impl Inner {
    /// Returns the files of the last save of a URL that this node has any of.
    fn last_save(&self, url: &str) -> Option<Save> {
        let mut files = self.registry.select(|record| record.named_url() == url);
        let newest = files.first()?.record();
        if newest.is_lone {
            files.truncate(1);
            return Some(Save(files));
        }
        let records: Vec<_> = files.iter().map(|file| file.record()).collect();
        let is_of = |record: &Record, metadata: &Record| {
            let commit = metadata.commit.as_ref();
            commit.is_some_and(|all| record.id == metadata.id || all.ids.contains(&record.id))
        };
        let last = records.iter().find(|metadata| is_of(&newest, metadata));
        files.retain(|file| match last {
            Some(metadata) => is_of(&file.record(), metadata),
            // Its commit comes later, or is another node's.
            None => !records.iter().any(|metadata| is_of(&file.record(), metadata)),
        });
        Some(Save(files))
    }

    /// Returns true if a save that another node commits is visible, or a later one is. Failures of
    /// the store that time mends leave it open.
    async fn is_over(&self, url: &str, options: &Options, save: &Save) -> Result<bool> {
        match self.note_published_elsewhere(url, options).await {
            Ok(visible) => {
                let newest = save.0.first().map(|file| file.record().staged_at_ms);
                Ok(visible.is_some_and(|saved_at_ms| Some(saved_at_ms) > newest))
            }
            Err(error) if is_final(&error) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Returns true if a checkpoint is published, or a file of its own is there.
    async fn is_visible(&self, url: &str, options: &Options) -> Result<bool> {
        let sink = self.sink(url, options)?;
        match is_published(&*sink, url).await? {
            true => Ok(manifest_of(&*sink, url).await?.is_some()),
            false => Ok(sink.head(url).await?.is_some()),
        }
    }
}

/// Ticks of looks at the store, the first one after a while.
fn looks() -> Interval {
    let mut looks = tokio::time::interval_at(Instant::now() + LOOKS, LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// Returns true if a file has reached a level.
pub(crate) fn is_at(record: &Record, level: Level) -> bool {
    // A file of its own is visible once it is in the store.
    let wanted = if record.is_lone { level.min(Level::Uploaded) } else { level };
    // `.metadata` is uploaded when it is published.
    let is_own = record.commit.is_some() && wanted == Level::Uploaded;
    record.level() >= wanted || is_own
}

/// Returns true for a failure that time does not mend.
pub(crate) fn is_final(error: &Error) -> bool {
    // A bucket that does not exist is `NotFound`.
    matches!(
        error.kind(),
        ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::PermissionDenied | ErrorKind::NotFound
    )
}
