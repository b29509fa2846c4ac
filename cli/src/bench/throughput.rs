//! `forebay bench throughput`.

use forebay_bench::interrupt;
use forebay_bench::machine::Machine;
use forebay_bench::throughput::{Case, Report, Rounds};
use forebay_error::{Error, ErrorKind};

use super::loading::{self, Loading, THREADS_MAX};
use super::tell;
use crate::{Done, Failure, Launcher, Output};

/// The most jobs at once: more than a node has trainers.
const JOBS_MAX: i64 = 256;

/// The most cases of one run: whoever lists more made a mistake.
const CASES_MAX: usize = 1000;

/// Measure how much the loader brings if nobody computes.
///
/// Jobs take whole epochs from the real loader as fast as they come. Of each case (a combination of
/// what is listed) an epoch that is not timed brings the shards here, unless --cold is given; then
/// as many are timed as --rounds says, and the medians of samples, bytes and CPU time are told, and
/// how far rounds differ. CPU is that of trainers and daemon together. A daemon is started if none
/// runs.
///
/// Examples:
///   forebay bench throughput 's3://bucket/{000..099}.tar'            bytes, one job
///   forebay bench throughput /data/*.tar --mode decoded --threads 1,2,4,8
///   forebay bench throughput /data/*.tar --jobs 1,2,4,8 --batch-size 64,256
///   FOREBAY_CACHE=$(mktemp -d) forebay bench throughput /data/*.tar --daemon embedded --cold
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    loading: Loading,
    /// Output: bytes, or images and labels as ResNet-50's training needs them.
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_value = "raw")]
    mode: Vec<Mode>,
    /// Decode threads of each job [default: one per core].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Vec<u32>,
    /// Samples of a batch.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Vec<u32>,
    /// Jobs that read the same shards at once.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    jobs: Vec<u32>,
    /// Epochs of each case that are timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Batches of an epoch, at most. With --manifest, shards behind them are left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Time a cold epoch before each warm one. The cache gives up its copies of these shards for
    /// that.
    #[arg(long)]
    cold: bool,
    #[command(flatten)]
    output: Output,
}

/// Output of the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Every field's bytes.
    Raw,
    /// Images and labels.
    Decoded,
}

impl Arguments {
    fn cases(&self) -> Done<Vec<Case>> {
        let threads = match self.threads.as_slice() {
            [] => vec![loading::cores()],
            listed => listed.iter().map(|threads| *threads as usize).collect(),
        };
        let count = [self.mode.len(), threads.len(), self.batch_size.len(), self.jobs.len()];
        // Arguments are as short as a command line.
        if count.into_iter().product::<usize>() > CASES_MAX {
            let many = Error::new(ErrorKind::Invalid, "the lists make too many cases");
            return Err(Failure::Usage(
                many.at("at_most", CASES_MAX)
                    .advise("list fewer values in --mode, --threads, --batch-size or --jobs"),
            ));
        }
        let mut cases = Vec::new();
        for mode in &self.mode {
            for &threads in &threads {
                for &batch_size in &self.batch_size {
                    let decoded = *mode == Mode::Decoded;
                    let case = |&jobs| Case { decoded, threads, batch_size, jobs };
                    cases.extend(self.jobs.iter().map(case));
                }
            }
        }
        Ok(cases)
    }
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let cases = arguments.cases()?;
    let mut job = arguments.loading.job("bench throughput", launcher)?;
    if let Some(batches) = arguments.batches {
        let largest = cases.iter().map(|case| u64::from(case.batch_size)).max().unwrap_or_default();
        job.end_after(batches.saturating_mul(largest));
    }
    let how = Rounds { rounds: arguments.rounds, cold: arguments.cold, batches: arguments.batches };
    let config = |case: &Case| job.config(case.decoded, case.threads, case.batch_size);
    interrupt::watch()?;
    let bar = loading::bar();
    let mut report = Report { machine: Machine::this()?, cases: Vec::new() };
    let ended = report.play(&cases, how, config, &bar);
    bar.finish_and_clear();
    if !report.cases.is_empty() {
        tell(&report, job.left_out(), arguments.output.json)?;
    }
    Ok(ended?)
}
