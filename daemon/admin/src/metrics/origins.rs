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
        "Payload bytes received from the endpoint, second copies included.",
        |status| each(status, |link| link.bytes.into()),
    ),
    Family::histogram(
        "forebay_origin_first_byte_seconds",
        &["source"],
        "How long the endpoint's replies took to their first byte, those that had one.",
        |status| each(status, |link| (&link.first_bytes).into()),
    ),
    Family::histogram(
        "forebay_origin_reply_seconds",
        &["source"],
        "How long the endpoint's replies took to their last byte, or to where they broke off.",
        |status| each(status, |link| (&link.replies).into()),
    ),
    Family::counter(
        "forebay_origin_failures_total",
        &["source"],
        "Requests that the endpoint did not answer, or answered by saying that it cannot now.",
        |status| each(status, |link| link.failures.into()),
    ),
    Family::counter(
        "forebay_origin_refusals_total",
        &["source"],
        "Requests that the endpoint answered by a refusal: there is no such object, nobody may read it by these credentials, or \
         the request makes no sense to it.",
        |status| each(status, |link| link.refusals.into()),
    ),
    Family::counter(
        "forebay_origin_retries_total",
        &["source"],
        "Requests that were repeated, or resumed where a reply broke off.",
        |status| each(status, |link| link.retries.into()),
    ),
    Family::counter(
        "forebay_origin_hedges_total",
        &["source"],
        "Second requests for what was late.",
        |status| each(status, |link| link.hedges.into()),
    ),
    Family::counter(
        "forebay_origin_hedged_bytes_total",
        &["source"],
        "Bytes that came twice by second requests.",
        |status| each(status, |link| link.hedged_bytes.into()),
    ),
    Family::gauge(
        "forebay_origin_down",
        &["source"],
        "1 while the endpoint is taken to be down: one request tries it now and then.",
        |status| each(status, |link| link.down.into()),
    )
    .together(Together::Most),
    Family::counter(
        "forebay_origin_breaks_total",
        &["source"],
        "How often the endpoint was taken to be down.",
        |status| each(status, |link| link.breaks.into()),
    ),
    Family::gauge(
        "forebay_origin_requests_running",
        &["source"],
        "Requests to the endpoint under way.",
        |status| each(status, |link| link.under_way.into()),
    ),
    Family::gauge(
        "forebay_origin_requests_waiting",
        &["source"],
        "Requests that wait for a place among those under way.",
        |status| each(status, |link| link.waiting.into()),
    ),
    Family::gauge(
        "forebay_origin_requests_limit",
        &["source"],
        "Requests that the endpoint takes at once, as found out.",
        |status| each(status, |link| link.limit.into()),
    ),
    Family::counter(
        "forebay_origin_checksums_total",
        &["source", "outcome"],
        "Shards compared with the endpoint's own checksums: they agreed, differed (and were not kept), there was none, or it \
         was not told.",
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
        "How long requests to the mount's readers took that were answered: looks at files, and reads of a piece.",
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
        "Looks at files of the mount, and reads of them, that ended in an error: there was no such file, it could not be \
         read, or the mount hung.",
        |status| counts(status, |counts| counts.failures.into()),
    ),
    Family::gauge(
        "forebay_mount_hangs",
        &["mount"],
        "1 while the last request to the mount was not answered in time.",
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
        "Of those, processes that were killed and stay until the file system lets them go.",
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
