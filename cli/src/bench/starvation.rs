//! `forebay bench starvation`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use forebay_bench::interrupt;
use forebay_bench::starvation::{
    ACCELERATORS_MAX, CUSTOM, Configuration, Counted, Node, PROFILES, Profile, Report, Search,
    TARGET, page,
};
use forebay_client::Trace;
use forebay_decode::{Crop, DType, FieldKind, FieldSpec, ImageSpec, Layout};
use forebay_error::{Doing, Error, ErrorKind, Result};
use indicatif::ProgressBar;

use super::loading::{Loading, PREFETCH, THREADS_MAX, bar, cores};
use super::rivals::Rivals;
use super::saves::Saving;
use super::trace::finish;
use super::writable;
use crate::{Done, Failure, Launcher, Output, print};

/// Name of the job for admins.
const JOB: &str = "bench starvation";

/// ImageNet's channel means and deviations, as every ResNet-50 recipe uses them.
const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

/// The longest step: beyond an hour the digits of its figures do not matter.
const STEP_MAX: f64 = 3600.0;

/// The shortest trial of a search: shorter ones measure starts and ends.
const TRIAL_MIN: f64 = 1.0;

/// Measure how long accelerators would starve, and why.
///
/// Emulated accelerators take batches from the real loader and compute for a nominal time; the
/// report says what share of the time they worked (AU_ideal) and what they waited for otherwise.
/// The first step of an epoch is not counted: pipelines fill then. A daemon is started if none
/// runs.
///
/// Examples:
///   forebay bench starvation 's3://bucket/{000..099}.tar' --profile resnet50-h100
///   forebay bench starvation /data/*.tar --raw --find-most         how many can this node feed?
///   FOREBAY_CACHE=$(mktemp -d) forebay bench starvation /data/*.tar --daemon embedded \
///     --differential                                               a cold and a warm cache
///   forebay bench starvation /data/*.tar --rivals all --find-most  the same work, other loaders
///   forebay bench starvation /data/*.tar --model resnet50          a real model on this node's GPU
///   forebay bench starvation /data/*.tar --raw --checkpoint-every 100 --checkpoint-to s3://b/try
///   forebay bench starvation /data/*.tar --html report.html        a page with pictures
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    loading: Loading,
    /// The workload: one of MLPerf Storage's, or `custom`, which needs --batch-size and --step.
    #[arg(long, default_value = "resnet50-h100", value_parser = profiles())]
    profile: String,
    /// Samples per step, instead of the profile's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(required_if_eq("profile", CUSTOM))]
    batch_size: Option<u32>,
    /// Seconds one step computes (0 to 3600), instead of the profile's.
    #[arg(long, value_name = "SECONDS", value_parser = step, required_if_eq("profile", CUSTOM))]
    step: Option<Duration>,
    /// Accelerators, each a rank of the job with a loader of its own. Several need --manifest.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(ACCELERATORS_MAX)))]
    accelerators: u32,
    /// Epochs: the first is cold if the cache was empty.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Steps per epoch, at most, the first included. With --manifest, shards behind them are left
    /// out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    steps: Option<u64>,
    /// Tell fetch stalls from prep stalls by the difference between synthetic, cached and cold
    /// epochs. The cache must be empty at first and have room for all shards.
    #[arg(long)]
    differential: bool,
    /// Find how many such accelerators this node feeds, after the epochs; with --rivals, by each
    /// loader.
    #[arg(long)]
    find_most: bool,
    /// The AU_ideal, 0.01 to 0.99, at which an accelerator counts as fed, for --find-most.
    #[arg(long, value_name = "SHARE", default_value_t = TARGET, value_parser = share)]
    #[arg(requires = "find_most")]
    target_au: f64,
    /// Seconds of each trial of --find-most, 1 to 3600; those that confirm the result are three
    /// times as long. With --rivals, --seconds counts instead.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = trial)]
    #[arg(requires = "find_most")]
    trial: f64,
    /// Deliver bytes instead of decoding images.
    #[arg(long)]
    raw: bool,
    /// Decode threads of each accelerator [default: one per core, divided among the accelerators].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Option<u32>,
    /// Write a page with figures and pictures, all in one file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write what each batch went through, from its origin to its tensor, for
    /// <https://ui.perfetto.dev>. Of several accelerators each has a file of its own.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    saving: Saving,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    rivals: Rivals,
}

