//! `forebay bench scale`.

mod plot;

use std::path::PathBuf;

use forebay_bench::interrupt;
use forebay_bench::machine::Machine;
use forebay_bench::scale::{Limits, Report, Setup};
use forebay_wire::message::LeftOut;
use indicatif::ProgressBar;

use super::{tell, writable};
use crate::{Done, Launcher, Output, bar_style};

/// About a minute on two cores.
const USUAL: Limits =
    Limits { samples: 1_000_000_000, shards: 1_000_000, cached: 100_000, jobs: 64 };

/// Some seconds.
const QUICK: Limits = Limits { samples: 1_000_000, shards: 10_000, cached: 1000, jobs: 8 };

/// Samples of the largest plan that is asked for: a million million, of a thousand million shards.
const SAMPLES_MAX: u64 = 1_000_000_000_000;

/// Shards that a policy is asked about at most: their slots take some GB.
const SHARDS_MAX: u64 = 100_000_000;

/// Shards that are laid into a directory at most: two files each.
const CACHED_MAX: u64 = 10_000_000;

/// The most jobs at once: more than a node has trainers.
const JOBS_MAX: u64 = 256;

/// Measure how Forebay grows with samples, shards and jobs.
///
/// Everything is made up, so no data is needed: plans of up to a thousand million samples, eviction
/// policies that decide about up to a million shards, starts on directories that hold up to a
/// hundred thousand, and up to 64 jobs of one daemon. Of each figure the growth is told, and its
/// exponent: the slope of the line through the upper half of the sizes, both axes logarithmic (0:
/// it does not grow, 1: as the size does). It takes about a minute. The daemon and the cache are
/// its own; no other is touched.
///
/// Examples:
///   forebay bench scale --plot growth.svg
///   forebay bench scale --quick
///   forebay bench scale --max-cached 1000000 --directory /mnt/nvme
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Samples of the largest plan [default: 1000000000; 1000000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=SAMPLES_MAX))]
    max_samples: Option<u64>,
    /// Shards that policies decide about, at most [default: 1000000; 10000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SHARDS_MAX))]
    max_shards: Option<u64>,
    /// Shards in the directory of the largest start [default: 100000; 1000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CACHED_MAX))]
    max_cached: Option<u64>,
    /// Jobs of one daemon, at most [default: 64; 8 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=JOBS_MAX))]
    max_jobs: Option<u64>,
    /// Smaller sizes: some seconds.
    #[arg(long)]
    quick: bool,
    /// Parent of a temporary folder for shards [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Draw the growth to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let usual = if arguments.quick { QUICK } else { USUAL };
    let limits = Limits {
        samples: arguments.max_samples.unwrap_or(usual.samples),
        shards: arguments.max_shards.unwrap_or(usual.shards),
        cached: arguments.max_cached.unwrap_or(usual.cached),
        jobs: arguments.max_jobs.unwrap_or(usual.jobs),
    };
    arguments.plot.iter().try_for_each(|file| writable(file))?;
    let directory = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let machine = Machine::this()?.with_storage(&directory)?;
    let bar = ProgressBar::no_length();
    bar.set_style(bar_style("{msg:34} {wide_bar} {pos}/{len}  {elapsed}"));
    interrupt::watch()?;
    let mut report = Report { machine, growths: Vec::new() };
    let ended = report.measure(limits, Setup { directory: &directory, launcher }, &bar);
    bar.finish_and_clear();
    if report.growths.is_empty() {
        return Ok(ended?);
    }
    tell(&report, &LeftOut::default(), arguments.output.json)?;
    let drawn = arguments.plot.iter().try_for_each(|path| plot::draw(path, &report));
    Ok(ended.and(drawn)?)
}
