//! Removal of checkpoints: local copies that newer ones replace, and what a rule does not keep.

use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::{Level, METADATA, Progress, Published, Record, object_url};
use forebay_error::{Result, shown};

use crate::Inner;
use crate::clock::now_ms;
use crate::load::visible_manifest;
use crate::registry::Tracked;
use crate::wait::is_final;

/// Period in which files that other nodes publish are looked after.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

impl Inner {
    /// Notes which checkpoints were published by other nodes, and removes the local files of older
    /// ones.
    pub(crate) async fn look_after(&self) {
        let waiting = self.registry.select(|record| {
            !record.is_lone && matches!(record.progress, Progress::Uploaded { .. })
        });
        let mut urls: Vec<_> = waiting.iter().map(|file| file.record().url.clone()).collect();
        urls.sort();
        urls.dedup();
        for url in urls {
            let files = waiting.iter().filter(|file| file.record().url == url);
            if let Err(error) = self.note_others(&url, files).await {
                tracing::debug!(url = shown(&url), %error, "cannot look for a publication");
            }
        }
    }

    async fn note_others<'a>(
        &self,
        url: &str,
        files: impl Iterator<Item = &'a Arc<Tracked>>,
    ) -> Result<()> {
        let mut manifest = None;
        for file in files {
            let record = file.record();
            if manifest.is_none() {
                let sink = self.sink(url, &file.options())?;
                let is_visible = sink.head(&object_url(url, METADATA)).await?.is_some();
                manifest = Some(match is_visible {
                    true => visible_manifest(&*sink, url).await?,
                    false => None,
                });
            }
            let Some(Some(manifest)) = &manifest else { return Ok(()) };
            if manifest.files.iter().any(|entry| entry.id == record.id) {
                let at_ms = manifest.saved_at_ms;
                self.registry.note(file, Progress::Published { at_ms }).await?;
            }
        }
        self.tidy(url).await;
        Ok(())
    }

    /// After a publication: removes the local files of older checkpoints of the same run, and what
    /// its rule does not keep in the store.
    pub(crate) async fn tidy(&self, url: &str) {
        let Some(run) = folder(url) else { return };
        let of_run = |record: &Record| !record.is_lone && folder(&record.url) == Some(run);
        let published = self
            .registry
            .select(|record| of_run(record) && record.progress.level() == Level::Published);
        let age = |record: &Record| match record.progress {
            Progress::Published { at_ms } => at_ms,
            _ => 0,
        };
        // All files of an attempt have the time of its save.
        let newest = published.iter().map(|file| age(&file.record())).max().unwrap_or_default();
        for file in published.iter().filter(|file| age(&file.record()) < newest) {
            let record = file.record();
            if let Err(error) = self.registry.remove(file).await {
                let (url, name) = (shown(&record.url), record.name.as_str());
                tracing::warn!(url, name, %error, "failed to remove a local copy of a checkpoint");
            }
        }
        let kept = published.iter().map(|file| file.record());
        let metadata = kept.into_iter().find(|one| age(one) == newest && one.commit.is_some());
        if let Err(error) = self.keep_to_rule(run, metadata.as_deref()).await {
            tracing::warn!(url = shown(run), %error, "failed to remove old checkpoints");
        }
    }

    /// Removes checkpoints of a run in the store that the rule does not keep.
    async fn keep_to_rule(&self, run: &str, newest: Option<&Record>) -> Result<()> {
        let Some(record) = newest else { return Ok(()) };
        let Some(keep) = self.store.checkpoint_rule(&record.url).and_then(|rule| rule.keep) else {
            return Ok(());
        };
        let Some(tracked) = self.registry.get(record.id) else { return Ok(()) };
        let sink = self.sink(run, &tracked.options())?;
        let all = self.published(&*sink, run).await?;
        let listed = all.iter().map(|(url, manifest)| Published {
            url: url.clone(),
            step: manifest.step,
            saved_at_ms: manifest.saved_at_ms,
        });
        let listed: Vec<_> = listed.collect();
        for url in keep.expendable(&listed) {
            if let Some((_, manifest)) = all.iter().find(|(of, _)| of == url) {
                self.remove_published(&*sink, url, manifest).await?;
                tracing::info!(url = shown(url), step = manifest.step, "removed an old checkpoint");
            }
        }
        Ok(())
    }

    /// Removes the oldest file that is in the store already, for room. Returns false if there is
    /// none.
    pub(crate) async fn free(&self) -> bool {
        let expendable = self.registry.select(|record| match record.progress {
            Progress::Uploaded { .. } => record.is_lone,
            Progress::Published { .. } => true,
            _ => false,
        });
        let Some(oldest) = expendable.last() else { return false };
        match self.registry.remove(oldest).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "failed to remove a local copy of a checkpoint");
                false
            }
        }
    }

    /// Removes files of attempts that were never published, a day after they were uploaded.
    pub(crate) async fn expire(&self) {
        let now = now_ms();
        let left = self.registry.select(|record| match record.progress {
            Progress::Uploaded { at_ms, .. } => forebay_checkpoint::is_leftover(at_ms, now),
            Progress::Published { .. } => false,
            // A publication: nothing of it is left to publish.
            _ => {
                record.commit.is_some() && forebay_checkpoint::is_leftover(record.staged_at_ms, now)
            }
        });
        let is_over = |file: &&Arc<Tracked>| {
            file.record().commit.is_none() || file.trouble().is_some_and(|error| is_final(&error))
        };
        for file in left.iter().filter(is_over) {
            let record = file.record();
            let (url, name) = (shown(&record.url), record.name.as_str());
            match self.registry.remove(file).await {
                Ok(()) if record.is_lone => {}
                Ok(()) => tracing::warn!(url, name, "removed a file that was never published"),
                Err(error) => tracing::warn!(url, name, %error, "failed to remove a leftover"),
            }
        }
    }
}

/// Returns the folder of a checkpoint: that of its run.
fn folder(url: &str) -> Option<&str> {
    url.rsplit_once('/').map(|(folder, _)| folder)
}
