//! `forebay bench latency`.

use forebay_bench::interrupt;
use forebay_bench::latency::{Offer, Report};
use forebay_bench::machine::Machine;

use super::loading::{self, Loading, THREADS_MAX};
use super::tell;
use crate::{Done, Launcher, Output};

/// The highest rate: beyond it a request is due with each microsecond.
const RATE_MAX: f64 = 1e6;

/// The lowest: one request an hour.
const RATE_MIN: f64 = 1.0 / 3600.0;

/// Measure how long batches and single samples take that are asked for at a given rate.
///
/// Requests fall due at times fixed beforehand, and each is timed from when it was due: what a slow
/// one holds up counts, too. Batches are those of an epoch, a few ready ahead; single samples come
/// from anywhere, none of them ready. Two epochs are played first, so that all shards are here and
/// it is known what the loader brings. At last loaders are opened anew, to time their first
/// batches. A daemon is started if none runs.
///
/// Examples:
///   forebay bench latency 's3://bucket/{000..099}.tar'           at half of the loader's own rate
///   forebay bench latency /data/*.tar --rate 50 --batch-size 32  50 batches a second
///   FOREBAY_CACHE=$(mktemp -d) forebay bench latency /data/*.tar --daemon embedded --cold
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    loading: Loading,
    /// Batches that fall due in a second [default: half of what the loader brings].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Single samples that fall due in a second [default: half of what comes one after the other].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    sample_rate: Option<f64>,
    /// Requests of each kind.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    requests: u64,
    /// Samples of a batch.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Decode images and labels as ResNet-50's training wants them, instead of delivering bytes.
    #[arg(long)]
    decoded: bool,
    /// Decode threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Option<u32>,
    /// Loaders that are opened to time their first batch.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Time cold first batches, too. The cache gives up its copies of these shards for that.
    #[arg(long)]
    cold: bool,
    #[command(flatten)]
    output: Output,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match (RATE_MIN..=RATE_MAX).contains(&rate) {
        true => Ok(rate),
        false => {
            Err("a rate lies between one per hour (0.0003) and a million per second".to_owned())
        }
    }
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let job = arguments.loading.job("bench latency", launcher)?;
    let offer = Offer {
        batches_per_second: arguments.rate,
        samples_per_second: arguments.sample_rate,
        requests: arguments.requests,
        rounds: arguments.rounds,
        cold: arguments.cold,
    };
    let threads = arguments.threads.map_or_else(loading::cores, |threads| threads as usize);
    let config = || job.config(arguments.decoded, threads, arguments.batch_size);
    interrupt::watch()?;
    let bar = loading::bar();
    let mut report = Report::on(Machine::this()?, arguments.batch_size);
    let ended = report.measure(&offer, config, &bar);
    bar.finish_and_clear();
    if !report.is_empty() {
        tell(&report, job.left_out(), arguments.output.json)?;
    }
    Ok(ended?)
}
