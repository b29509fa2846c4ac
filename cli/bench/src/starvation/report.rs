//! Report of a starvation run, as a document and as text.

pub(super) mod text;

use std::fmt;
use std::time::Duration;

use forebay_client::WaitReport;
use forebay_error::{Doing, Result};
use forebay_wire::message::{Cause, LeftOut, SlowSample};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::accelerator::{Played, STALL_SHARE};
use super::differential::Differential;
use super::raw::Raw;
use super::saves::{EpochSaves, SavesAsked};
use super::search::Held;
use crate::durations::Durations;
use crate::machine::Machine;
use crate::tier_reads::TierReads;

/// The share of a wait within which its causes sum to it.
const BOOKED_WITHIN: f64 = 0.01;

/// Difference between the clock of the waiting thread and the loader's: a call and its return on a
/// thread that just woke.
const CALL: Duration = Duration::from_micros(50);

/// Counted steps to each batch that is kept ready ahead, below which a report warns: those batches
/// are a tenth then.
const STEPS_TO_EACH_AHEAD: u64 = 10;

/// Slowest samples that a report names: a line.
const SLOWEST: usize = 3;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The release measured.
    pub release: &'static str,
    /// The workload.
    pub profile: String,
    /// Samples per step.
    pub batch_size: u32,
    /// Seconds one step computes.
    pub step_seconds: f64,
    /// Other settings.
    pub configuration: Configuration,
    /// SHA-256 of `[profile, batch_size, step_seconds, configuration]` as compact JSON whose names
    /// are sorted: runs that have it in common are comparable on one machine, and whoever has the
    /// document can work it out.
    pub configuration_sha256: String,
    /// Machine of the measurement.
    pub machine: Machine,
    /// One entry per epoch.
    pub epochs: Vec<EpochReport>,
    /// Fetch stalls and prep stalls, if they were told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differential: Option<Differential>,
    /// Number of accelerators the node feeds, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Results of other loaders on the same work, if requested, as `cli/bench/contest` reports
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contest: Option<serde_json::Value>,
}

/// Settings of the benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct Configuration {
    /// The shards, as they were named: a path is not made absolute, and a pattern says the same on
    /// every machine.
    pub urls: Vec<String>,
    /// Number of shards, without those that no step reaches.
    pub shards: usize,
    /// Keys that match and that no URL can name.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub left_out: LeftOut,
    /// Emulated accelerators.
    pub accelerators: u32,
    /// True if images were decoded.
    pub decode: bool,
    /// Decode threads of each accelerator.
    pub threads: usize,
    /// Shards mixed at once; 0: none.
    pub window: u32,
    /// Batches kept ready.
    pub prefetch: u32,
    /// Steps of an epoch at most, the first included.
    pub steps: Option<u64>,
    /// Epochs.
    pub epochs: u64,
    /// True if stalls were separated by difference.
    pub differential: bool,
    /// True if batches were traced.
    pub traced: bool,
    /// Settings of the search for the number of accelerators, if any.
    pub search: Option<Search>,
    /// Request to other loaders, if any.
    pub contest: Option<Contested>,
    /// Saves between the steps, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves: Option<SavesAsked>,
}

/// Settings of the search for the number of accelerators.
#[derive(Debug, Clone, Serialize)]
pub struct Search {
    /// The AU_ideal at which one counts as fed.
    pub target_au: f64,
    /// Seconds of a trial.
    pub trial_seconds: f64,
}

/// Request to other loaders.
#[derive(Debug, Clone, Serialize)]
pub struct Contested {
    /// Loaders.
    pub rivals: Vec<String>,
    /// The model that they train, if it is no emulated accelerator.
    pub model: Option<String>,
    /// Runs of each.
    pub rounds: u32,
    /// Seconds of a run.
    pub seconds: f64,
    /// Memory limit of each.
    pub memory_bytes: Option<u64>,
}

