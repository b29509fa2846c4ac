//! Families of the node: its process, its memory, what is on its way in.

use std::time::UNIX_EPOCH;

use forebay_api::status::Status;

use super::family::{Family, Sample, Together};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_build_info",
        &["release"],
        "The daemon's release; the value is always 1.",
        |status| vec![Sample::new([status.release.as_str()], 1_u64)],
    ),
    Family::gauge("forebay_uptime_seconds", &[], "Seconds since the daemon started.", |status| {
        Sample::only(status.uptime_seconds)
    }),
    Family::gauge(
        "forebay_configuration_time_seconds",
        &[],
        "Time at which the present configuration took effect, in seconds since 1970; absent without a file.",
        |status| {
            let since = status.configuration.as_ref();
            let since = since.and_then(|told| humantime::parse_rfc3339_weak(&told.since).ok());
            let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
            since.map_or_else(Vec::new, |since| Sample::only(since.as_secs_f64()))
        },
    ),
    Family::gauge(
        "forebay_configuration_drift",
        &[],
        "1 if the daemon's file differs from the configuration in force; `forebay config diff` shows the differences.",
        |status| {
            let drifts = |told: &forebay_api::configuration::Configuration| {
                Sample::only(told.drift.is_some())
            };
            status.configuration.as_ref().map_or_else(Vec::new, drifts)
        },
    ),
    Family::gauge(
        "forebay_frames_bytes",
        &[],
        "Memory for bytes in flight from origins and copies of small shards.",
        |status| Sample::only(status.frames.bytes),
    ),
    Family::gauge(
        "forebay_frames_used_bytes",
        &[],
        "Bytes of that memory in use, without copies.",
        |status| Sample::only(status.frames.in_use_bytes),
    ),
    Family::gauge(
        "forebay_frames_copies_bytes",
        &[],
        "Bytes of that memory with copies of small shards. They are dropped where the memory is needed.",
        |status| Sample::only(status.frames.copies_bytes),
    ),
    Family::gauge(
        "forebay_memory_pages_bytes",
        &["memory", "page"],
        "Memory by kind of page: reserved huge pages, transparent huge pages, and small ones. Small ones cost ten times the CPU.",
        |status| {
            let tiers =
                status.tiers.iter().filter_map(|tier| Some((&*tier.name, tier.pages.as_ref()?)));
            let all = std::iter::once(("frames", &status.frames.pages)).chain(tiers);
            all.flat_map(|(memory, pages)| {
                let pages = [
                    ("hugetlb", pages.hugetlb),
                    ("collapsed", pages.collapsed),
                    ("small", pages.small),
                ];
                pages.map(|(page, bytes)| Sample::new([memory, page], bytes))
            })
            .collect()
        },
    ),
    Family::gauge("forebay_slab_used_bytes", &[], "Bytes of all jobs' slabs.", |status| {
        Sample::only(status.slab_bytes)
    }),
    Family::gauge(
        "forebay_slab_limit_bytes",
        &[],
        "Limit on the bytes of all jobs' slabs.",
        |status| Sample::only(status.slab_limit_bytes),
    ),
    Family::gauge(
        "forebay_fills_running",
        &[],
        "Shards being fetched, or moved between tiers.",
        |status| Sample::only(status.fills.running),
    ),
    Family::gauge("forebay_fills_waiting", &[], "Shards waiting to be fetched.", |status| {
        Sample::only(status.fills.waiting)
    }),
    Family::gauge(
        "forebay_fills_paused",
        &[],
        "Shards whose fetch lets the first batch of its job go first.",
        |status| Sample::only(status.fills.paused),
    ),
    Family::gauge(
        "forebay_fills_limit",
        &[],
        "Limit on concurrent fetches of shards: 4 to 8 by the daemon's memory, and the running ones of shards up to 256 KiB.",
        |status| Sample::only(status.fills.limit),
    ),
    Family::histogram(
        "forebay_shard_wait_seconds",
        &[],
        "Time jobs and indexing tools waited for samples of a shard in flight. Samples present at once do not count.",
        |status| Sample::only(&status.shard_waits),
    ),
    Family::histogram(
        "forebay_shard_fetch_seconds",
        &[],
        "Time from the start of a shard's fetch until its commit to a tier. Failed and uncached shards do not count.",
        |status| Sample::only(&status.shard_fetches),
    ),
    Family::gauge("forebay_warm_ups_running", &[], "Running warm-ups.", |status| {
        Sample::only(status.warm_ups.iter().filter(|warm| !warm.done).count())
    }),
    Family::gauge(
        "forebay_warm_up_shards",
        &["state"],
        "Shards of running warm-ups: `fetched`, `cached` before, `failed`, `untried` (skipped), or `left` (pending).",
        |status| {
            let running = || status.warm_ups.iter().filter(|warm| !warm.done);
            let sum = |of: fn(&forebay_api::warm::Warming) -> u64| running().map(of).sum::<u64>();
            let done = [
                ("fetched", sum(|warm| warm.fetched)),
                ("cached", sum(|warm| warm.cached)),
                ("failed", sum(|warm| warm.failed)),
                ("untried", sum(|warm| warm.untried)),
            ];
            let left =
                sum(|warm| warm.shards).saturating_sub(done.iter().map(|(_, shards)| shards).sum());
            let all = done.into_iter().chain([("left", left)]);
            all.map(|(state, shards)| Sample::new([state], shards)).collect()
        },
    ),
    Family::counter(
        "forebay_audit_lines_total",
        &[],
        "Lines written to the audit log.",
        |status| audit(status, |audit| audit.written),
    ),
    Family::counter(
        "forebay_audit_lost_lines_total",
        &[],
        "Lines lost by the audit log: too many at once, or a failing disk.",
        |status| audit(status, |audit| audit.lost),
    ),
    Family::gauge(
        "forebay_audit_failing",
        &[],
        "1 while the audit log cannot be written.",
        |status| audit(status, |audit| audit.failing.is_some().into()),
    )
    .together(Together::Most),
];

fn audit(status: &Status, of: fn(&forebay_api::status::AuditReport) -> u64) -> Vec<Sample> {
    status.audit.as_ref().map_or_else(Vec::new, |audit| Sample::only(of(audit)))
}
