//! Checkpoints that emulated accelerators save between their steps, and the time this takes them.
//!
//! An accelerator waits until its file is durable on the node. The upload goes on behind the next
//! steps. Each save replaces the file of the one before.

use std::time::{Duration, Instant};

use forebay_client::{CheckpointPlace, CheckpointWriter, SaveConfig};
use forebay_error::Result;
use serde::Serialize;

use super::accelerator::Played;
use crate::durations::Durations;
use crate::interrupt;

/// Bytes that are saved again and again: more than a core's cache holds, as a trainer's state is.
const PIECE: usize = 64 << 20;

/// Saves of each accelerator.
#[derive(Debug)]
pub struct Saves {
    every: u64,
    bytes: u64,
    place: CheckpointPlace,
    job: &'static str,
    piece: Vec<u8>,
}

/// Request for saves, for the report.
#[derive(Debug, Clone, Serialize)]
pub struct SavesAsked {
    /// Steps from one save to the next.
    pub every: u64,
    /// Bytes of each accelerator.
    pub bytes: u64,
    /// URL of the folder that has their files.
    pub to: String,
}

/// Cost of an epoch's saves.
#[derive(Debug, Clone, Serialize)]
pub struct EpochSaves {
    /// Saves of all accelerators.
    pub count: u64,
    /// Bytes of all saves.
    pub bytes: u64,
    /// Time for which accelerators waited until they were durable on the node.
    pub total_seconds: f64,
    /// Median of a save's time.
    pub p50_seconds: f64,
    /// Longest save.
    pub max_seconds: f64,
    /// AU_ideal if these waits are left out.
    pub au_ideal_without: f64,
}

impl Saves {
    /// Saves `asked` at a place whose URL and name do not count, as `job`.
    #[must_use]
    pub fn new(asked: &SavesAsked, place: CheckpointPlace, job: &'static str) -> Self {
        let place = CheckpointPlace { url: asked.to.clone(), ..place };
        let piece = usize::try_from(asked.bytes).map_or(PIECE, |bytes| bytes.min(PIECE));
        Self { every: asked.every, bytes: asked.bytes, place, job, piece: vec![0xA5; piece] }
    }

    /// Saves after this many counted steps, if it is time for it; returns how long that took.
    ///
    /// # Errors
    /// Those of [`CheckpointWriter`].
    pub(super) fn after(&self, steps: u64, rank: usize) -> Result<Option<Duration>> {
        if !steps.is_multiple_of(self.every) {
            return Ok(None);
        }
        let begin = Instant::now();
        let place = CheckpointPlace { name: format!("rank-{rank}"), ..self.place.clone() };
        let mut writer =
            CheckpointWriter::open(SaveConfig::drawn(place, self.bytes, true, self.job)?)?;
        let mut left = self.bytes;
        while left > 0 {
            interrupt::check()?;
            let some = usize::try_from(left).map_or(self.piece.len(), |n| n.min(self.piece.len()));
            writer.write(&self.piece[..some])?;
            left -= some as u64;
        }
        writer.finish(None)?;
        Ok(Some(begin.elapsed()))
    }
}

impl EpochSaves {
    /// Sums up those of all accelerators; none if nothing was to be saved.
    pub(super) fn of(saves: Option<&Saves>, step: Duration, played: &[Played]) -> Option<Self> {
        let bytes = saves?.bytes;
        let mut each = Durations::default();
        played.iter().for_each(|one| each.add(&one.saves));
        let saved: Duration = played.iter().map(|one| one.saved).sum();
        let walls: Duration = played.iter().map(|one| one.wall).sum();
        let steps: u64 = played.iter().map(|one| one.steps).sum();
        let without = walls.saturating_sub(saved).as_secs_f64();
        Some(Self {
            count: each.count(),
            bytes: bytes.saturating_mul(each.count()),
            total_seconds: saved.as_secs_f64(),
            p50_seconds: each.at(0.50),
            max_seconds: each.at(1.0),
            au_ideal_without: steps as f64 * step.as_secs_f64() / without,
        })
    }
}