/// One epoch, of all accelerators together. The first step of each is left out of everything but
/// `first_batch_seconds`, `cpu_ms_per_sample`, `fetched_bytes` and `by_tier`.
#[derive(Debug, Clone, Serialize)]
pub struct EpochReport {
    /// Number.
    pub epoch: u64,
    /// Temperature of its shards.
    pub temperature: Temperature,
    /// Steps counted, of all accelerators.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Wall time, the mean of the accelerators'.
    pub wall_seconds: f64,
    /// Steps times nominal step time, divided by the accelerators' wall times.
    pub au_ideal: f64,
    /// Measured computing time, oversleeping included, divided by the same.
    pub au_measured: f64,
    /// DLIO's formula ([`AcceleratorReport::au_dlio`]), the mean of the accelerators', as DLIO
    /// tells several ranks.
    pub au_dlio: f64,
    /// From asking for the epoch to its first batch, of the accelerator that had to wait longest.
    pub first_batch_seconds: f64,
    /// Samples per second of wall time.
    pub samples_per_second: f64,
    /// Payload bytes per second of wall time.
    pub bytes_per_second: f64,
    /// CPU of trainer and daemon together per sample, in milliseconds: of the whole epoch, for what
    /// was made ahead during the first step would else be lost.
    pub cpu_ms_per_sample: f64,
    /// Bytes the daemon fetched from origins during the whole epoch, for whatever job.
    pub fetched_bytes: u64,
    /// Payload that the whole epoch delivered.
    pub delivered_bytes: u64,
    /// Payload read from the tier.
    pub tier_bytes: u64,
    /// Payload taken from shards still arriving from their origin.
    pub origin_bytes: u64,
    /// Bytes read from each of the daemon's tiers during the whole epoch, for whatever job.
    pub by_tier: TierReads,
    /// The consumers' waits.
    pub wait: EpochWaits,
    /// Samples that took longest to decode, the slowest first.
    pub slowest: Vec<SlowSample>,
    /// Saves between the steps, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves: Option<EpochSaves>,
    /// One entry for each accelerator.
    pub accelerators: Vec<AcceleratorReport>,
}

/// Waits of an epoch in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct EpochWaits {
    /// Waits by cause over all accelerators, one a step.
    #[serde(flatten)]
    pub summary: WaitReport,
    /// Sum of the waits by the clock of the waiting threads.
    pub measured_seconds: f64,
    /// Waits longer than this share of a nominal step are stalls.
    pub stall_share_of_step: f64,
    /// Number of stalls.
    pub stalls: u64,
}

/// One accelerator's part of an epoch.
#[derive(Debug, Clone, Serialize)]
pub struct AcceleratorReport {
    /// Rank.
    pub rank: usize,
    /// AU_ideal of the rank.
    pub au_ideal: f64,
    /// AU of the rank by DLIO's formula (`statscounter.py` of dlio_benchmark 2.0.0): steps but the
    /// first times nominal step time, over `whole_seconds` less `first_step_seconds`.
    pub au_dlio: f64,
    /// Steps counted.
    pub steps: u64,
    /// Their wall time.
    pub wall_seconds: f64,
    /// From asking for the epoch to its first batch.
    pub first_batch_seconds: f64,
    /// From asking for the epoch to its first step's end.
    pub first_step_seconds: f64,
    /// From asking for the epoch to its last step's end.
    pub whole_seconds: f64,
    /// Single steps.
    pub raw: Raw,
}

/// Temperature of an epoch's shards: fetched from their origin or cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Temperature {
    /// At least half as many bytes were fetched as were delivered.
    Cold,
    /// Fewer were.
    Mixed,
    /// None were.
    Warm,
}

impl Temperature {
    /// By the bytes fetched from origins and the payload delivered.
    #[must_use]
    pub fn of(fetched_bytes: u64, payload: u64) -> Self {
        match fetched_bytes {
            0 => Self::Warm,
            fetched if fetched >= payload / 2 => Self::Cold,
            _ => Self::Mixed,
        }
    }
}

impl fmt::Display for Temperature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Mixed => "mixed",
            Self::Warm => "warm",
        })
    }
}

