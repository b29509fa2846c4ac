//! `forebay pack`.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use forebay_error::Result;
use forebay_shard::pack::{Limits, Packed, check_pattern, pack_folder, plan_folder};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{Done, print, print_json};

/// Make WebDataset shards from a folder of files.
///
/// Files that share a path up to the first dot of their name become one sample: `cat/001.jpg` and
/// `cat/001.cls` are the fields `jpg` and `cls` of sample `cat/001`. Samples are sorted by key and
/// never split; a file that fits no sample is an error, and no file is overwritten.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The folder to pack, with everything below it.
    folder: PathBuf,
    /// The shards' names, with a place for their number.
    #[arg(short, long, value_name = "PATTERN", default_value = "out-{:06d}.tar")]
    #[arg(value_parser = pattern)]
    output: String,
    /// Samples per shard, at most.
    #[arg(long, default_value_t = Limits::default().samples)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Bytes per shard, at most.
    #[arg(long, default_value_t = ByteSize(Limits::default().bytes), value_parser = size)]
    bytes: ByteSize,
    /// Say what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was made, or would be.
#[derive(Serialize)]
struct Document<'a> {
    dry_run: bool,
    samples: u64,
    bytes: u64,
    shards: Vec<Shard<'a>>,
}

#[derive(Serialize)]
struct Shard<'a> {
    path: &'a Path,
    samples: u64,
    bytes: u64,
}

impl<'a> From<&'a Packed> for Shard<'a> {
    fn from(packed: &'a Packed) -> Self {
        Self { path: &packed.path, samples: packed.samples, bytes: packed.bytes }
    }
}

fn pattern(text: &str) -> Result<String> {
    check_pattern(text).map(|()| text.to_owned())
}

fn size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>()? {
        ByteSize(0) => Err("a shard needs room for one sample".to_owned()),
        size => Ok(size),
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::default_spinner());
    spinner.set_message(format!("packing {}", arguments.folder.display()));
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    let limits = Limits { samples: arguments.samples, bytes: arguments.bytes.as_u64() };
    let pack = if arguments.dry_run { plan_folder } else { pack_folder };
    let packed = pack(&arguments.folder, &arguments.output, limits);
    spinner.finish_and_clear();
    Ok(tell(arguments, &packed?)?)
}

fn tell(arguments: &Arguments, packed: &[Packed]) -> Result<()> {
    let samples = packed.iter().map(|shard| shard.samples).sum();
    let bytes = packed.iter().map(|shard| shard.bytes).sum();
    if arguments.json {
        let shards = packed.iter().map(Shard::from).collect();
        return print_json(&Document { dry_run: arguments.dry_run, samples, bytes, shards });
    }
    let size = |bytes| ByteSize(bytes).display().iec();
    for shard in packed {
        let (path, bytes) = (shard.path.display(), size(shard.bytes));
        print(&format!("{path}  {} samples  {bytes}", shard.samples))?;
    }
    let would = if arguments.dry_run { " would be written" } else { "" };
    print(&format!("{} shards, {samples} samples, {}{would}", packed.len(), size(bytes)))
}
