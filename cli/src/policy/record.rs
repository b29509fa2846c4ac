//! `forebay policy record`.

use std::path::PathBuf;
use std::time::Duration;

use forebay_client::Deadline;
use forebay_error::{Doing, Error};
use forebay_policy::simulate::Trace;

use crate::{Done, Failure, Target, print};

/// A daemon makes the orders of its jobs for it: seconds, for millions of shards.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);

/// Write down what the jobs of a running daemon will read from now on.
///
/// The trace has the shards and their sizes, what is cached now, how fast each job reads and the
/// links bring, each job's reading for some rounds through its data, and what the daemon decided
/// lately. `forebay policy simulate` plays it through every policy, with more cache or a faster
/// link if you edit `capacity` and `bandwidth`; with `--against` a trace that was recorded later it
/// tells how far the daemon decided as the simulation.
///
/// Only jobs are in it that are foreseen: whose sample counts are known, from a manifest or an
/// epoch before, and whose data sets are kept by `clairvoyant`. `forebay status` counts them.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// File to write, as JSON; `-` prints it.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Number of rounds in which each job reads its shards (1 to 100).
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.target.admin_if_running()?;
    let path = format!("/api/v1/trace?rounds={}", arguments.rounds);
    let trace = admin.get(&path, &Deadline::after(RECORD_TIMEOUT));
    let trace: Trace = trace.map_err(Failure::of_request)?;
    let json = serde_json::to_string(&trace).expect("numbers and strings always encode");
    if arguments.file.as_os_str() == "-" {
        return Ok(print(&json)?);
    }
    let at = |error: Error| error.at("file", arguments.file.display());
    std::fs::write(&arguments.file, json).doing("write the trace").map_err(at)?;
    print(&format!(
        "{}: {} shards, {} jobs; see `forebay policy simulate {}`",
        arguments.file.display(),
        trace.shards.iter().filter(|bytes| **bytes > 0).count(),
        trace.jobs.len(),
        arguments.file.display(),
    ))?;
    Ok(())
}
