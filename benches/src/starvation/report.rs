//! What a starvation run says, as a document and as text.

use std::fmt;

use forebay_client::WaitReport;
use serde::Serialize;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The release measured.
    pub release: &'static str,
    /// The accelerator emulated.
    pub profile: String,
    /// Samples per step.
    pub batch_size: u32,
    /// Seconds one step computes.
    pub step_seconds: f64,
    /// One entry per epoch.
    pub epochs: Vec<EpochReport>,
}

/// One epoch. Everything but `first_batch_seconds` leaves the first step out.
#[derive(Debug, Clone, Serialize)]
pub struct EpochReport {
    /// Its number.
    pub epoch: u64,
    /// Whether its shards had to be fetched.
    pub temperature: Temperature,
    /// Steps counted.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their wall time.
    pub wall_seconds: f64,
    /// Steps times nominal step time, divided by wall time.
    pub au_ideal: f64,
    /// From asking for the epoch to its first batch.
    pub first_batch_seconds: f64,
    /// Samples per second of wall time.
    pub samples_per_second: f64,
    /// Payload bytes per second of wall time.
    pub bytes_per_second: f64,
    /// CPU of trainer and daemon together per sample, in milliseconds.
    pub cpu_ms_per_sample: f64,
    /// Bytes the daemon fetched from origins during the whole epoch, for whatever job.
    pub fetched_bytes: u64,
    /// Payload read from the tier.
    pub tier_bytes: u64,
    /// Payload taken from shards still arriving from their origin.
    pub origin_bytes: u64,
    /// The consumer's waits.
    pub wait: WaitReport,
}

/// Whether an epoch's shards had to be fetched from their origin.
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "forebay {}  {}  batch {}  step {:.1} ms",
            self.release,
            self.profile,
            self.batch_size,
            self.step_seconds * 1e3
        )?;
        self.epochs.iter().try_for_each(|epoch| write!(f, "\n{epoch}"))
    }
}

impl fmt::Display for EpochReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = &self.wait;
        writeln!(
            f,
            "epoch {} ({})  AU_ideal {:.1} %  {:.0} samples/s  {:.3} GB/s  CPU {:.2} ms/sample",
            self.epoch,
            self.temperature,
            self.au_ideal * 100.0,
            self.samples_per_second,
            self.bytes_per_second / 1e9,
            self.cpu_ms_per_sample,
        )?;
        writeln!(
            f,
            "  first batch {:.3} s; {} steps in {:.2} s; waited {:.2} s; fetched {:.3} GB",
            self.first_batch_seconds,
            self.steps,
            self.wall_seconds,
            wait.total_seconds,
            self.fetched_bytes as f64 / 1e9
        )?;
        writeln!(
            f,
            "  wait per step: p50 {:.1} ms  p95 {:.1} ms  p99 {:.1} ms  max {:.1} ms",
            wait.p50_seconds * 1e3,
            wait.p95_seconds * 1e3,
            wait.p99_seconds * 1e3,
            wait.max_seconds * 1e3
        )?;
        write!(f, "  wait by cause:")?;
        for (cause, seconds) in &wait.by_cause {
            let share = if wait.total_seconds > 0.0 { seconds / wait.total_seconds } else { 0.0 };
            write!(f, "  {cause} {seconds:.2} s ({:.0} %)", share * 100.0)?;
        }
        writeln!(f)
    }
}
