//! Families of checkpoints: bytes by level, the backlog, and uploads that fail.

use super::family::{Family, Sample};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_checkpoint_staged_bytes",
        &[],
        "Bytes of checkpoints on this node's tiers.",
        |status| vec![Sample::new([""; 0], status.checkpoints.staged_bytes)],
    ),
    Family::gauge(
        "forebay_checkpoint_kept_bytes",
        &[],
        "Bytes of other nodes' checkpoints, of which this node keeps the second copies.",
        |status| vec![Sample::new([""; 0], status.checkpoints.kept_bytes)],
    ),
    Family::gauge(
        "forebay_checkpoint_backlog_bytes",
        &[],
        "Bytes of checkpoints that are not in their store yet.",
        |status| vec![Sample::new([""; 0], status.checkpoints.backlog_bytes)],
    ),
    Family::gauge(
        "forebay_checkpoint_oldest_seconds",
        &[],
        "Age of the oldest file that is not in its store yet; 0 if all are.",
        |status| vec![Sample::new([""; 0], status.checkpoints.oldest_seconds.unwrap_or(0))],
    ),
    Family::gauge(
        "forebay_checkpoint_held_files",
        &[],
        "Files whose upload or publication fails; `forebay checkpoint ls` tells why.",
        |status| vec![Sample::new([""; 0], status.checkpoints.held_files as u64)],
    ),
    Family::counter(
        "forebay_checkpoint_saved_bytes_total",
        &[],
        "Bytes that jobs saved, durable on this node.",
        |status| vec![Sample::new([""; 0], status.checkpoints.saved_bytes)],
    ),
    Family::counter(
        "forebay_checkpoint_uploaded_bytes_total",
        &[],
        "Bytes of checkpoints that stores took from this node.",
        |status| vec![Sample::new([""; 0], status.checkpoints.uploaded_bytes)],
    ),
    Family::counter(
        "forebay_checkpoint_published_total",
        &[],
        "Checkpoints that this node made visible.",
        |status| vec![Sample::new([""; 0], status.checkpoints.published)],
    ),
    Family::counter(
        "forebay_checkpoint_restored_bytes_total",
        &["from"],
        "Bytes of checkpoints that jobs restored, by the place they came from.",
        |status| {
            let report = &status.checkpoints;
            vec![
                Sample::new(["tier"], report.restored_local_bytes),
                Sample::new(["origin"], report.restored_origin_bytes),
            ]
        },
    ),
];