impl Report {
    /// A run of `profile` that was asked for in this way, without results.
    ///
    /// # Errors
    /// The error of reading the machine.
    pub fn of(
        (profile, batch_size, step_seconds): (&str, u32, f64),
        configuration: Configuration,
    ) -> Result<Self> {
        let configuration_sha256 = sha256(&[
            serde_json::json!(profile),
            serde_json::json!(batch_size),
            serde_json::json!(step_seconds),
            serde_json::json!(configuration),
        ]);
        Ok(Self {
            release: env!("CARGO_PKG_VERSION"),
            profile: profile.to_owned(),
            batch_size,
            step_seconds,
            configuration,
            configuration_sha256,
            machine: Machine::this()?,
            epochs: Vec::new(),
            differential: None,
            held: None,
            contest: None,
        })
    }

    /// The counted steps of the shortest epoch's accelerators, if those are so few that batches
    /// made ahead during the first step show in its figures.
    #[must_use]
    pub fn few_steps(&self) -> Option<u64> {
        let steps = self.epochs.iter().flat_map(|epoch| &epoch.accelerators).map(|one| one.steps);
        let enough = STEPS_TO_EACH_AHEAD * u64::from(self.configuration.prefetch);
        steps.min().filter(|steps| *steps < enough)
    }

    /// The document as JSON.
    ///
    /// # Errors
    /// `Invalid` if a figure is no number.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).doing("write the report")
    }
}

