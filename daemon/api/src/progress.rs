//! Progress of a job, as its trainer reports it.

use std::collections::BTreeMap;
use std::fmt;

use bytesize::ByteSize;
use forebay_histogram::Times;
use forebay_wire::message::Cause;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Progress of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressReport {
    /// Batches that its trainer took, over all epochs.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Payload bytes in them that came from a tier.
    pub tier_bytes: u64,
    /// Payload bytes in them that came while their shard did, from its origin.
    pub origin_bytes: u64,
    /// Seconds that it waited for them, by the cause.
    pub waited_seconds: BTreeMap<String, f64>,
    /// Seconds that it has waited by now for the batch to come; 0 if it does not wait.
    pub waiting_seconds: f64,
    /// Waiting time of each batch; only metrics show it.
    #[serde(skip)]
    pub waits: Times,
    /// Seconds since it last said something: a trainer that computes is silent.
    pub heard_seconds_ago: f64,
    /// Activity between its last reports; none in its first second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lately: Option<Lately>,
}

/// Activity over some seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lately {
    /// Length of the interval: ten seconds once the job is old enough; longer if its trainer takes
    /// no batches.
    pub seconds: f64,
    /// Samples a second.
    pub samples_per_second: f64,
    /// Payload bytes a second.
    pub bytes_per_second: f64,
    /// The share of the time that the trainer waited, from 0 to 1.
    pub waited_share: f64,
    /// The same by the cause, as far as it is known: of a wait it is when that is over.
    pub waited_for: BTreeMap<String, f64>,
}

/// Pairs each cause's name with its value.
pub fn by_cause(of: impl Fn(Cause) -> f64) -> impl Iterator<Item = (String, f64)> {
    Cause::ALL.into_iter().map(move |cause| (cause.name().to_owned(), of(cause)))
}

impl fmt::Display for ProgressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read {} samples in {} batches", self.samples, self.batches)?;
        if let Some(lately) = &self.lately {
            let percent = |share: f64| format!("{:.0} %", 100.0 * share);
            write!(
                f,
                ", {:.0} samples/s, {}/s; waited {} of the last {:.0} s",
                lately.samples_per_second,
                ByteSize(lately.bytes_per_second as u64).display().iec(),
                percent(lately.waited_share),
                lately.seconds,
            )?;
            let mut causes: Vec<_> = lately.waited_for.iter().collect();
            causes.retain(|(_, share)| **share >= WORTH_TELLING);
            causes.sort_by(|one, other| other.1.total_cmp(one.1));
            let causes: Vec<_> = causes
                .iter()
                .map(|(cause, share)| format!("{} {}", cause.replace('_', " "), percent(**share)))
                .collect();
            if !causes.is_empty() {
                write!(f, ": {}", causes.join(", "))?;
            }
        }
        if self.waiting_seconds > 0.0 {
            write!(f, "; waits for a batch now, {:.1} s so far", self.waiting_seconds)?;
        }
        Ok(())
    }
}

/// Waits below this share of the time are not worth a word.
const WORTH_TELLING: f64 = 0.005;
