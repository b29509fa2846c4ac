//! Families of tiers: what they hold, what was found on them, and how their devices do.

use forebay_api::status::Status;
use forebay_histogram::Times;
use forebay_store::{Class, Condition, Counters, Mode, ThroughCounters, TierReport};
use forebay_uring::{EngineKind, EngineReport};

use super::family::{Family, Sample};

/// The name of what no tier has a part in.
const NO_TIER: &str = "none";

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_tier_info",
        &["tier", "class", "device", "engine"],
        "Class of a tier, its block device, and its I/O engine; the value is always 1.",
        |status| {
            let told = |tier: &TierReport| {
                let engine = match tier.engine.as_ref().map(|engine| &engine.kind) {
                    Some(EngineKind::Ring) => "io_uring",
                    Some(_) => "threads",
                    None => "memory",
                };
                let device = tier.device.as_deref().unwrap_or_default();
                Sample::new([&tier.name, class(tier.class), device, engine], 1_u64)
            };
            status.tiers.iter().map(told).collect()
        },
    ),
    Family::gauge(
        "forebay_tier_mode",
        &["tier", "mode"],
        "1 for the mode the admin set: enabled, draining or disabled; 0 for the others.",
        |status| {
            let modes = [
                ("enabled", Mode::Enabled),
                ("draining", Mode::Draining),
                ("disabled", Mode::Disabled),
            ];
            let of = |tier: &TierReport| {
                let mode = tier.mode;
                let name = tier.name.clone();
                modes.map(move |(word, is)| Sample::new([&name, word], mode == is))
            };
            status.tiers.iter().flat_map(of).collect()
        },
    ),
    Family::gauge(
        "forebay_tier_condition",
        &["tier", "condition"],
        "1 for the condition of the tier's device: normal, full, read-only, unstable or down; 0 for the others.",
        |status| {
            let conditions = [
                ("normal", Condition::Normal),
                ("full", Condition::Full),
                ("read-only", Condition::ReadOnly),
                ("unstable", Condition::Unstable),
                ("down", Condition::Down),
            ];
            let of = |tier: &TierReport| {
                let condition = tier.condition;
                let name = tier.name.clone();
                conditions.map(move |(word, is)| Sample::new([&name, word], condition == is))
            };
            status.tiers.iter().flat_map(of).collect()
        },
    ),
    Family::gauge(
        "forebay_tier_capacity_bytes",
        &["tier"],
        "Capacity of the tier in bytes.",
        |status| each(status, |c| c.capacity_bytes),
    ),
    Family::gauge(
        "forebay_tier_limit_bytes",
        &["tier"],
        "Present limit of the tier in bytes: below its capacity if other data fill the disk.",
        |status| each(status, |c| c.limit_bytes),
    ),
    Family::gauge("forebay_tier_used_bytes", &["tier"], "Bytes reserved on the tier.", |status| {
        each(status, |c| c.used_bytes)
    }),
    Family::gauge(
        "forebay_tier_lent_bytes",
        &["tier"],
        "Bytes of shards in memory that trainers read in place; they are not evicted meanwhile.",
        |status| each_with(status, |tier| Some(tier.lent_bytes? as f64)),
    ),
    Family::gauge(
        "forebay_tier_shards",
        &["tier"],
        "Shards on the tier, including those in flight.",
        |status| each(status, |c| c.shards as u64),
    ),
    Family::gauge(
        "forebay_tier_excerpts",
        &["tier"],
        "Excerpts among the shards on the tier: members that jobs want, without the rest.",
        |status| each(status, |c| c.excerpts as u64),
    ),
    Family::counter(
        "forebay_tier_hits_total",
        &["tier"],
        "Uses of shards by epochs of jobs that found them on the tier.",
        |status| each(status, |c| c.hits),
    ),
    Family::counter(
        "forebay_tier_misses_total",
        &["tier"],
        "Shards fetched for their first use, by the tier they came to; `none` is for reads past all tiers.",
        |status| each_and_past(status, |c| c.misses, |past| past.misses),
    ),
    Family::counter(
        "forebay_tier_fills_total",
        &["tier"],
        "Shards fetched and committed.",
        |status| each(status, |c| c.fills),
    ),
    Family::counter(
        "forebay_tier_failed_fills_total",
        &["tier"],
        "Failed fetches of shards; `none` is for reads past all tiers.",
        |status| each_and_past(status, |c| c.failed_fills, |past| past.failed_fills),
    ),
    Family::counter("forebay_tier_evictions_total", &["tier"], "Evicted shards.", |status| {
        each(status, |c| c.evictions)
    }),
    Family::counter(
        "forebay_corruption_total",
        &["tier"],
        "Copies dropped because stored bytes were corrupt. No trainer received them.",
        |status| each(status, |c| c.corruptions),
    ),
    Family::counter(
        "forebay_tier_origin_bytes_total",
        &["tier"],
        "Bytes fetched from origins, fetches in flight included; for compressed shards, the compressed bytes.",
        |status| each(status, |c| c.origin_bytes),
    ),
    Family::counter(
        "forebay_tier_resumed_bytes_total",
        &["tier"],
        "Bytes kept from interrupted fetches and reused.",
        |status| each(status, |c| c.resumed_bytes),
    ),
    Family::counter(
        "forebay_tier_moved_shards_total",
        &["tier"],
        "Shards moved here from another tier.",
        |status| each(status, |c| c.moved_in),
    ),
    Family::counter(
        "forebay_tier_moved_bytes_total",
        &["tier"],
        "Bytes of shards moved here from another tier.",
        |status| each(status, |c| c.moved_bytes),
    ),
    Family::counter(
        "forebay_tier_written_bytes_total",
        &["tier"],
        "Bytes written to the tier by fetches and moves: the wear of its device, if it has one.",
        |status| each(status, |c| c.written_bytes),
    ),
    Family::gauge(
        "forebay_tier_writes_left_bytes",
        &["tier"],
        "Bytes that may be written now without throttling, if `writes_per_day` is set; below 0 if overdrawn.",
        |status| each_with(status, |tier| Some(tier.writes_left_bytes? as f64)),
    ),
    Family::counter(
        "forebay_tier_errors_total",
        &["tier"],
        "Failed operations of the tier's device.",
        |status| each(status, |c| c.io_errors),
    ),
    Family::counter(
        "forebay_tier_read_bytes_total",
        &["tier"],
        "Bytes read from the tier for batches and moves.",
        |status| each(status, |c| c.tier_read_bytes),
    ),
    Family::counter(
        "forebay_tier_copied_bytes_total",
        &["tier"],
        "Bytes for batches copied from memory while their shard was in flight; `none` is for reads past all tiers.",
        |status| each_and_past(status, |c| c.copied_bytes, |past| past.copied_bytes),
    ),
    Family::counter(
        "forebay_through_shards_total",
        &[],
        "Opened shards that no tier holds: indexed in one pass, and read from their origin.",
        |status| Sample::only(status.cache.past.through),
    ),
    Family::counter(
        "forebay_through_bytes_total",
        &[],
        "Bytes read from origins for batches of shards that no tier holds.",
        |status| Sample::only(status.cache.counters.through_bytes),
    ),
    Family::counter(
        "forebay_cache_hit_bytes_total",
        &["tier", "dataset"],
        "Bytes for batches read from the tier, by data set; `(rest)` is for shards without one.",
        |status| traffic(status, |of| of.hit_bytes),
    ),
    Family::counter(
        "forebay_cache_miss_bytes_total",
        &["tier", "dataset"],
        "Bytes for batches missing on the tier: taken from memory in flight, or, as `none`, read past all tiers.",
        |status| traffic(status, |of| of.miss_bytes),
    ),
    Family::histogram(
        "forebay_io_duration_seconds",
        &["tier", "operation"],
        "Duration of reads, writes and syncs of the tier's device, from the request.",
        |status| {
            let of = |tier: &TierReport, engine: &EngineReport| {
                let times: [(&str, &Times); 3] = [
                    ("read", &engine.durations.reads),
                    ("write", &engine.durations.writes),
                    ("sync", &engine.durations.syncs),
                ];
                times.map(|(operation, times)| Sample::new([&tier.name, operation], times)).into()
            };
            engines(status, of)
        },
    ),
    Family::counter(
        "forebay_io_bytes_total",
        &["tier", "operation"],
        "Bytes that the tier's engine read and wrote, for all purposes.",
        |status| {
            let of = |tier: &TierReport, engine: &EngineReport| {
                let c = engine.counters;
                [("read", c.bytes_read), ("write", c.bytes_written)]
                    .map(|(operation, bytes)| Sample::new([&tier.name, operation], bytes))
                    .into()
            };
            engines(status, of)
        },
    ),
    Family::counter(
        "forebay_io_short_total",
        &["tier", "operation"],
        "Short reads and writes, which the engine continued.",
        |status| {
            let of = |tier: &TierReport, engine: &EngineReport| {
                let c = engine.counters;
                [("read", c.short_reads), ("write", c.short_writes)]
                    .map(|(operation, short)| Sample::new([&tier.name, operation], short))
                    .into()
            };
            engines(status, of)
        },
    ),
    Family::counter(
        "forebay_io_errors_total",
        &["tier"],
        "Failed operations of the tier's engine.",
        |status| engine(status, |engine| engine.counters.errors),
    ),
    Family::counter(
        "forebay_io_fixed_operations_total",
        &["tier"],
        "Operations that used registered memory.",
        |status| engine(status, |engine| engine.counters.fixed_ops),
    ),
    Family::counter(
        "forebay_io_system_calls_total",
        &["tier"],
        "System calls of the tier's engine.",
        |status| engine(status, |engine| engine.counters.system_calls),
    ),
    Family::gauge(
        "forebay_io_operations_limit",
        &["tier"],
        "Limit on concurrent operations of the tier's engine.",
        |status| engine(status, |engine| engine.in_flight_limit.into()),
    ),
    Family::gauge(
        "forebay_io_memory_bytes",
        &["tier", "registered"],
        "Memory of the tier's engine, registered with the kernel or not. Unregistered memory costs CPU: see `forebay doctor`.",
        |status| {
            let of = |tier: &TierReport, engine: &EngineReport| {
                [("true", engine.registered_bytes), ("false", engine.unregistered_bytes)]
                    .map(|(is, bytes)| Sample::new([&tier.name, is], bytes))
                    .into()
            };
            engines(status, of)
        },
    ),
    Family::gauge("forebay_io_files", &["tier"], "Open files of the tier's engine.", |status| {
        engine(status, |engine| engine.files as u64)
    }),
    Family::gauge(
        "forebay_io_registered_files",
        &["tier"],
        "Open files registered with the ring.",
        |status| engine(status, |engine| engine.registered_files as u64),
    ),
    Family::gauge(
        "forebay_io_buffered_files",
        &["tier"],
        "Open files read through the page cache, because their file system has no direct I/O.",
        |status| engine(status, |engine| engine.buffered_files as u64),
    ),
];

