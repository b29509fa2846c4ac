//! `forebay policy simulate`: jobs on a node that is made up, once by every policy.

mod cluster;
mod plot;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::ValueEnum;
use forebay_config::Rate;
use forebay_engine::plan;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_policy::simulate::{Jitter, Order, Reader, Report, Trace, simulate_with};
use forebay_policy::{Evict, Future, Remedy};
use forebay_wire::message::{self, Shuffle};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;

use crate::bench::writable;
use crate::{Done, Failure, Output, bar_style, print, print_json};

/// Shards that are simulated at most: with more, each step would stand for several.
const SHARDS_MAX: u32 = 10_000_000;

/// Samples of a batch, as loaders have them unless told otherwise.
const BATCH: u32 = 256;

/// Play jobs on a node through every policy, and tell how busy their GPUs are; or a cluster.
///
/// Jobs, cache and link are those of a trace, or made up by the options: equal shards that every
/// job reads as its loader would, in an order of its own. Time is that of the simulation, so hours
/// take a second. `clairvoyant` fetches and evicts by what jobs will read; the others fetch eight
/// shards ahead and evict as their names say. One shard comes at a time, as fast as the link
/// brings. Lanes and window keep shards open at once, which takes cache: the last line tells how
/// busy the GPUs are without.
///
/// Examples:
///   forebay policy simulate --data 640GiB --cache 300GiB --bandwidth 4Gbit/s --jobs 2
///   forebay policy simulate --nodes 4 --data 1TiB --cache 300GiB
///   forebay policy record trace.json && forebay policy simulate trace.json --plot policies.svg
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// A trace as JSON: `capacity` (bytes), `bandwidth` (bytes a second), `shards` (bytes of each),
    /// `jobs` (`name`, `shards`, `rate` in bytes a second, `epochs`, `order`, `window`, `seed`,
    /// `joins`), `warm_epochs`, `jitter`; or as `forebay policy record` wrote it. Its jobs, cache
    /// and link are played, so options that make them up are rejected: edit the file instead.
    #[arg(conflicts_with_all = [
        "data", "shard", "cache", "bandwidth", "jobs", "rate", "epochs", "window", "lanes",
        "sample", "one_in", "fixed", "jitter",
    ])]
    trace: Option<PathBuf>,
    /// Bytes of the data set that all jobs read.
    #[arg(long, value_name = "SIZE", default_value = "320GiB")]
    data: ByteSize,
    /// Bytes of a shard.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    shard: ByteSize,
    /// Bytes of the cache; of each node's, on average, with `--nodes`. Unset: half of the data.
    #[arg(long, value_name = "SIZE")]
    cache: Option<ByteSize>,
    /// Bandwidth of the link.
    #[arg(long, value_name = "RATE", default_value = "2Gbit/s")]
    bandwidth: Rate,
    /// Number of jobs that read the data.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    jobs: u16,
    /// Read rate of each job while it does not wait. An H100 that trains a ResNet-50 reads 205
    /// MB/s.
    #[arg(long, value_name = "RATE", default_value = "205MB/s")]
    rate: Rate,
    /// Number of epochs of each job, 3 to 10000, after two that are not counted.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(3..=10_000))]
    epochs: u64,
    /// Whole shards that a job mixes at once, as `window=` of its loader.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// Streams that a job's order consists of, as `lanes=` of its loader. Unset: the loader's
    /// default for as many shards and ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lanes: Option<u32>,
    /// Bytes of a sample. ImageNet's have 115 kB.
    #[arg(long, value_name = "SIZE", default_value = "115kB")]
    sample: ByteSize,
    /// Read one in K shards per epoch (1 = all).
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    one_in: u32,
    /// Read in the same order in every epoch.
    #[arg(long, conflicts_with = "one_in")]
    fixed: bool,
    /// Let steps vary by a third, and fetches threefold.
    #[arg(long)]
    jitter: bool,
    /// The policies to play. Unset: all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<Name>,
    /// Compare what `clairvoyant` decides with what the node did that TRACE was recorded on, as it
    /// stands in a trace that was recorded on it later.
    #[arg(long, value_name = "LATER", requires = "trace")]
    against: Option<PathBuf>,
    /// Draw the result to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    cluster: cluster::Arguments,
    #[command(flatten)]
    output: Output,
}

