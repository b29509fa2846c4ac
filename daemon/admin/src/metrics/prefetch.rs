//! Families of foresight: what is fetched ahead of need, how much time is left, and what is
//! lacking.

use super::family::{Family, Sample, Together};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_prefetch_jobs",
        &[],
        "Jobs whose future reads are known.",
        |status| Sample::only(status.foresight.jobs.len()),
    ),
    Family::gauge(
        "forebay_prefetch_bandwidth_bytes_per_second",
        &[],
        "Measured bandwidth of all links to origins together.",
        |status| Sample::only(status.foresight.bandwidth),
    ),
    Family::counter(
        "forebay_prefetch_fetches_total",
        &[],
        "Prefetches of shards.",
        |status| Sample::only(status.foresight.fetches),
    ),
    Family::counter(
        "forebay_prefetch_evictions_total",
        &[],
        "Shards evicted for prefetches.",
        |status| Sample::only(status.foresight.evictions),
    ),
    Family::gauge(
        "forebay_lacking_cache_bytes",
        &[],
        "Additional cache, in bytes, that would end the jobs' waits for data; 0 if none is needed.",
        |status| {
            let lacks = status.foresight.lacks;
            Sample::only(lacks.and_then(|lacks| lacks.cache).unwrap_or_default())
        },
    ),
    Family::gauge(
        "forebay_lacking_bandwidth_bytes_per_second",
        &[],
        "Additional bandwidth that would end the jobs' waits instead of that cache; 0 if none is needed.",
        |status| {
            let lacks = status.foresight.lacks;
            Sample::only(lacks.and_then(|lacks| lacks.bandwidth).unwrap_or_default())
        },
    ),
    Family::gauge(
        "forebay_prefetch_slack_seconds",
        &["job", "session"],
        "Time until the next fetch must begin so that none of the job's shards is late; below 0 if one will be. Absent while no shard needed soon is missing.",
        |status| {
            let of = |job: &forebay_api::status::Job| {
                let mut foreseen = status.foresight.jobs.iter();
                let slack = foreseen.find(|foreseen| foreseen.job == job.session)?.slack?;
                Some(Sample::new([&*job.name, &job.session.to_string()], slack))
            };
            super::jobs::shown(status).filter_map(of).collect()
        },
    )
    .together(Together::Least),
];
