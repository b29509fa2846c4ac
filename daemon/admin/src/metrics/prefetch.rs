//! Families of foresight: what is fetched ahead of need, how much time is left, and what is
//! lacking.

use super::family::{Family, Sample, Together};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_prefetch_jobs",
        &[],
        "Jobs of which it is known what they will read.",
        |status| Sample::only(status.foresight.jobs.len()),
    ),
    Family::gauge(
        "forebay_prefetch_bandwidth_bytes_per_second",
        &[],
        "What the links to the origins bring together, as far as was seen.",
        |status| Sample::only(status.foresight.bandwidth),
    ),
    Family::counter(
        "forebay_prefetch_fetches_total",
        &[],
        "Fetches of shards that were begun ahead of need.",
        |status| Sample::only(status.foresight.fetches),
    ),
    Family::counter(
        "forebay_prefetch_evictions_total",
        &[],
        "Shards that went for what was fetched ahead of need.",
        |status| Sample::only(status.foresight.evictions),
    ),
    Family::gauge(
        "forebay_lacking_cache_bytes",
        &[],
        "Bytes of cache that would let jobs read on without waiting, where they wait for want of cache or link; else 0.",
        |status| {
            let lacks = status.foresight.lacks;
            Sample::only(lacks.and_then(|lacks| lacks.cache).unwrap_or_default())
        },
    ),
    Family::gauge(
        "forebay_lacking_bandwidth_bytes_per_second",
        &[],
        "Bytes a second of link that would let jobs read on without waiting, in place of that cache; else 0.",
        |status| {
            let lacks = status.foresight.lacks;
            Sample::only(lacks.and_then(|lacks| lacks.bandwidth).unwrap_or_default())
        },
    ),
    Family::gauge(
        "forebay_prefetch_slack_seconds",
        &["job", "session"],
        "Time until the next fetch must begin for none of the job's shards to come late; below 0 if one will. Absent while \
         none of the shards needed first is missing.",
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
