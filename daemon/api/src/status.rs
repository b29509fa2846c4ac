//! Status of a daemon: one document, as JSON for scripts and as text for people.

mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_checkpoints::CheckpointsReport;
use forebay_error::Error;
use forebay_histogram::Times;
use forebay_peers::ClusterReport;
use forebay_source::{Billed, FileCounts, LinkReport, MountReport};
use forebay_store::{
    BillKey, Counters, DatasetTraffic, Fills, ForecastReport, Holdings, ThroughCounters, TierReport,
};
use forebay_uring::PageReport;
use forebay_wire::message::{
    self, BAD_NAMED, Bad, BadSample, DECODED_NAMED, Decoded, SLOWEST_NAMED,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::configuration::Configuration;
use crate::costs::ByCause;
use crate::gpus::GpuReport;
use crate::progress::ProgressReport;
use crate::warm::Warming;
pub use text::{JobLines, TierLines, cut, is_kept_by_use, why_not, word};

/// A daemon's state.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Release.
    pub release: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// The configuration in force; none without a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// All tiers together.
    pub cache: Cache,
    /// Each tier, the fastest first.
    pub tiers: Vec<TierReport>,
    /// Endpoints that shards come from over the network.
    pub sources: Vec<LinkReport>,
    /// Mounts that shards are read from, and what reads there.
    pub mounts: Vec<MountReport>,
    /// Reads of files that clients open, by all of them together, ended ones included.
    pub client_files: FileCounts,
    /// Shards on their way in.
    pub fills: Fills,
    /// Expected reads of jobs, and the fetches based on them.
    pub foresight: ForecastReport,
    /// Memory for bytes on their way in.
    pub frames: Memory,
    /// Bytes of all slabs, and the limit.
    pub slab_bytes: usize,
    /// Bytes all slabs together may have.
    pub slab_limit_bytes: usize,
    /// The node's part in its cluster; none if it is in no cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterReport>,
    /// Checkpoints that files of this node belong to.
    pub checkpoints: CheckpointsReport,
    /// Jobs connected now.
    pub jobs: Vec<Job>,
    /// Activity of the node's GPUs; none without NVIDIA's driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuReport>,
    /// Warm-ups that run, and the last that ended.
    pub warm_ups: Vec<Warming>,
    /// The audit log, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditReport>,
    /// Bytes fetched and written, by owner; only metrics and `forebay cost` show it.
    #[serde(skip)]
    pub bills: Vec<(BillKey, Billed)>,
    /// Waiting time for samples that had not arrived; only metrics show it.
    #[serde(skip)]
    pub shard_waits: Times,
    /// Fetch time of shards; only metrics show it.
    #[serde(skip)]
    pub shard_fetches: Times,
    /// Waiting time of trainers since the daemon started, ended ones included; only metrics show
    /// it.
    #[serde(skip)]
    pub waited_ns: ByCause,
}

/// A piece of pinned memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// Size.
    pub bytes: usize,
    /// Bytes of it in use.
    pub in_use_bytes: usize,
    /// Bytes of copies of small shards, which are dropped where the memory is needed.
    pub copies_bytes: usize,
    /// Bytes of it by page size: the rungs of the huge-page ladder.
    pub pages: PageReport,
}

/// All tiers together.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = AllTiers)]
pub struct Cache {
    /// Counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// Holdings of each data set, and of each tenant.
    #[serde(flatten)]
    pub holdings: Holdings,
    /// Reads past all tiers, part of the counts above.
    pub past: ThroughCounters,
    /// Bytes for batches of each data set that no tier had a part in.
    pub past_tiers: Vec<DatasetTraffic>,
}

/// A job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Number.
    pub session: u64,
    /// Name.
    pub name: String,
    /// The tenant that is charged for what it brings in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Process id of its trainer, if this daemon's namespace has one for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Bytes of its slab.
    pub slab_bytes: usize,
    /// Batches the slab was sized for; below `prefetch` where memory is short.
    pub slab_batches: u32,
    /// Bytes of the slab in slots.
    pub leased_bytes: usize,
    /// Slots with the trainer.
    pub lent_slots: usize,
    /// Shards that turned out wrong after the job had samples of them.
    pub wrong_shards: u64,
    /// Way in which it reads its shards and the reason, if its trainer has their member index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<String>,
    /// Progress, as its trainer reports it; none before its first second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressReport>,
    /// Reason of the trainer's present wait, if it waits and the daemon holds it up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited: Option<Awaited>,
    /// Trainer's report.
    #[serde(flatten)]
    pub told: Told,
}

/// Object of a job's present wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Awaited {
    /// `shard`, `tier_read`, `slot` (which the trainer returns), `slab` (memory of other jobs) or
    /// `queue` (a shard that another rank holds).
    pub waited_for: String,
    /// Seconds that the wait has lasted.
    pub seconds: u64,
    /// The shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Endpoint of the shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Last failure met while waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl Awaited {
    /// Returns the places of a session's description of its wait.
    #[must_use]
    pub fn of(wait: &Error) -> Self {
        let place = |name| wait.place(name).map(str::to_owned);
        Self {
            waited_for: place("waited_for").unwrap_or_default(),
            seconds: place("waited_s").and_then(|seconds| seconds.parse().ok()).unwrap_or(0),
            url: place("url"),
            endpoint: place("endpoint"),
            last_error: place("last_error"),
        }
    }
}