/// A policy's name on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name(Evict);

impl ValueEnum for Name {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Name; Evict::ALL.len()] = {
            let mut all = [Name(Evict::Clairvoyant); Evict::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = Name(Evict::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    if arguments.cluster.is_given() {
        return cluster::run(arguments);
    }
    arguments.plot.iter().try_for_each(|file| writable(file))?;
    let trace = match &arguments.trace {
        Some(path) => read(path)?,
        None => arguments.made_up().map_err(Failure::Usage)?,
    };
    let plans = match &arguments.trace {
        Some(_) => None,
        None => arguments.plans(&trace).map_err(Failure::Usage)?,
    };
    let futures = |job: usize| match &plans {
        Some(plans) => plans.future(job),
        None => trace.future(job),
    };
    let policies: Vec<Evict> = match arguments.policy.is_empty() {
        true => Evict::ALL.to_vec(),
        false => arguments.policy.iter().map(|name| name.0).collect(),
    };
    let later = arguments.against.as_ref().map(read).transpose()?;
    let bar = ProgressBar::new(policies.len() as u64 + 1);
    bar.set_style(bar_style("{msg:12} {wide_bar} {pos}/{len}"));
    let mut reports = Vec::new();
    for policy in policies {
        bar.set_message(policy.name());
        reports.push((policy, simulate_with(&trace, policy, &futures)?));
        bar.inc(1);
    }
    let agreement = later.map(|later| trace.agreement(&later)).transpose()?;
    bar.set_message("remedies");
    let remedy = trace.remedy_with(&futures)?;
    let mixing = plans.as_ref().map(|plans| plans.mixing(&trace, &reports)).transpose()?.flatten();
    bar.finish_and_clear();
    if let Some(path) = &arguments.plot {
        plot::draw(path, &trace, &reports)?;
    }
    if arguments.output.json {
        let mut document = document(&trace, &reports, remedy);
        document["agreement"] = json!(agreement);
        document["mixing"] = json!(mixing);
        return Ok(print_json(&document)?);
    }
    let mut text = table(&trace, &reports, remedy);
    if let Some(mixing) = mixing {
        let _ = writeln!(text, "{mixing}");
    }
    if let Some(agreement) = agreement {
        let _ = writeln!(text, "\n{agreement}");
    }
    Ok(print(text.trim_end())?)
}

fn read(path: &PathBuf) -> Result<Trace> {
    let text = fs::read_to_string(path)
        .doing("read a trace")
        .map_err(|error| error.at("file", path.display()))?;
    let trace: Trace = serde_json::from_str(&text).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the trace cannot be read: {error}"))
            .at("file", path.display())
            .advise("`forebay policy simulate --help` describes a trace")
    })?;
    trace.check().map_err(|error| error.at("file", path.display()))?;
    Ok(trace)
}

impl Arguments {
    fn made_up(&self) -> Result<Trace> {
        let (shard, shards) = (self.shard.as_u64(), self.shards()?);
        let order = match (self.fixed, self.one_in) {
            (true, _) => Order::Fixed,
            (false, 0 | 1) => Order::Reshuffled,
            (false, one_in) => Order::Drawn { one_in },
        };
        let reader = |number: u16| Reader {
            name: format!("job {}", number + 1),
            shards: (0..shards).collect(),
            rate: self.rate.bytes() as f64,
            order,
            window: 1,
            // As many bytes as whole epochs.
            epochs: self.epochs.saturating_mul(u64::from(self.one_in.max(1))),
            seed: u64::from(number),
            joins: 0.0,
            uses: Vec::new(),
        };
        let trace = Trace {
            capacity: self.capacity(),
            bandwidth: self.bandwidth.bytes() as f64,
            shards: vec![shard; shards as usize],
            jobs: (0..self.jobs).map(reader).collect(),
            warm_epochs: 2 * u64::from(self.one_in.max(1)),
            jitter: match self.jitter {
                true => Jitter { step: 4.0 / 3.0, fetch: 3.0, seed: 1 },
                false => Jitter::default(),
            },
            here: Vec::new(),
            names: Vec::new(),
            at: 0,
            decisions: Vec::new(),
        };
        trace.check()?;
        Ok(trace)
    }

