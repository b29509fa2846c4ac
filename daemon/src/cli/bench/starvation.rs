//! `forebay bench starvation`.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use forebay_benches::starvation::{self, PROFILES, Play, Profile, Report};
use forebay_client::{LoaderConfig, SessionConfig, Trace};
use forebay_decode::{Crop, DType, FieldKind, FieldSpec, ImageSpec, Layout};
use forebay_error::Result;
use forebay_shard::{Commands, Manifest};
use forebay_source::Options;
use forebay_wire::message::{Extent, Open, Order, Shuffle, Tail};
use indicatif::{ProgressBar, ProgressStyle};

use super::trace::finish;
use crate::cli::{Done, Launcher, Target, print, print_json, shards};

/// What admins see it as.
const JOB: &str = "bench starvation";

/// ImageNet's channel means and deviations, as every ResNet-50 recipe uses them.
const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

/// The longest step: beyond an hour the digits of its figures do not matter.
const STEP_MAX: f64 = 3600.0;

/// The most decode threads: more than any node has cores.
const THREADS_MAX: i64 = 1024;

/// The most batches kept ready: beyond this the memory for them lacks elsewhere.
const PREFETCH_MAX: i64 = 1024;

/// Measure how long an accelerator would starve, and why.
///
/// An emulated accelerator takes batches from the real loader and computes for a nominal time; the
/// report says what share of the time it worked (AU_ideal) and what it waited for otherwise. The
/// first step of an epoch is not counted: pipelines fill then. A daemon is started if none runs.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs.
    #[arg(required = true)]
    urls: Vec<String>,
    /// The accelerator.
    #[arg(long, default_value = "resnet50-h100", value_parser = profiles())]
    profile: String,
    /// Samples per step, instead of the profile's.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Seconds one step computes, instead of the profile's.
    #[arg(long, value_name = "SECONDS", value_parser = step)]
    step: Option<Duration>,
    /// Epochs: the first is cold if the cache was empty.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Steps per epoch, at most, the first included.
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..))]
    steps: Option<u64>,
    /// Deliver bytes instead of decoding images.
    #[arg(long)]
    raw: bool,
    /// Decode threads [default: one per core].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Option<u32>,
    /// Mix samples exactly over this many shards; 0 keeps the list's order.
    #[arg(long, default_value_t = 0)]
    window: u32,
    /// A manifest written by `forebay index`.
    #[arg(long)]
    manifest: Option<std::path::PathBuf>,
    /// Batches to keep ready.
    #[arg(long, default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PREFETCH_MAX))]
    prefetch: u32,
    /// Write what each batch went through, from its origin to its tensor, for <https://ui.perfetto.dev>.
    #[arg(long, value_name = "FILE")]
    trace: Option<std::path::PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn profiles() -> PossibleValuesParser {
    PROFILES.map(|profile| profile.name).into()
}

fn step(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match (0.0..=STEP_MAX).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("a step takes 0 to {STEP_MAX} seconds")),
    }
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let profile = starvation::profile(&arguments.profile).expect("checked by the parser");
    let batch_size = arguments.batch_size.unwrap_or(profile.batch_size);
    let step = arguments.step.unwrap_or(Duration::from_secs_f64(profile.step_seconds));
    let trace = arguments.trace.as_deref().map(|path| Trace::create(path, JOB)).transpose()?;
    let config = config(arguments, &profile, batch_size, trace.as_ref(), launcher)?;
    // Whether there is a daemon at all is told apart from what the job fails with.
    drop(arguments.target.connect(launcher)?);
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{spinner} {pos} samples  {per_sec}  {elapsed}")
            .expect("a constant, valid template"),
    );
    let play = Play { step, epochs: arguments.epochs, steps: arguments.steps };
    let epochs = starvation::run(config, play, &bar)?;
    bar.finish_and_clear();
    trace.as_ref().map(finish).transpose()?;
    let report = Report {
        release: env!("CARGO_PKG_VERSION"),
        profile: profile.name.to_owned(),
        batch_size,
        step_seconds: step.as_secs_f64(),
        epochs,
    };
    if arguments.json {
        return Ok(print_json(&report)?);
    }
    Ok(print(report.to_string().trim_end())?)
}

fn config(
    arguments: &Arguments,
    profile: &Profile,
    batch_size: u32,
    trace: Option<&Trace>,
    launcher: &Launcher,
) -> Done<LoaderConfig> {
    let urls = shards(&arguments.urls, Commands::Refused, &arguments.target, launcher)?;
    let manifest = arguments.manifest.as_deref().map(Manifest::read).transpose()?;
    let listed = manifest.map(|manifest| manifest.of(&urls)).transpose()?;
    let extent = listed.as_ref().and_then(|listed| listed.bytes.clone());
    let extent = extent.map(|bytes| Extent { bytes, ranks: (0, 1) });
    let counts = listed.map(|listed| listed.counts);
    let shuffle = if arguments.window > 0 { Shuffle::Window } else { Shuffle::None };
    let order = Order {
        shuffle,
        window: arguments.window.max(1),
        seed: 0,
        lanes: None,
        batch_size,
        rank: 0,
        world_size: 1,
        tail: Tail::Drop,
        epoch_samples: None,
    };
    let fields = (profile.images && !arguments.raw).then(image_fields);
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    Ok(LoaderConfig {
        session: SessionConfig {
            address: arguments.target.address(launcher)?,
            open: Open {
                job: JOB.to_owned(),
                urls,
                counts,
                origin: Options::from_env().into_map(),
                order,
                fields: fields.as_ref().map(|fields| FieldSpec::wanted(fields)),
                prefetch: arguments.prefetch,
                // A benchmark of a store that is away is worth nothing.
                patience_ms: 0,
            },
            streams: Vec::new(),
            extent,
            timeout: Duration::from_secs(300),
            allow_pipe: false,
        },
        fields,
        views: Vec::new(),
        threads: arguments.threads.map_or_else(cores, |threads| threads as usize),
        device: None,
        trace: trace.cloned(),
    })
}

/// What ResNet-50 training asks of a JPEG and its label.
fn image_fields() -> Vec<FieldSpec> {
    let image = ImageSpec {
        size: Some((224, 224)),
        crop: Crop::Random { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) },
        flip: true,
        dtype: DType::Float16,
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
