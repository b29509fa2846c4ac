//! Waits for a level of durability.

use std::time::Duration;

use forebay_checkpoint::{Level, METADATA, object_url};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_wire::checkpoint::Place;

use crate::load::manifest_of;
use crate::{Checkpoints, Inner, checked_url};

/// Time between looks at the store for a publication by another node.
const LOOKS: Duration = Duration::from_secs(2);

impl Checkpoints {
    /// Waits until all files of a checkpoint on this node have reached a level, or until it is
    /// visible. Ends early with the reason if that needs somebody's help.
    ///
    /// # Errors
    /// `NotFound` if nothing of the checkpoint is on this node and it is not in the store; the
    /// error of an upload or a publication that fails for good.
    pub async fn reach(&self, place: Place, level: Level) -> Result<()> {
        self.inner.resumed.wait().await;
        let (url, options) = (checked_url(&place.url)?, Options::from(place.origin));
        let mut changed = self.inner.registry.subscribe();
        loop {
            changed.borrow_and_update();
            match self.inner.progress(&url, level)? {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => {
                    // Other nodes have it, or had it.
                    if self.inner.is_visible(&url, &options).await? {
                        return Ok(());
                    }
                    if level < Level::Published {
                        let what = "nothing of this checkpoint is on its way from this node";
                        return Err(Error::new(ErrorKind::NotFound, what)
                            .at("url", url)
                            .advise("wait on a node that saved a part of it, or for `published`"));
                    }
                }
            }
            let told = tokio::time::timeout(LOOKS, changed.changed()).await;
            // The node that publishes may be another one.
            if told.is_err()
                && level == Level::Published
                && self.inner.is_visible(&url, &options).await?
            {
                return Ok(());
            }
        }
    }
}

impl Inner {
    /// Returns true if all files of a checkpoint here have reached a level; none if there are none.
    fn progress(&self, url: &str, level: Level) -> Result<Option<bool>> {
        let files = self.registry.select(|record| record.named_url() == url);
        if files.is_empty() {
            return Ok(None);
        }
        let mut is_reached = true;
        for file in files {
            let record = file.record();
            // A file of its own is visible once it is in the store.
            let wanted = if record.is_lone { level.min(Level::Uploaded) } else { level };
            // `.metadata` is uploaded when it is published.
            let own = record.commit.is_some() && wanted == Level::Uploaded;
            if record.progress.level() >= wanted || own {
                continue;
            }
            is_reached = false;
            if let Some(error) = file.trouble().filter(is_final) {
                return Err(error);
            }
        }
        Ok(Some(is_reached))
    }

    /// Returns true if a checkpoint is published, or a file of its own is there.
    async fn is_visible(&self, url: &str, options: &Options) -> Result<bool> {
        let sink = self.sink(url, options)?;
        let metadata = object_url(url, METADATA);
        match sink.head(&metadata).await?.is_some() {
            true => Ok(manifest_of(&*sink, url).await?.is_some()),
            false => Ok(sink.head(url).await?.is_some()),
        }
    }
}

/// Returns true for a failure that time does not mend.
pub(crate) fn is_final(error: &Error) -> bool {
    // A bucket that does not exist is `NotFound`.
    matches!(
        error.kind(),
        ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::PermissionDenied | ErrorKind::NotFound
    )
}