/// Hashes values in this order. Their names are sorted, as `serde_json` keeps those of every
/// object.
fn sha256(of: &[serde_json::Value]) -> String {
    let text = serde_json::json!(of).to_string();
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cost of an epoch on the node, from before its first step to its end.
pub(super) struct Cost {
    /// CPU of trainer and daemon.
    pub(super) cpu_seconds: f64,
    /// Bytes from origins, for all jobs.
    pub(super) fetched_bytes: u64,
    pub(super) by_tier: TierReads,
}

impl EpochReport {
    pub(super) fn of(
        epoch: u64,
        step: Duration,
        played: &[Played],
        Cost { cpu_seconds, fetched_bytes, by_tier }: Cost,
    ) -> Self {
        let sum = |of: fn(&Played) -> u64| played.iter().map(of).sum::<u64>();
        let time = |of: fn(&Played) -> Duration| played.iter().map(of).sum::<Duration>();
        let (steps, samples) = (sum(|one| one.steps), sum(|one| one.stats.samples));
        let (tier, origin) = (sum(|one| one.stats.tier_bytes), sum(|one| one.stats.origin_bytes));
        let walls = time(|one| one.wall).as_secs_f64();
        let wall = walls / played.len().max(1) as f64;
        let first = played.iter().map(|one| one.first_batch).max().unwrap_or_default();
        let accelerators = AcceleratorReport::of_all(step, played);
        let dlio = accelerators.iter().map(|one| one.au_dlio).sum::<f64>();
        Self {
            epoch,
            temperature: Temperature::of(fetched_bytes, sum(|one| one.whole.bytes)),
            steps,
            samples,
            wall_seconds: wall,
            au_ideal: steps as f64 * step.as_secs_f64() / walls,
            au_measured: time(|one| one.computed).as_secs_f64() / walls,
            au_dlio: dlio / played.len().max(1) as f64,
            first_batch_seconds: first.as_secs_f64(),
            samples_per_second: samples as f64 / wall,
            bytes_per_second: (tier + origin) as f64 / wall,
            cpu_ms_per_sample: cpu_seconds * 1000.0 / sum(|one| one.whole.samples).max(1) as f64,
            fetched_bytes,
            delivered_bytes: sum(|one| one.whole.bytes),
            tier_bytes: tier,
            origin_bytes: origin,
            by_tier,
            wait: EpochWaits::of(played),
            slowest: slowest(played),
            saves: None,
            accelerators,
        }
    }

    /// Seconds of an accelerator's wall time for each of its steps.
    pub(super) fn step_wall(&self) -> f64 {
        self.wall_seconds * self.accelerators.len() as f64 / self.steps.max(1) as f64
    }
}

/// Returns the slowest samples of all accelerators.
fn slowest(played: &[Played]) -> Vec<SlowSample> {
    let mut all: Vec<_> = played.iter().flat_map(|one| one.stats.slowest.iter().cloned()).collect();
    all.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    all.truncate(SLOWEST);
    all
}

impl EpochWaits {
    fn of(played: &[Played]) -> Self {
        let mut each = Durations::default();
        let mut by_cause = Cause::ALL.map(|cause| (cause.name(), 0.0));
        for one in played {
            each.add(&one.each);
            for (sum, (_, seconds)) in by_cause.iter_mut().zip(&one.stats.wait.by_cause) {
                sum.1 += seconds;
            }
        }
        Self {
            summary: WaitReport {
                count: each.count(),
                total_seconds: by_cause.iter().map(|(_, seconds)| seconds).sum(),
                by_cause: by_cause.to_vec(),
                p50_seconds: each.at(0.50),
                p95_seconds: each.at(0.95),
                p99_seconds: each.at(0.99),
                max_seconds: each.at(1.0),
            },
            measured_seconds: played.iter().map(|one| one.waited).sum::<Duration>().as_secs_f64(),
            stall_share_of_step: STALL_SHARE,
            stalls: played.iter().map(|one| one.stalls).sum(),
        }
    }

    /// Returns the waiting time without a cause, if that exceeds the calls themselves ([`CALL`])
    /// and a hundredth: figures by cause are then not reliable.
    #[must_use]
    pub fn unbooked_seconds(&self) -> Option<f64> {
        let unbooked = (self.measured_seconds - self.summary.total_seconds).abs();
        let allowed =
            BOOKED_WITHIN * self.measured_seconds + CALL.as_secs_f64() * self.summary.count as f64;
        (unbooked > allowed).then_some(unbooked)
    }

    /// Seconds booked to a cause.
    pub(super) fn of_cause(&self, name: &str) -> f64 {
        let of_cause = self.summary.by_cause.iter().filter(|(cause, _)| *cause == name);
        of_cause.map(|(_, seconds)| seconds).sum()
    }
}

impl AcceleratorReport {
    fn of_all(step: Duration, played: &[Played]) -> Vec<Self> {
        let report = |(rank, one): (usize, &Played)| Self {
            rank,
            au_ideal: one.steps as f64 * step.as_secs_f64() / one.wall.as_secs_f64(),
            au_dlio: one.steps as f64 * step.as_secs_f64()
                / (one.whole.wall - one.whole.first_step).as_secs_f64(),
            steps: one.steps,
            wall_seconds: one.wall.as_secs_f64(),
            first_batch_seconds: one.first_batch.as_secs_f64(),
            first_step_seconds: one.whole.first_step.as_secs_f64(),
            whole_seconds: one.whole.wall.as_secs_f64(),
            raw: one.raw.clone(),
        };
        played.iter().enumerate().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::accelerator::Whole;
    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    /// Ten steps behind the first, of 64 samples each.
    fn played(wall: u64, computed: u64, first_step: u64) -> Played {
        let ms = Duration::from_millis;
        Played {
            first_batch: ms(first_step) - STEP,
            steps: 10,
            wall: ms(wall),
            computed: ms(computed),
            waited: ms(wall - computed),
            each: Durations::default(),
            stalls: 0,
            saved: Duration::ZERO,
            saves: Durations::default(),
            raw: Raw::default(),
            stats: forebay_client::Stats { samples: 640, ..forebay_client::Stats::default() },
            whole: Whole {
                first_step: ms(first_step),
                // A little lies between the first step's end and what is counted from then on.
                wall: ms(first_step + 50 + wall),
                samples: 704,
                bytes: 0,
            },
        }
    }

    /// The document holds everything that its hash covers; a change of any part changes the hash.
    #[test]
    fn configuration_hash_covers_every_setting() {
        let configuration = || Configuration {
            urls: vec!["data/{0..9}.tar".to_owned(), "größe.tar".to_owned()],
            shards: 11,
            left_out: LeftOut::default(),
            accelerators: 1,
            decode: true,
            threads: 2,
            window: 0,
            prefetch: 4,
            steps: None,
            epochs: 2,
            differential: false,
            traced: false,
            search: Some(Search { target_au: 0.9, trial_seconds: 10.0 }),
            contest: None,
            saves: None,
        };
        let asked = ("resnet50-h100", 400, 0.224);
        let hash = |asked, configuration| {
            let report = Report::of(asked, configuration).unwrap();
            let told: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
            let parts = ["profile", "batch_size", "step_seconds", "configuration"];
            let hash = sha256(&parts.map(|part| told[part].clone()));
            assert_eq!(told["configuration_sha256"], hash);
            hash
        };
        let one = hash(asked, configuration());
        assert_eq!(one, hash(asked, configuration()));
        // By another program: json.dumps(…, sort_keys=True, separators=(",", ":"),
        // ensure_ascii=False).
        assert_eq!(one, "1e1baf56553a242a3f0676c1b97831b4a4cc29098f1b2f4d7da5af808af2d096");
        let contested = Contested {
            rivals: vec!["spdl".to_owned()],
            model: None,
            rounds: 5,
            seconds: 60.0,
            memory_bytes: None,
        };
        let urls = vec!["data/{0..9}.tar".to_owned()];
        let saves = SavesAsked { every: 10, bytes: 1 << 30, to: "s3://runs/bench".to_owned() };
        let others = [
            hash(("resnet50-a100", 400, 0.224), configuration()),
            hash(("resnet50-h100", 401, 0.224), configuration()),
            hash(("resnet50-h100", 400, 0.225), configuration()),
            hash(asked, Configuration { urls, ..configuration() }),
            hash(asked, Configuration { shards: 10, ..configuration() }),
            hash(
                asked,
                Configuration {
                    left_out: LeftOut { count: 1, keys: vec!["a//b.tar".to_owned()] },
                    ..configuration()
                },
            ),
            hash(asked, Configuration { accelerators: 2, ..configuration() }),
            hash(asked, Configuration { decode: false, ..configuration() }),
            hash(asked, Configuration { threads: 3, ..configuration() }),
            hash(asked, Configuration { window: 1, ..configuration() }),
            hash(asked, Configuration { prefetch: 5, ..configuration() }),
            hash(asked, Configuration { steps: Some(9), ..configuration() }),
            hash(asked, Configuration { epochs: 3, ..configuration() }),
            hash(asked, Configuration { differential: true, ..configuration() }),
            hash(asked, Configuration { traced: true, ..configuration() }),
            hash(asked, Configuration { search: None, ..configuration() }),
            hash(asked, Configuration { contest: Some(contested), ..configuration() }),
            hash(asked, Configuration { saves: Some(saves), ..configuration() }),
        ];
        let mut all = others.to_vec();
        all.push(one);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), others.len() + 1);
    }

    /// DLIO counts configured time, not measured, and reports the mean of several ranks.
    #[test]
    fn each_utilisation_follows_its_definition() {
        let played = [played(1950, 1300, 400), played(1200, 1100, 900)];
        let cost = Cost { cpu_seconds: 1.408, fetched_bytes: 0, by_tier: TierReads::default() };
        let epoch = EpochReport::of(0, STEP, &played, cost);
        let is = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}");
        is(epoch.au_ideal, 2.0 / 3.15);
        is(epoch.au_measured, 2.4 / 3.15);
        is(epoch.accelerators[0].au_dlio, 1.0 / 2.0);
        is(epoch.accelerators[1].au_dlio, 1.0 / 1.25);
        is(epoch.au_dlio, 0.65);
        // All of the CPU over all of the samples: those of the first step were made of it, too.
        is(epoch.cpu_ms_per_sample, 1.0);
        assert_eq!(epoch.samples, 1280);
    }

    /// The part of a wait charged to no cause is reported; a call's own time does not count.
    #[test]
    fn wait_without_a_cause_is_reported() {
        let mut played = played(1950, 1300, 400);
        let booked = |ms: u64| vec![("origin", Duration::from_millis(ms).as_secs_f64())];
        played.each.record(played.waited);
        let unbooked =
            |played: &Played| EpochWaits::of(std::slice::from_ref(played)).unbooked_seconds();
        // Causes in the order of all of them: the origin's is the first.
        played.stats.wait.by_cause = booked(650);
        assert_eq!(unbooked(&played), None);
        played.stats.wait.by_cause = booked(645);
        assert_eq!(unbooked(&played), None);
        played.stats.wait.by_cause = booked(640);
        assert!((unbooked(&played).unwrap() - 0.010).abs() < 1e-9);
    }
}
