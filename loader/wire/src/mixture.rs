//! Data sets that a job mixes, and their shares.

use serde::{Deserialize, Serialize};

/// Data sets of a job, and their shares.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mixture {
    /// The data sets; empty for a job of a single one.
    pub streams: Vec<Stream>,
    /// Weights of scheduled streams, from sample 0 of the job on, in ascending order.
    pub phases: Vec<Phase>,
}

impl Mixture {
    /// True for a job of a single data set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }
}

/// Weights of a mixture's streams for a part of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// First sample of the job that they hold for, over all ranks and epochs. The phase ends where
    /// the next one begins.
    pub from: u64,
    /// Weight of each stream, relative to their sum; 0 for one that rests.
    pub weights: Vec<f64>,
    /// A steady change of the shares; `None` keeps them.
    pub glide: Option<Glide>,
}

/// A steady change of a mixture's shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Glide {
    /// Weights whose shares are reached at the end.
    pub to: Vec<f64>,
    /// Samples from the phase's start to the end; a later phase may cut it short.
    pub over: u64,
}

/// One data set of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Number of its shards: the next ones of the job's list, after those of earlier streams.
    pub shards: u32,
    /// Share of the mixture.
    pub proportion: Proportion,
}

/// A stream's share of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Proportion {
    /// Weight, relative to the sum of weights, in an epoch of `epoch_samples`.
    Weight(f64),
    /// Repetitions per epoch: 2 plays every sample twice, 0.5 half of the samples once.
    Repeat(f64),
    /// Weights of [`Mixture::phases`].
    Scheduled,
}