    /// Returns the number of shards.
    fn shards(&self) -> Result<u32> {
        let shards = self.data.as_u64().checked_div(self.shard.as_u64()).unwrap_or(0);
        let shards = u32::try_from(shards).ok().filter(|shards| (2..=SHARDS_MAX).contains(shards));
        shards.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the data must be 2 to 10000000 shards")
                .at("data", self.data)
                .at("shard", self.shard)
                .advise("change --data or --shard")
        })
    }

    fn capacity(&self) -> u64 {
        self.cache.map_or(self.data.as_u64() / 2, |cache| cache.as_u64())
    }

    /// Returns a job's order.
    fn order(&self, batch_size: u32) -> message::Order {
        message::Order {
            shuffle: if self.fixed { Shuffle::None } else { Shuffle::Window },
            window: self.window,
            lanes: self.lanes,
            ..message::Order::of_list(batch_size)
        }
    }
}

/// Returns the lanes that a loader gives such an order.
fn lanes(order: &message::Order, shards: u32) -> Result<u32> {
    let chosen = order.lanes.unwrap_or_else(|| plan::default_lanes(order, shards, true));
    plan::lanes(&message::Order { lanes: Some(chosen), ..order.clone() }, shards, true)
}

/// The orders of jobs that are made up: those of their loaders.
struct Plans {
    order: message::Order,
    lanes: u32,
    counts: Vec<u64>,
    epochs: u64,
    bytes: f64,
}

/// Cost of lanes and window.
#[derive(Debug, Serialize)]
struct Mixing {
    lanes: u32,
    window: u32,
    /// Share of time in which no GPU waits with `clairvoyant`,
    busy_share: f64,
    /// and with one lane and one open shard.
    unmixed_busy_share: f64,
}

impl std::fmt::Display for Mixing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lanes, window, busy_share, unmixed_busy_share } = self;
        write!(
            f,
            "lanes={lanes} and window={window} cost {:.1} points: with lanes=1 and window=1 \
             clairvoyant keeps GPUs {:.1} % busy",
            100.0 * (unmixed_busy_share - busy_share).max(0.0),
            100.0 * unmixed_busy_share,
        )
    }
}

impl Plans {
    /// Plays the jobs with one lane and one open shard; none if they have no more, or
    /// `clairvoyant` was not played.
    fn mixing(&self, trace: &Trace, reports: &[(Evict, Report)]) -> Result<Option<Mixing>> {
        let window = if self.order.shuffle == Shuffle::None { 1 } else { self.order.window };
        let lanes = self.lanes;
        let played = reports.iter().find(|(policy, _)| *policy == Evict::Clairvoyant);
        let Some((policy, report)) = played.filter(|_| lanes > 1 || window > 1) else {
            return Ok(None);
        };
        let unmixed = simulate_with(trace, *policy, &|job| trace.future(job))?;
        let (busy_share, unmixed_busy_share) = (report.busy_share(), unmixed.busy_share());
        Ok(Some(Mixing { lanes, window, busy_share, unmixed_busy_share }))
    }

    fn future(&self, job: usize) -> Box<dyn Future> {
        let order = message::Order { seed: job as u64, ..self.order.clone() };
        let share = plan::Share::new(&order, self.lanes, 0);
        let shards = (0..).take(self.counts.len()).collect();
        let (lanes, epochs, counts) = (self.lanes, self.epochs, self.counts.clone());
        let make = move |number| {
            // As many as there are counts, which are fewer than four billion.
            let shards = u32::try_from(counts.len()).ok().filter(|_| number < epochs)?;
            let counts = Some(counts.clone());
            Some(plan::Epoch::One(plan::Sequence::new(&order, shards, counts, lanes, number)))
        };
        plan::outlook(make, share, shards, |_| Vec::new(), self.bytes)
    }
}

