//! Removal of checkpoints: local copies that newer ones replace, and what a rule does not keep.

use std::collections::HashSet;
use std::time::Duration;

use forebay_checkpoint::{Level, Progress, Published, Record};
use forebay_error::{Result, shown};
use forebay_source::{EXISTS, Options, REASON};

use crate::Inner;
use crate::clock::now_ms;
use crate::load::published_manifest;
use crate::registry::Tracked;
use crate::wait::is_final;

/// Period in which files that other nodes publish are looked after.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

impl Inner {
    /// Notes which checkpoints were published by other nodes, and removes the local files of older
    /// ones.
    pub(crate) async fn look_after(&self) {
        let waiting = self.registry.select(is_to_be_published);
        let mut urls: Vec<_> = waiting.iter().map(|file| file.record().url.clone()).collect();
        urls.sort();
        urls.dedup();
        for url in urls {
            let Some(file) = waiting.iter().find(|file| file.record().url == url) else { continue };
            if let Err(error) = self.note_published_elsewhere(&url, &file.options()).await {
                tracing::debug!(url = shown(&url), %error, "cannot look for a publication");
            }
        }
    }

    /// Notes which files of a checkpoint here are part of the visible one. Returns the time of that
    /// one's save; none if there is none of Forebay's.
    pub(crate) async fn note_published_elsewhere(
        &self,
        url: &str,
        options: &Options,
    ) -> Result<Option<u64>> {
        let sink = self.sink(url, options)?;
        let Some(manifest) = published_manifest(&*sink, url).await? else { return Ok(None) };
        let at_ms = manifest.saved_at_ms;
        let ids: HashSet<_> = manifest.entries().map(|entry| entry.id).collect();
        let published = self.registry.select(|record| {
            is_to_be_published(record) && record.url == url && ids.contains(&record.id)
        });
        for file in &published {
            self.registry.note(file, Progress::Published { at_ms }).await?;
        }
        if !published.is_empty() {
            self.tidy(url).await;
        }
        Ok(Some(at_ms))
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
        self.free_of(|_| true).await
    }

    /// The same among the files that `is_its` names.
    pub(crate) async fn free_of(&self, is_its: impl Fn(&Record) -> bool) -> bool {
        let expendable = self.registry.select(|record| is_expendable(record) && is_its(record));
        let Some(oldest) = expendable.last() else { return false };
        match self.registry.remove(oldest).await {
            Ok(()) => true,
            Err(error) => {
                let record = oldest.record();
                let (url, name) = (shown(&record.url), record.name.as_str());
                tracing::warn!(url, name, %error, "failed to remove a local copy of a checkpoint");
                false
            }
        }
    }

    /// Removes files of attempts that were never published, a day after they were uploaded, or were
    /// to be.
    pub(crate) async fn expire(&self) {
        let now = now_ms();
        let left = self.registry.select(|record| match record.progress {
            Progress::Uploaded { at_ms, .. } => forebay_checkpoint::is_leftover(at_ms, now),
            Progress::Published { .. } => false,
            _ => forebay_checkpoint::is_leftover(record.staged_at_ms, now),
        });
        for file in left.iter().filter(|file| is_abandoned(file)) {
            let record = file.record();
            let (url, name) = (shown(&record.url), record.name.as_str());
            if let Err(error) = self.registry.remove(file).await {
                tracing::warn!(url, name, %error, "failed to remove a leftover");
                continue;
            }
            if !record.is_lone {
                tracing::warn!(url, name, "removed a file that was never published");
            }
            self.abandon_upload(&record, &file.options()).await;
        }
    }
}

/// Returns true for a local copy of what is in the store.
pub(crate) fn is_expendable(record: &Record) -> bool {
    match record.progress {
        Progress::Uploaded { .. } => record.is_lone,
        Progress::Published { .. } => true,
        _ => false,
    }
}

/// Returns true for an old file that nobody will publish.
fn is_abandoned(file: &Tracked) -> bool {
    let (record, trouble) = (file.record(), file.trouble());
    match record.commit {
        // Nothing of it is left to publish.
        Some(_) => trouble.is_some_and(|error| is_final(&error)),
        None if record.progress.level() == Level::Uploaded => true,
        // It may not replace what is published.
        None => {
            let reason = trouble.as_ref().and_then(|error| error.place(REASON));
            file.awaits_commit() || reason == Some(EXISTS)
        }
    }
}

/// Returns true for a file in the store that another node's commit may name.
fn is_to_be_published(record: &Record) -> bool {
    !record.is_lone && matches!(record.progress, Progress::Uploaded { .. })
}

/// Returns the folder of a checkpoint: that of its run.
fn folder(url: &str) -> Option<&str> {
    url.rsplit_once('/').map(|(folder, _)| folder)
}