fn profiles() -> PossibleValuesParser {
    PROFILES.map(|profile| profile.name).into_iter().chain([CUSTOM]).into()
}

fn step(text: &str) -> Result<Duration, String> {
    within(text, 0.0..=STEP_MAX, "a step takes 0 to 3600 seconds").map(Duration::from_secs_f64)
}

fn share(text: &str) -> Result<f64, String> {
    within(text, 0.01..=0.99, "a share lies between 0.01 and 0.99")
}

fn trial(text: &str) -> Result<f64, String> {
    within(text, TRIAL_MIN..=STEP_MAX, "a trial takes 1 to 3600 seconds")
}

fn within(text: &str, range: std::ops::RangeInclusive<f64>, what: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if range.contains(&number) { Ok(number) } else { Err(what.to_owned()) }
}

/// Request, with the profile's defaults filled in.
pub(super) struct Asked {
    name: &'static str,
    pub(super) batch_size: u32,
    pub(super) step: Duration,
    pub(super) decode: bool,
    threads: usize,
    pub(super) find_most: bool,
    pub(super) target_au: f64,
}

impl Asked {
    fn of(arguments: &Arguments) -> Done<Self> {
        let profile = Profile::named(&arguments.profile);
        let batch_size = arguments.batch_size.or(profile.map(|profile| profile.batch_size));
        let nominal = profile.map(|profile| Duration::from_secs_f64(profile.step_seconds));
        let step = arguments.step.or(nominal);
        let (Some(batch_size), Some(step)) = (batch_size, step) else {
            return Err(usage("a custom workload needs --batch-size and --step"));
        };
        if arguments.accelerators > 1 && arguments.loading.manifest.is_none() {
            return Err(usage(
                "several accelerators are ranks of one job and need a manifest: forebay index URLS -o m.json, --manifest m.json",
            ));
        }
        if arguments.find_most && step.is_zero() {
            return Err(usage("accelerators whose steps take no time are never fed"));
        }
        if arguments.find_most && arguments.steps.is_some() && arguments.loading.manifest.is_none()
        {
            return Err(usage(
                "a search needs the shards' sample counts: --manifest beside --steps, or whole epochs",
            ));
        }
        if arguments.differential && arguments.epochs < 2 {
            return Err(usage(
                "--differential compares a cold epoch with a warm one: give --epochs 2 or more",
            ));
        }
        let Loading { window, prefetch, manifest, .. } = &arguments.loading;
        arguments.rivals.refuse(&[
            ("--threads", arguments.threads.is_some()),
            ("--prefetch", *prefetch != PREFETCH),
            ("--window", *window > 0),
            ("--accelerators", arguments.accelerators > 1),
            ("--steps", arguments.steps.is_some()),
            ("--manifest", manifest.is_some()),
            ("--checkpoint-every", arguments.saving.asked().is_some()),
        ])?;
        let share = (cores() / arguments.accelerators as usize).max(1);
        Ok(Self {
            name: profile.map_or(CUSTOM, |profile| profile.name),
            batch_size,
            step,
            decode: !arguments.raw && profile.is_none_or(|profile| profile.images),
            threads: arguments.threads.map_or(share, |threads| threads as usize),
            find_most: arguments.find_most,
            target_au: arguments.target_au,
        })
    }
}

