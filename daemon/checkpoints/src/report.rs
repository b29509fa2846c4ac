//! Report on the checkpoints of a node.

use std::collections::BTreeMap;

use forebay_checkpoint::{Level, Progress, Record};
use forebay_error::shown;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Checkpoints;
use crate::clock::now_ms;

/// Checkpoints that files of this node belong to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointsReport {
    /// Bytes of staged files on the tiers.
    pub staged_bytes: u64,
    /// Bytes that are not in the store yet.
    pub backlog_bytes: u64,
    /// Age of the oldest file that is not in the store yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<u64>,
    /// Files whose upload or publication fails.
    pub held_files: usize,
    /// Bytes saved since the daemon started.
    pub saved_bytes: u64,
    /// Bytes uploaded since the daemon started.
    pub uploaded_bytes: u64,
    /// Checkpoints that this node published since the daemon started.
    pub published: u64,
    /// Bytes restored from this node's tiers since the daemon started.
    pub restored_local_bytes: u64,
    /// Bytes restored from stores since the daemon started.
    pub restored_origin_bytes: u64,
    /// Bytes of other nodes' files, of which this one keeps the second copies.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Checkpoints, the newest first.
    pub checkpoints: Vec<CheckpointReport>,
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointReport {
    /// URL.
    pub url: String,
    /// Level that all its files on this node have reached.
    pub level: String,
    /// Files on this node.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of them that are in the store.
    pub uploaded_bytes: u64,
    /// Time at which its last file was staged, in milliseconds since 1970.
    pub staged_at_ms: u64,
    /// Name of the job.
    pub job: String,
    /// Tenant of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Step of the training, if this node publishes the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Failure that lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl Checkpoints {
    /// Returns a report on all checkpoints of this node.
    #[must_use]
    pub fn report(&self) -> CheckpointsReport {
        let counts = &self.inner.counts;
        let kept = self.inner.keeping.files().select(|_| true);
        let mut report = CheckpointsReport {
            staged_bytes: self.inner.store.staged_bytes(),
            saved_bytes: counts.saved.get(),
            uploaded_bytes: counts.uploaded.get(),
            published: counts.published.get(),
            kept_bytes: kept.iter().map(|file| file.record().len).sum(),
            restored_local_bytes: counts.local.get(),
            restored_origin_bytes: counts.remote.get(),
            ..CheckpointsReport::default()
        };
        let mut by_url: BTreeMap<String, CheckpointReport> = BTreeMap::new();
        let now = now_ms();
        for tracked in self.inner.registry.select(|_| true) {
            let record = tracked.record();
            let (level, uploaded) = progress(&record);
            let trouble = tracked.trouble();
            report.backlog_bytes += record.len - uploaded;
            if level < Level::Uploaded {
                let age = now.saturating_sub(record.staged_at_ms) / 1000;
                report.oldest_seconds = report.oldest_seconds.max(Some(age));
            }
            report.held_files += usize::from(trouble.is_some());
            let url = record.named_url().into_owned();
            let one = by_url.entry(url.clone()).or_insert_with(|| CheckpointReport {
                url: shown(&url).to_string(),
                level: Level::Published.name().to_owned(),
                files: 0,
                bytes: 0,
                uploaded_bytes: 0,
                staged_at_ms: 0,
                job: record.job.clone(),
                tenant: record.tenant.clone(),
                step: None,
                trouble: None,
            });
            one.files += 1;
            one.bytes += record.len;
            one.uploaded_bytes += uploaded;
            one.staged_at_ms = one.staged_at_ms.max(record.staged_at_ms);
            one.step = one.step.or(record.commit.as_ref().and_then(|commit| commit.step));
            if one.level.parse::<Level>().is_ok_and(|known| known > level) {
                level.name().clone_into(&mut one.level);
            }
            if let Some(error) = trouble {
                one.trouble = Some(error.to_string());
            }
        }
        report.checkpoints = by_url.into_values().collect();
        report.checkpoints.sort_by_key(|one| std::cmp::Reverse(one.staged_at_ms));
        report
    }
}

/// Returns the level of a file for a report, and its bytes in the store.
fn progress(record: &Record) -> (Level, u64) {
    match &record.progress {
        // A file of its own needs no publication.
        Progress::Uploaded { .. } if record.is_lone => (Level::Published, record.len),
        Progress::Uploading { part_bytes, parts, .. } => {
            (record.level(), (part_bytes * parts.len() as u64).min(record.len))
        }
        progress if progress.level() >= Level::Uploaded => (progress.level(), record.len),
        _ => (record.level(), 0),
    }
}
