//! `forebay bench`.

use std::time::Duration;

use forebay_benches::starvation::{self, Profile, Report};
use forebay_client::{LoaderConfig, SessionConfig};
use forebay_decode::{Crop, DType, FieldKind, FieldSpec, ImageSpec, Layout};
use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Manifest;
use forebay_source::Options;
use forebay_wire::message::{Open, Order, Shuffle, Tail};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Reach, print, shards};

/// ImageNet's channel means and deviations, as every ResNet-50 recipe uses them.
const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// An emulated accelerator takes batches from the loader; the report says how long it starved.
    Starvation(Arguments),
}

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Shards: URLs or paths, with braces (`{000..099}`) and globs.
    #[arg(required = true)]
    urls: Vec<String>,
    /// The accelerator: resnet50-h100, resnet50-a100, unet3d-…, cosmoflow-….
    #[arg(long, default_value = "resnet50-h100")]
    profile: String,
    /// Samples per step, instead of the profile's.
    #[arg(long)]
    batch_size: Option<u32>,
    /// Seconds one step computes, instead of the profile's.
    #[arg(long, value_name = "SECONDS")]
    step: Option<f64>,
    /// Epochs: the first is cold if the cache was empty.
    #[arg(long, default_value_t = 2)]
    epochs: u64,
    /// Steps per epoch, at most.
    #[arg(long)]
    steps: Option<u64>,
    /// Deliver bytes instead of decoding images.
    #[arg(long)]
    raw: bool,
    /// Decode threads [default: one per core].
    #[arg(long)]
    threads: Option<usize>,
    /// Mix samples exactly over this many shards; 0 keeps the list's order.
    #[arg(long, default_value_t = 0)]
    window: u32,
    /// A manifest written by `forebay index`.
    #[arg(long)]
    manifest: Option<std::path::PathBuf>,
    /// Batches to keep ready.
    #[arg(long, default_value_t = 4)]
    prefetch: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(verb: &Verb, reach: &Reach) -> Result<()> {
    let Verb::Starvation(arguments) = verb;
    let profile = starvation::profile(&arguments.profile)?;
    let batch_size = arguments.batch_size.unwrap_or(profile.batch_size);
    let step_seconds = arguments.step.unwrap_or(profile.step_seconds);
    if !(step_seconds.is_finite() && step_seconds >= 0.0) {
        return Err(Error::new(ErrorKind::Invalid, "a step takes a positive number of seconds")
            .at("step", step_seconds));
    }
    let config = config(arguments, &profile, batch_size, reach)?;
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{spinner} {pos} samples  {per_sec}  {elapsed}")
            .expect("a constant, valid template"),
    );
    let epochs = starvation::run(config, step_seconds, arguments.epochs, arguments.steps, &bar)?;
    bar.finish_and_clear();
    let report = Report {
        release: env!("CARGO_PKG_VERSION"),
        profile: profile.name.to_owned(),
        batch_size,
        step_seconds,
        epochs,
    };
    if arguments.json {
        print(&serde_json::to_string_pretty(&report).expect("numbers and strings always encode"))
    } else {
        print(report.to_string().trim_end())
    }
}

fn config(
    arguments: &Arguments,
    profile: &Profile,
    batch_size: u32,
    reach: &Reach,
) -> Result<LoaderConfig> {
    let urls = shards(&arguments.urls)?;
    let manifest = arguments.manifest.as_deref().map(Manifest::read).transpose()?;
    let counts = manifest.map(|manifest| manifest.counts_of(&urls)).transpose()?;
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
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(LoaderConfig {
        session: SessionConfig {
            address: reach.address()?,
            open: Open {
                job: "bench starvation".to_owned(),
                urls,
                counts,
                origin: Options::from_env().into_map(),
                order,
                fields: fields.as_ref().map(|fields| FieldSpec::wanted(fields)),
                prefetch: arguments.prefetch,
            },
            timeout: Duration::from_secs(300),
        },
        fields,
        views: Vec::new(),
        threads: arguments.threads.unwrap_or(cores),
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
    };
    vec![
        FieldSpec::new("image", "jpg;jpeg;png", FieldKind::Image(image)),
        FieldSpec::new("label", "cls", FieldKind::Int { path: None }),
    ]
}
