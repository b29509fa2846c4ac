//! Families of jobs: those that are connected now, told apart by name and session.
//!
//! Each rank of a job is a session of its own. Its numbers go with it: were those of a name added
//! up here, the sum would fall when a rank leaves, which a monitoring system takes for a restart.
//! `sum by (job)` adds them up. So what counts of one session is told with its name or not at all;
//! what the node's trainers waited, those that left among them, is told to all.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_api::progress::ProgressReport;
use forebay_api::status::{Job, Status};
use forebay_wire::message::Cause;

use super::family::{Family, Sample, Together, Value};

/// Sessions that are told one by one, the oldest first: several times the ranks of a large node.
/// Each has some dozens of numbers, and a script that opens job after job is not to fill a
/// monitoring system.
const SHOWN: usize = 256;

/// Letters of a name that only a trainer says, at most: what is longer is no decoder of ours.
const WORD_MAX: usize = 32;

/// Replacement of unknown names.
const OTHER: &str = "other";

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_jobs",
        &[],
        "Connected sessions of jobs; each rank has one.",
        |status| Sample::only(status.jobs.len()),
    ),
    Family::gauge(
        "forebay_jobs_untold",
        &[],
        "Sessions without series of their own, because there are too many.",
        |status| Sample::only(status.jobs.len().saturating_sub(SHOWN)),
    ),
    Family::counter(
        "forebay_node_wait_seconds_total",
        &["cause"],
        "Time trainers waited for batches since the daemon started, by cause; ended jobs included.",
        |status| {
            let of = |cause: Cause| {
                let waited = Duration::from_nanos(status.waited_ns[cause as usize]);
                Sample::new([cause.name()], waited.as_secs_f64())
            };
            Cause::ALL.into_iter().map(of).collect()
        },
    ),
    Family::gauge(
        "forebay_job_info",
        &["job", "session", "tenant"],
        "Tenant charged for the job's fetches; the value is always 1.",
        |status| {
            let of = |job: &Job| {
                let tenant = job.tenant.as_deref().unwrap_or_default();
                Sample::new([&*job.name, &job.session.to_string(), tenant], 1_u64)
            };
            shown(status).map(of).collect()
        },
    )
    .together(Together::Untold),
    Family::gauge(
        "forebay_job_slab_bytes",
        &["job", "session"],
        "Bytes of the job's slab.",
        |status| each(status, |job| job.slab_bytes.into()),
    ),
    Family::gauge(
        "forebay_job_slab_leased_bytes",
        &["job", "session"],
        "Bytes of the slab in occupied slots.",
        |status| each(status, |job| job.leased_bytes.into()),
    ),
    Family::gauge(
        "forebay_job_slab_batches",
        &["job", "session"],
        "Batches the slab has room for: fewer than the job's `prefetch` if memory is short.",
        |status| each(status, |job| job.slab_batches.into()),
    )
    .together(Together::Least),
    Family::gauge(
        "forebay_job_lent_slots",
        &["job", "session"],
        "Slots of the slab held by the trainer.",
        |status| each(status, |job| job.lent_slots.into()),
    ),
    Family::counter(
        "forebay_consumer_wait_seconds_total",
        &["job", "session", "cause"],
        "Time the trainer waited for batches, by cause: origin, peer, index, tier_read, ring_empty, decode, h2d or slab.",
        |status| {
            let of = |job: &Job, told: &ProgressReport| {
                let waits = told.waited_seconds.iter();
                let sample = |(cause, seconds): (&String, &f64)| {
                    Sample::new([&*job.name, &job.session.to_string(), cause], *seconds)
                };
                waits.map(sample).collect()
            };
            progress(status, of)
        },
    )
    .together(Together::Untold),
    Family::histogram(
        "forebay_consumer_wait_duration_seconds",
        &["job", "session"],
        "Time the trainer waited for each batch; a batch that was ready is in the first bucket.",
        |status| each_progress(status, |told| (&told.waits).into()),
    )
    .together(Together::Untold),
    Family::gauge(
        "forebay_consumer_waiting_seconds",
        &["job", "session"],
        "Time the trainer has been waiting for the next batch; 0 if it is not waiting.",
        |status| each_progress(status, |told| told.waiting_seconds.into()),
    )
    .together(Together::Most),
    Family::counter(
        "forebay_consumer_samples_total",
        &["job", "session"],
        "Samples delivered to the trainer.",
        |status| each_progress(status, |told| told.samples.into()),
    )
    .together(Together::Untold),
    Family::counter(
        "forebay_consumer_batches_total",
        &["job", "session"],
        "Batches delivered to the trainer.",
        |status| each_progress(status, |told| told.batches.into()),
    )
    .together(Together::Untold),
    Family::counter(
        "forebay_consumer_bytes_total",
        &["job", "session", "from"],
        "Payload bytes of those batches, from a tier, or from the origin while their shard was in flight.",
        |status| {
            let of = |job: &Job, told: &ProgressReport| {
                [("tier", told.tier_bytes), ("origin", told.origin_bytes)]
                    .map(|(from, bytes)| {
                        Sample::new([&*job.name, &job.session.to_string(), from], bytes)
                    })
                    .into()
            };
            progress(status, of)
        },
    )
    .together(Together::Untold),
    Family::gauge(
        "forebay_consumer_silent_seconds",
        &["job", "session"],
        "Time since the trainer's last report: a computing trainer is silent.",
        |status| each_progress(status, |told| told.heard_seconds_ago.into()),
    )
    .together(Together::Most),
    Family::gauge(
        "forebay_job_rate_bytes_per_second",
        &["job", "session"],
        "Read rate of the job while it does not wait, if its reads are known.",
        |status| foreseen(status, |job| job.rate.into()),
    ),
    Family::counter(
        "forebay_job_read_bytes_total",
        &["job", "session"],
        "Bytes of shards the job has passed since its reads became known.",
        |status| foreseen(status, |job| job.read.into()),
    )
    .together(Together::Untold),
    Family::counter(
        "forebay_job_waited_seconds_total",
        &["job", "session"],
        "Time the job waited for shards since its reads became known.",
        |status| foreseen(status, |job| job.waited.into()),
    )
    .together(Together::Untold),
    Family::counter(
        "forebay_job_wrong_shards_total",
        &["job", "session"],
        "Shards found corrupt after the job received samples of them; its trainer was notified.",
        |status| each(status, |job| job.wrong_shards.into()),
    )
    .together(Together::Untold),
    Family::counter(
        "forebay_job_bad_samples_total",
        &["job", "session", "kind"],
        "Samples and shards the trainer skipped, by kind of error.",
        |status| {
            let of = |job: &Job| {
                let counts = job.told.bad_samples.counts.iter();
                let sample = |(kind, count): (&String, &u64)| {
                    Sample::new([&*job.name, &job.session.to_string(), kind], *count)
                };
                counts.map(sample).collect::<Vec<_>>()
            };
            shown(status).flat_map(of).collect()
        },
    )
    .together(Together::Untold),
    Family::counter(
        "forebay_job_decoded_rows_total",
        &["job", "session", "decoder", "reason"],
        "Decoded rows of images and arrays, by decoder, and the reason for its choice.",
        |status| shown(status).flat_map(decoded).collect(),
    )
    .together(Together::Untold),
];

