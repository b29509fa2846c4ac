//! Families of origins: endpoints that shards come from over a network, and mounts that they are
//! read from.
//!
//! Their number is bounded where they are kept: endpoints by how many links are remembered, mounts
//! by how many may be read from at once. Connections come and go without a bound: what their
//! clients open goes by one name.

use std::borrow::Cow;

use forebay_api::status::Status;
use forebay_source::{FileCounts, LinkReport, MountReport};

use super::family::{Family, Sample, Together, Value};

/// The name of all files that clients open.
const BY_CLIENTS: &str = "(files that clients open)";

pub(super) const FAMILIES: &[Family] = &[
    Family::counter(
        "forebay_origin_bytes_total",
        &["source"],
        "Payload bytes received from the endpoint, duplicates of hedged requests included.",
        |status| each(status, |link| link.bytes.into()),
    ),
    Family::counter(
        "forebay_origin_written_bytes_total",
        &["source"],
        "Payload bytes of objects, and parts of them, that the endpoint took.",
        |status| each(status, |link| link.written_bytes.into()),
    ),
    Family::counter(
        "forebay_origin_puts_total",
        &["source"],
        "Requests by which the endpoint took objects, or parts of them.",
        |status| each(status, |link| link.puts.into()),
    ),
    Family::histogram(
        "forebay_origin_first_byte_seconds",
        &["source"],
        "Time to the first byte of the endpoint's replies.",
        |status| each(status, |link| (&link.first_bytes).into()),
    ),
    Family::histogram(
        "forebay_origin_reply_seconds",
        &["source"],
        "Time to the last byte of the endpoint's replies, or to their interruption.",
        |status| each(status, |link| (&link.replies).into()),
    ),
    Family::counter(
        "forebay_origin_failures_total",
        &["source"],
        "Requests without an answer, or with one that asks to retry later.",
        |status| each(status, |link| link.failures.into()),
    ),
    Family::counter(
        "forebay_origin_refusals_total",
        &["source"],
        "Requests the endpoint rejected: no such object, access denied, or an invalid request.",
        |status| each(status, |link| link.refusals.into()),
    ),
    Family::counter(
        "forebay_origin_retries_total",
        &["source"],
        "Requests repeated, or resumed after an interrupted reply.",
        |status| each(status, |link| link.retries.into()),
    ),
    Family::counter(
        "forebay_origin_hedges_total",
        &["source"],
        "Hedged requests: second requests for late replies.",
        |status| each(status, |link| link.hedges.into()),
    ),
    Family::counter(
        "forebay_origin_hedged_bytes_total",
        &["source"],
        "Bytes received twice because of hedged requests.",
        |status| each(status, |link| link.hedged_bytes.into()),
    ),
    Family::gauge(
        "forebay_origin_down",
        &["source"],
        "1 while the circuit breaker of the endpoint is open: one request probes it now and then.",
        |status| each(status, |link| link.down.into()),
    )
    .together(Together::Most),
    Family::counter(
        "forebay_origin_breaks_total",
        &["source"],
        "Times the circuit breaker opened.",
        |status| each(status, |link| link.breaks.into()),
    ),
    Family::gauge(
        "forebay_origin_requests_running",
        &["source"],
        "Requests to the endpoint in flight.",
        |status| each(status, |link| link.under_way.into()),
    ),
    Family::gauge(
        "forebay_origin_requests_waiting",
        &["source"],
        "Requests waiting for a slot.",
        |status| each(status, |link| link.waiting.into()),
    ),
    Family::gauge(
        "forebay_origin_requests_limit",
        &["source"],
        "Learnt limit on concurrent requests to the endpoint.",
        |status| each(status, |link| link.limit.into()),
    ),
    Family::counter(
        "forebay_origin_checksums_total",
        &["source", "outcome"],
        "Shards compared with the endpoint's own checksums: `agreed`, `differed` (and dropped), `none` (no checksum), or `untold` (not available).",
        |status| {
            let of = |link: &LinkReport| {
                let found = link.checksums;
                [
                    ("agreed", found.agreed),
                    ("differed", found.differed),
                    ("none", found.none),
                    ("untold", found.untold),
                ]
                .map(|(outcome, shards)| Sample::new([&link.endpoint, outcome], shards))
            };
            status.sources.iter().flat_map(of).collect()
        },
    ),
    Family::histogram(
        "forebay_mount_answer_seconds",
        &["mount"],
        "Duration of answered requests to the mount's readers: stats of files, and reads of a piece.",
        |status| counts(status, |counts| (&counts.answers).into()),
    ),
    Family::counter(
        "forebay_mount_bytes_total",
        &["mount"],
        "Bytes that the mount's readers read.",
        |status| counts(status, |counts| counts.bytes.into()),
    ),
    Family::counter(
        "forebay_mount_failures_total",
        &["mount"],
        "Failed stats and reads of the mount's files: missing, unreadable, or the mount hung.",
        |status| counts(status, |counts| counts.failures.into()),
    ),
    Family::gauge(
        "forebay_mount_hangs",
        &["mount"],
        "1 if the last request to the mount timed out.",
        |status| mounts(status, |mount| mount.hangs.into()),
    )
    .together(Together::Most),
    Family::gauge(
        "forebay_mount_readers",
        &["mount"],
        "Processes that read from the mount.",
        |status| mounts(status, |mount| mount.readers.len().into()),
    ),
    Family::gauge(
        "forebay_mount_stuck_readers",
        &["mount"],
        "Killed processes that stay until the file system releases them.",
        |status| mounts(status, |mount| mount.stuck.len().into()),
    ),
];

/// Something of each endpoint.
fn each(status: &Status, of: fn(&LinkReport) -> Value) -> Vec<Sample> {
    let links = status.sources.iter();
    links.map(|link| Sample::new([&*link.endpoint], of(link))).collect()
}

/// Gauges of mounts; readers of each client are merged where samples share a name.
fn mounts(status: &Status, of: fn(&MountReport) -> Value) -> Vec<Sample> {
    // There also while no client opens anything: whoever watches it is not to see it come and go.
    let nobody = MountReport { by_client: true, ..MountReport::default() };
    let mounts = status.mounts.iter().chain([&nobody]);
    mounts.map(|mount| Sample::new([&*name(mount)], of(mount))).collect()
}

/// Counters of mounts, and of all files that clients open.
fn counts(status: &Status, of: fn(&FileCounts) -> Value) -> Vec<Sample> {
    let mounts = status.mounts.iter().filter(|mount| !mount.by_client);
    let mounts = mounts.map(|mount| Sample::new([&*name(mount)], of(&mount.counts)));
    mounts.chain([Sample::new([BY_CLIENTS], of(&status.client_files))]).collect()
}

fn name(mount: &MountReport) -> Cow<'_, str> {
    match mount.by_client {
        true => BY_CLIENTS.into(),
        false => mount.mount.to_string_lossy(),
    }
}