/// Facts only a trainer knows about its job. The daemon trusts none of it, so the size is bounded
/// here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Told {
    /// Skipped samples.
    pub bad_samples: BadSamples,
    /// Rows of images and arrays by who made them, and of those by why.
    pub decoders: BTreeMap<String, BTreeMap<String, u64>>,
    /// Samples that took longest to decode or in user code, the slowest first.
    pub slowest: Vec<SlowSample>,
}

/// A sample that took long to decode, or to be treated by user code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SlowSample {
    /// Key.
    pub key: String,
    /// Shard.
    pub url: String,
    /// The work: `decode`, `select`, `map` or `transform`.
    pub stage: String,
    /// The field, unless the work treats whole samples.
    pub field: Option<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Samples a trainer reports as unusable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BadSamples {
    /// Counts by kind of error.
    pub counts: BTreeMap<String, u64>,
    /// The last of them, the latest at the end.
    pub last: Vec<Named>,
}

/// A sample or shard that a trainer could not use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = BadSample)]
pub struct Named {
    /// The kind of error.
    pub kind: String,
    /// Shard.
    pub url: Option<String>,
    /// Key.
    pub key: Option<String>,
    /// The field that failed.
    pub field: Option<String>,
    /// Offset in the shard, in bytes.
    pub offset: Option<u64>,
    /// Error and place, for people.
    pub message: String,
}

impl BadSamples {
    /// The bad samples that a trainer reported, bounded.
    #[must_use]
    pub fn told(bad: Bad) -> Self {
        let mut counts = BTreeMap::<_, u64>::new();
        for (kind, count) in bad.counts {
            let of = counts.entry(kind.name().to_owned()).or_default();
            *of = of.saturating_add(count);
        }
        let skipped = bad.last.len().saturating_sub(BAD_NAMED);
        Self { counts, last: bad.last.into_iter().skip(skipped).map(Named::from).collect() }
    }
}

impl From<BadSample> for Named {
    fn from(bad: BadSample) -> Self {
        Self {
            kind: bad.kind.name().to_owned(),
            url: bad.url.map(|url| cut(&url)),
            key: bad.key.map(|key| cut(&key)),
            field: bad.field.map(|field| cut(&field)),
            offset: bad.offset,
            message: cut(&bad.message),
        }
    }
}

/// Returns the decoders of a job's rows, as its trainer reports them.
pub fn decoders(told: Vec<Decoded>) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut decoders = BTreeMap::<_, BTreeMap<_, u64>>::new();
    for Decoded { by, why, rows } in told.into_iter().take(DECODED_NAMED) {
        let of = decoders.entry(cut(&by)).or_default().entry(cut(&why)).or_default();
        *of = of.saturating_add(rows);
    }
    decoders
}

/// Returns the slowest samples of a job, as its trainer reports them.
#[must_use]
pub fn slowest(told: Vec<message::SlowSample>) -> Vec<SlowSample> {
    // JSON has no other numbers.
    let told = told.into_iter().filter(|slow| slow.seconds.is_finite());
    let named = told.take(SLOWEST_NAMED).map(|slow| SlowSample {
        key: cut(&slow.key),
        url: cut(&slow.url),
        stage: cut(&slow.stage),
        field: slow.field.map(|field| cut(&field)),
        seconds: slow.seconds,
    });
    named.collect()
}

/// State of the log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditReport {
    /// Path of the log.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Lines written since the start.
    pub written: u64,
    /// Lines that were not, for whatever reason.
    pub lost: u64,
    /// Reason the log cannot be written now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::text::TEXT_MAX;
    use super::*;

    #[test]
    fn slow_samples_of_a_trainer_are_bounded_and_named() {
        let one = |number: usize| message::SlowSample {
            key: format!("sample {number}"),
            url: "\x1b[2J".repeat(1000),
            stage: "map".to_owned(),
            field: None,
            seconds: 0.002,
        };
        let none = message::SlowSample { seconds: f64::NAN, ..one(0) };
        assert_eq!(slowest(vec![none]), []);
        let told = slowest((0..SLOWEST_NAMED + 5).map(one).collect());
        assert_eq!(told.len(), SLOWEST_NAMED);
        assert!(told.iter().all(|slow| slow.url.chars().count() == TEXT_MAX));
        let url = "s3://b/0.tar".to_owned();
        let job = Job {
            told: Told { slowest: vec![SlowSample { url, ..told[0].clone() }], ..Told::default() },
            ..Job::default()
        };
        let text = JobLines(&job).to_string();
        assert!(text.contains("map took 2 ms for sample 0 in s3://b/0.tar"), "{text}");
    }

    #[test]
    fn decoder_reports_of_a_trainer_are_bounded() {
        let one = |by: String, rows| Decoded { by, why: "\x1b[2J".repeat(1000), rows };
        let many = (0..DECODED_NAMED + 5).map(|number| one(format!("decoder {number}"), 1));
        let told = decoders(many.collect());
        assert_eq!(told.len(), DECODED_NAMED);
        let (why, rows) = told["decoder 0"].iter().next().unwrap();
        assert!(why.starts_with('\u{fffd}') && why.chars().count() == TEXT_MAX, "{why}");
        assert_eq!(*rows, 1);
        let twice = decoders(vec![one("cpu".to_owned(), u64::MAX), one("cpu".to_owned(), 1)]);
        assert_eq!(twice["cpu"].values().collect::<Vec<_>>(), [&u64::MAX]);
    }
}