pub(super) fn usage(what: &str) -> Failure {
    Failure::Usage(
        Error::new(ErrorKind::Invalid, what).advise("see forebay bench starvation --help"),
    )
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let asked = Asked::of(arguments)?;
    arguments.html.iter().chain(&arguments.trace).try_for_each(|file| writable(file))?;
    let named = arguments.loading.shards(launcher)?;
    arguments.rivals.check(&named.urls, &asked)?;
    let mut job = arguments.loading.job_of(JOB, named, launcher)?;
    if let Some(steps) = arguments.steps {
        let together = u64::from(asked.batch_size) * u64::from(arguments.accelerators);
        job.end_after(steps.saturating_mul(together));
    }
    let configuration = Configuration {
        urls: arguments.loading.named().to_vec(),
        shards: job.urls().len(),
        left_out: job.left_out().clone(),
        accelerators: arguments.accelerators,
        decode: asked.decode,
        threads: asked.threads,
        window: arguments.loading.window,
        prefetch: arguments.loading.prefetch,
        steps: arguments.steps,
        epochs: arguments.epochs,
        differential: arguments.differential,
        traced: arguments.trace.is_some(),
        search: asked
            .find_most
            .then_some(Search { target_au: arguments.target_au, trial_seconds: arguments.trial }),
        contest: arguments.rivals.asked(),
        saves: arguments.saving.asked(),
    };
    let workload = (asked.name, asked.batch_size, asked.step.as_secs_f64());
    let mut report = Report::of(workload, configuration)?;
    // From here on there is something to tell, and to remove.
    interrupt::watch()?;
    let bar = bar();
    let work = (asked.decode, asked.threads, asked.batch_size);
    let mut configs = job.ranks(arguments.accelerators, work);
    for config in &mut configs {
        config.trace =
            arguments.trace.as_deref().map(|path| Trace::create(path, JOB)).transpose()?;
    }
    let traces: Vec<_> = configs.iter().filter_map(|config| config.trace.clone()).collect();
    let saves = arguments.saving.saves((&arguments.loading.target, launcher), JOB)?;
    let mut node = Node::open(configs, asked.step, &bar)?.saving(saves);
    let mut ended = (0..arguments.epochs).try_for_each(|epoch| {
        bar.set_message(format!("epoch {epoch}"));
        report.epochs.push(node.epoch(Counted::all_but_the_first(arguments.steps))?);
        Ok(())
    });
    if ended.is_ok() {
        // A cache that was not cold takes nothing away of what is asked for beside that.
        let apart = tell_apart(arguments, &node, &mut report, &bar);
        let searched = search(arguments, node, &mut report, &bar);
        let contested = searched
            .and_then(|()| contest(arguments, &asked, job.urls(), &mut report, (launcher, &bar)));
        ended = apart.and(contested);
    } else {
        drop(node);
    }
    // The loaders that wrote them have ended.
    ended = ended.and(traces.iter().try_for_each(finish).map_err(Failure::from));
    bar.finish_and_clear();
    if report.epochs.is_empty() {
        return ended;
    }
    // Figures are reported even if a later step failed.
    let told = tell(arguments, &report);
    ended.and(told)
}

/// Tells stalls apart by the difference between epochs, if that is asked for.
fn tell_apart(
    arguments: &Arguments,
    node: &Node<'_>,
    report: &mut Report,
    bar: &ProgressBar,
) -> Done {
    if let (true, Some((first, rest))) = (arguments.differential, report.epochs.split_first()) {
        bar.set_message("synthetic");
        report.differential = Some(node.differential(first, rest.last().unwrap_or(first))?);
    }
    Ok(())
}

/// Finds how many accelerators are fed, if that is asked for, and ends the loaders.
fn search(arguments: &Arguments, node: Node<'_>, report: &mut Report, bar: &ProgressBar) -> Done {
    if !arguments.find_most {
        return Ok(());
    }
    bar.set_message("how many accelerators?");
    let (held, ended) = node.search(arguments.target_au, arguments.trial);
    report.held = held;
    Ok(ended?)
}

/// Plays other loaders, if any are asked.
fn contest(
    arguments: &Arguments,
    asked: &Asked,
    urls: &[String],
    report: &mut Report,
    (launcher, bar): (&Launcher, &ProgressBar),
) -> Done {
    let Some(mut contest) = arguments.rivals.play(asked, urls, launcher, bar)? else {
        return Ok(());
    };
    let checked = arguments.rivals.check_played(&mut contest);
    report.contest = Some(contest.document);
    checked
}

/// Prints and writes a report: what may fail comes last.
fn tell(arguments: &Arguments, report: &Report) -> Done {
    let text = if arguments.output.json { report.to_json()? } else { report.to_string() };
    print(text.trim_end())?;
    if let Some(file) = &arguments.html {
        std::fs::write(file, page::of(report)?)
            .doing("write the page")
            .map_err(|error| error.at("file", file.display()))?;
    }
    Ok(())
}

/// Returns the fields of ResNet-50 training for a JPEG and its label, the same as the contest asks
/// of every loader.
pub(crate) fn image_fields() -> Vec<FieldSpec> {
    let image = ImageSpec {
        size: Some((224, 224)),
        crop: Crop::Random { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) },
        flip: true,
        dtype: DType::Float32,
        layout: Layout::Nchw,
        mean: Some(IMAGENET.0),
        std: Some(IMAGENET.1),
        ..ImageSpec::default()
    };
    vec![
        FieldSpec::new("image", "jpg;jpeg;png", FieldKind::Image(image)),
        FieldSpec::new("label", "cls", FieldKind::Int { path: None }),
    ]
}