fn class(class: Class) -> &'static str {
    match class {
        Class::Memory => "memory",
        Class::Nvme => "nvme",
        Class::Ssd => "ssd",
        Class::Hdd => "hdd",
    }
}

/// A count of each tier.
fn each(status: &Status, of: fn(&Counters) -> u64) -> Vec<Sample> {
    let tiers = status.tiers.iter();
    tiers.map(|tier| Sample::new([&*tier.name], of(&tier.counters))).collect()
}

/// The same, and of what went past all tiers.
fn each_and_past(
    status: &Status,
    of: fn(&Counters) -> u64,
    past: fn(&ThroughCounters) -> u64,
) -> Vec<Sample> {
    let mut samples = each(status, of);
    samples.push(Sample::new([NO_TIER], past(&status.cache.past)));
    samples
}

/// A figure of each tier that has it.
fn each_with(status: &Status, of: fn(&TierReport) -> Option<f64>) -> Vec<Sample> {
    let tiers = status.tiers.iter();
    tiers.filter_map(|tier| Some(Sample::new([&*tier.name], of(tier)?))).collect()
}

fn traffic(status: &Status, of: fn(&forebay_store::DatasetTraffic) -> u64) -> Vec<Sample> {
    let tiers = status.tiers.iter().map(|tier| (&*tier.name, &tier.traffic));
    let all = tiers.chain([(NO_TIER, &status.cache.past_tiers)]);
    all.flat_map(|(tier, traffic)| {
        traffic.iter().map(move |one| Sample::new([tier, &one.dataset], of(one)))
    })
    .collect()
}

fn engines(status: &Status, of: fn(&TierReport, &EngineReport) -> Vec<Sample>) -> Vec<Sample> {
    let tiers = status.tiers.iter().filter_map(|tier| Some((tier, tier.engine.as_ref()?)));
    tiers.flat_map(|(tier, engine)| of(tier, engine)).collect()
}

fn engine(status: &Status, of: fn(&EngineReport) -> u64) -> Vec<Sample> {
    let tiers = status.tiers.iter().filter_map(|tier| Some((tier, tier.engine.as_ref()?)));
    tiers.map(|(tier, engine)| Sample::new([&*tier.name], of(engine))).collect()
}