/// The jobs that are told one by one.
pub(super) fn shown(status: &Status) -> impl Iterator<Item = &Job> {
    status.jobs.iter().take(SHOWN)
}

/// Something of each of them.
fn each(status: &Status, of: fn(&Job) -> Value) -> Vec<Sample> {
    shown(status).map(|job| Sample::new([&*job.name, &job.session.to_string()], of(job))).collect()
}

/// Samples of the trainers that have reported.
fn progress(status: &Status, of: fn(&Job, &ProgressReport) -> Vec<Sample>) -> Vec<Sample> {
    let told = shown(status).filter_map(|job| Some((job, job.progress.as_ref()?)));
    told.flat_map(|(job, told)| of(job, told)).collect()
}

fn each_progress(status: &Status, of: fn(&ProgressReport) -> Value) -> Vec<Sample> {
    let told = shown(status).filter_map(|job| Some((job, job.progress.as_ref()?)));
    told.map(|(job, told)| Sample::new([&*job.name, &job.session.to_string()], of(told))).collect()
}

/// Something of those that are foreseen.
fn foreseen(status: &Status, of: fn(&forebay_store::ForeseenJob) -> Value) -> Vec<Sample> {
    let sample = |job: &Job| {
        let foreseen = status.foresight.jobs.iter().find(|foreseen| foreseen.job == job.session)?;
        Some(Sample::new([&*job.name, &job.session.to_string()], of(foreseen)))
    };
    shown(status).filter_map(sample).collect()
}

/// A job's rows: what its trainer says, by names that may be ours.
fn decoded(job: &Job) -> Vec<Sample> {
    let mut rows = BTreeMap::<(&str, &str), u64>::new();
    for (by, reasons) in &job.told.decoders {
        for (why, made) in reasons {
            let sum = rows.entry((known(by), known(why))).or_default();
            *sum = sum.saturating_add(*made);
        }
    }
    let session = job.session.to_string();
    let sample = |((by, why), rows)| Sample::new([&*job.name, &session, by, why], rows);
    rows.into_iter().map(sample).collect()
}

fn known(word: &str) -> &str {
    let is_ours = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    if word.len() <= WORD_MAX && word.bytes().all(is_ours) { word } else { OTHER }
}
