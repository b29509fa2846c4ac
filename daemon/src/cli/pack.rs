//! `forebay pack`.

use std::path::PathBuf;

use bytesize::ByteSize;
use forebay_error::Result;
use forebay_shard::pack::{Limits, pack_folder};
use indicatif::{ProgressBar, ProgressStyle};

use super::print;

/// Makes WebDataset shards: files that share a path up to the first dot of their name become one
/// sample (`cat/001.jpg` and `cat/001.cls` are the fields `jpg` and `cls` of sample `cat/001`).
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The folder to pack, with everything below it.
    folder: PathBuf,
    /// The shards' names, with a place for their number.
    #[arg(short, long, value_name = "PATTERN", default_value = "out-{:06d}.tar")]
    output: String,
    /// Samples per shard, at most.
    #[arg(long, default_value_t = Limits::default().samples)]
    samples: u64,
    /// Bytes per shard, at most.
    #[arg(long, default_value_t = ByteSize(Limits::default().bytes))]
    bytes: ByteSize,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::default_spinner());
    spinner.set_message(format!("packing {}", arguments.folder.display()));
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    let limits = Limits { samples: arguments.samples, bytes: arguments.bytes.as_u64() };
    let packed = pack_folder(&arguments.folder, &arguments.output, limits);
    spinner.finish_and_clear();
    let packed = packed?;
    for shard in &packed {
        print(&format!(
            "{}  {} samples  {}",
            shard.path.display(),
            shard.samples,
            ByteSize(shard.bytes).display().iec()
        ))?;
    }
    let samples: u64 = packed.iter().map(|shard| shard.samples).sum();
    print(&format!("{} shards, {samples} samples", packed.len()))
}