impl Arguments {
    /// The plans of the jobs; none of those that draw from the data, as no loader does.
    fn plans(&self, trace: &Trace) -> Result<Option<Plans>> {
        if self.one_in > 1 {
            return Ok(None);
        }
        let each = self.shard.as_u64().checked_div(self.sample.as_u64()).unwrap_or(0).max(1);
        let order = self.order(BATCH);
        let counts = vec![each; trace.shards.len()];
        plan::check(&order, counts.len(), Some(&counts))?;
        // As many as `u32` holds: checked when they were made up.
        let lanes = lanes(&order, counts.len() as u32)?;
        let bytes = self.shard.as_u64() as f64 / each as f64;
        Ok(Some(Plans { order, lanes, counts, epochs: self.epochs, bytes }))
    }
}

/// Returns a number of things in words.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Returns a summary of the node, for the line before the table.
fn summary(trace: &Trace) -> String {
    let all: u64 = trace.shards.iter().sum();
    let demand: f64 = trace.jobs.iter().map(|job| job.rate).sum();
    format!(
        "{}, {}; cache {} ({:.0} %); link {}; {}, {} together",
        count(trace.shards.len(), "shard"),
        ByteSize(all),
        ByteSize(trace.capacity),
        100.0 * trace.capacity as f64 / all.max(1) as f64,
        rate(trace.bandwidth),
        count(trace.jobs.len(), "job"),
        rate(demand),
    )
}

fn table(trace: &Trace, reports: &[(Evict, Report)], remedy: Option<Remedy>) -> String {
    let mut text = summary(trace);
    let _ = write!(
        text,
        "\n\n{:<12} {:>7} {:>14} {:>10}  GPUs busy\n",
        "policy", "hits", "from origin", ""
    );
    for (policy, report) in reports {
        let busy = report.busy_share();
        let _ = writeln!(
            text,
            "{:<12} {:>5.1} % {:>14} {:>8.1} %  {}",
            policy.name(),
            100.0 * report.hit_ratio,
            ByteSize(report.origin_bytes).to_string(),
            100.0 * busy,
            "#".repeat((busy * 40.0).round() as usize),
        );
    }
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>14} {:>8.1} %  no policy can do better",
        "bound",
        "",
        "",
        100.0 * trace.bound()
    );
    let _ = writeln!(text, "\n{}", advice(remedy));
    text
}

/// Returns the remedy that would keep every job busy, in an administrator's words.
fn advice(remedy: Option<Remedy>) -> String {
    let Some(remedy) = remedy else {
        return "with clairvoyant no job waits".to_owned();
    };
    let cache = remedy.cache.map(|bytes| format!("+{} of cache", ByteSize(bytes)));
    let bandwidth = remedy.bandwidth.map(|bytes| format!("+{} of link", rate(bytes)));
    let all: Vec<_> = cache.into_iter().chain(bandwidth).collect();
    match all.is_empty() {
        true => "jobs wait with clairvoyant, too; neither more cache nor more bandwidth would help"
            .to_owned(),
        false => format!("with clairvoyant and {} no job would wait", all.join(" or ")),
    }
}

/// Bytes a second as links are sold.
fn rate(bytes: f64) -> String {
    let bits = bytes * 8.0;
    if bits < 1e9 {
        format!("{:.0} Mbit/s", bits / 1e6)
    } else {
        format!("{:.1} Gbit/s", bits / 1e9)
    }
}

fn document(
    trace: &Trace,
    reports: &[(Evict, Report)],
    remedy: Option<Remedy>,
) -> serde_json::Value {
    let policies = reports.iter().map(|(policy, report)| {
        let mut one = json!(report);
        one["policy"] = json!(policy.name());
        let busy = report.busy.iter().map(|(job, busy)| json!({"job": job, "share": busy}));
        one["busy"] = busy.collect();
        one["busy_share"] = json!(report.busy_share());
        one
    });
    json!({
        "policies": policies.collect::<Vec<_>>(),
        "bound": trace.bound(),
        "capacity": trace.capacity,
        "bandwidth": trace.bandwidth,
        "shards": trace.shards.len(),
        "lacks": remedy.map(|remedy| json!({"cache_bytes": remedy.cache, "bandwidth": remedy.bandwidth})),
    })
}
