//! An epoch's steps one by one, for whoever wants to look behind the figures.
//!
//! Bounded. What is left out is counted.

use std::time::Duration;

use forebay_wire::message::Cause;
use serde::{Serialize, Serializer};

/// Steps that are kept one by one: a minute of the shortest steps of MLPerf Storage (3.5 ms). More
/// make a document that nothing opens any more.
pub const RAW_STEPS_MAX: usize = 20_000;

/// One step's wait.
pub(super) struct Moment {
    /// Since the first step was over.
    pub(super) at: Duration,
    pub(super) wait: Duration,
    /// Batches that were ready when this one was asked for.
    pub(super) ready: usize,
    /// The wait, cause by cause.
    pub(super) waited_ns: [u64; Cause::ALL.len()],
}

/// Steps, column by column.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Raw {
    /// Arrival of each batch, in seconds since the end of the first step.
    pub at_seconds: Vec<f64>,
    /// Wait for each batch, in seconds.
    pub wait_seconds: Vec<f64>,
    /// Batches that were ready when it was asked for.
    pub ready: Vec<usize>,
    /// The wait cause by cause, in seconds, as [`Cause::ALL`] orders them; an object in JSON.
    #[serde(serialize_with = "as_object")]
    pub by_cause: [Vec<f64>; Cause::ALL.len()],
    /// Steps that are not here any more.
    pub left_out: u64,
}

fn as_object<S: Serializer>(
    columns: &[Vec<f64>; Cause::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Cause::ALL.iter().map(|cause| cause.name()).zip(columns))
}

impl Raw {
    pub(super) fn push(&mut self, moment: &Moment) {
        if self.at_seconds.len() >= RAW_STEPS_MAX {
            self.left_out += 1;
            return;
        }
        self.at_seconds.push(moment.at.as_secs_f64());
        self.wait_seconds.push(moment.wait.as_secs_f64());
        self.ready.push(moment.ready);
        for (column, ns) in self.by_cause.iter_mut().zip(moment.waited_ns) {
            column.push(Duration::from_nanos(ns).as_secs_f64());
        }
    }
}
