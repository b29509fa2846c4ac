//! Checkpoints that the emulated accelerators of `forebay bench starvation` save.

use bytesize::ByteSize;
use forebay_bench::starvation::{Saves, SavesAsked};

use super::super::{Done, Launcher, Target, checkpoint};

/// Saves between steps.
#[derive(Debug, clap::Args)]
pub(super) struct Saving {
    /// Save a checkpoint every N counted steps, and tell what it costs: the time for which
    /// accelerators wait until it is durable on this node, and AU_ideal with and without it. The
    /// upload goes on behind the steps.
    #[arg(long, value_name = "N", requires = "checkpoint_to", conflicts_with = "find_most")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// URL of a folder for it; each accelerator replaces its file `rank-N` there.
    #[arg(long, value_name = "URL", requires = "checkpoint_every")]
    checkpoint_to: Option<String>,
    /// Bytes that each accelerator saves.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    #[arg(requires = "checkpoint_every")]
    checkpoint_bytes: ByteSize,
}

fn bytes(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>()? {
        ByteSize(0) => Err("a checkpoint has at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

impl Saving {
    /// Returns the settings, if anything is to be saved.
    pub(super) fn asked(&self) -> Option<SavesAsked> {
        let (every, to) = self.checkpoint_every.zip(self.checkpoint_to.clone())?;
        Some(SavesAsked { every, bytes: self.checkpoint_bytes.as_u64(), to })
    }

    /// Returns what the accelerators save, as `job`.
    pub(super) fn saves(
        &self,
        (target, launcher): (&Target, &Launcher),
        job: &'static str,
    ) -> Done<Option<Saves>> {
        let Some(asked) = self.asked() else { return Ok(None) };
        let place = checkpoint::place(target, &asked.to, launcher)?;
        Ok(Some(Saves::new(&asked, place, job)))
    }
}
