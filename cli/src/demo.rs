//! `forebay demo`: the path from an object store to an accelerator, on one machine and made-up
//! photos.
//!
//! Rule: whatever it starts or makes is gone when it ends, on failure and Ctrl-C as well.

mod pace;
mod photos;
mod processes;
mod stop;
mod store;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use forebay_error::{Doing, Error, ErrorKind, Result};
use tempfile::TempDir;

use self::pace::{BATCH, Pace};
use self::processes::Program;
use self::stop::Stop;
use super::{Done, Failure, Launcher, Output, print};

/// Shards that are mixed.
const WINDOW: &str = "4";

/// Folder of the photos before they are packed.
const LOOSE: &str = "loose";

/// The fewest photos: the first step of an epoch is not counted, and one is left then.
const PHOTOS_MIN: u64 = 64;

/// The most: beyond it, real data tell more.
const PHOTOS_MAX: u64 = 1_000_000;

/// Show Forebay at work: photos, a store on loopback, one cold and one warm epoch, the report.
///
/// Photos are drawn and packed into shards, which an HTTP server on loopback serves. A daemon with
/// a cache of its own fetches them, and an emulated accelerator takes decoded batches: first from
/// an empty cache, then from a warm one. It takes half of the photos that this machine decodes in a
/// second, which is measured before, and 640 at most. The report says how long it waited, and for
/// what.
///
/// Daemon, server and files are gone when the command ends. The user's own cache is not touched.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Photos to make, of about 85 kB each (64 to 1000000).
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u64).range(PHOTOS_MIN..=PHOTOS_MAX))]
    photos: u64,
    /// The folder in which a temporary one is made [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    within: Option<PathBuf>,
    /// Make the shards in this folder, which must not exist yet, and end.
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    shards_only: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.doing("start threads").map_err(Failure::from)?;
    runtime.block_on(async {
        let stop = Stop::watch()?;
        show(arguments, launcher, stop.clone()).await.map_err(|failure| match stop.code() {
            Some(code) => Failure::Interrupted(failure.into_error(), code),
            None => failure,
        })
    })
}

async fn show(arguments: &Arguments, launcher: &Launcher, mut stop: Stop) -> Done {
    let say = |text: &str| if arguments.output.json { Ok(()) } else { print(text) };
    let folder = folder(arguments)?;
    let packed = folder.path().join("packed");
    let made = make(folder.path(), &packed, arguments.photos, &stop).await?;
    if let Some(wanted) = &arguments.shards_only {
        keep(&packed, wanted)?;
        return Ok(print(&format!(
            "{} photos, {made}, in {}",
            arguments.photos,
            wanted.display()
        ))?);
    }
    let origin = store::serve(&packed).await?;
    let urls = format!("{origin}/train-{{000000..{:06}}}.tar", made.shards - 1);
    say(&format!("{} photos, {made}, at {urls}", arguments.photos))?;
    let pace = pace(folder.path()).await?;
    say(&format!("{pace}\n"))?;
    let cache = folder.path().join("cache");
    let program = Program { launcher, cache: &cache };
    let daemon = program.daemon(&folder.path().join("daemon.log"), &mut stop).await?;
    let ended = program.run(&starvation(&urls, &pace, arguments.output.json), &mut stop).await;
    daemon.end().await;
    well(ended?)?;
    let removed = folder.close().doing("remove the demonstration's files");
    removed.map_err(Failure::from)?;
    Ok(say(NEXT)?)
}

/// Words at the end.
const NEXT: &str = "
Next, in Python: forebay.DataLoader('s3://bucket/train-{000000..000099}.tar', batch_size=256)
On your own shards: forebay bench starvation 's3://bucket/train-{000000..000099}.tar'";

/// Returns a new folder, which is removed when dropped.
fn folder(arguments: &Arguments) -> Result<TempDir> {
    let beside = |path: &PathBuf| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // Where the shards will stay, so that they only need a new name.
    let within = arguments.shards_only.as_ref().map(beside).or_else(|| arguments.within.clone());
    let within = within.unwrap_or_else(std::env::temp_dir);
    let made = tempfile::Builder::new().prefix("forebay-demo-").tempdir_in(&within);
    made.doing("make a temporary folder").map_err(|error| error.at("within", within.display()))
}

/// Makes the photos and their shards.
async fn make(folder: &Path, packed: &Path, count: u64, stop: &Stop) -> Result<photos::Made> {
    let (loose, packed, stop) = (folder.join(LOOSE), packed.to_owned(), stop.clone());
    let making = move || photos::shards((&loose, &packed), count, &|| stop.check());
    let made = tokio::task::spawn_blocking(making).await;
    made.map_err(|_| Error::new(ErrorKind::Closed, "the thread that makes photos panicked"))?
}

/// Chooses the accelerator's step.
async fn pace(folder: &Path) -> Result<Pace> {
    let loose = folder.join(LOOSE);
    let measured = tokio::task::spawn_blocking(move || Pace::measure(&loose)).await;
    measured
        .map_err(|_| Error::new(ErrorKind::Closed, "the thread that decodes photos panicked"))?
}

/// Gives the shards the name that they are wanted by.
fn keep(packed: &Path, wanted: &Path) -> Result<()> {
    let at = |error: Error| error.at("folder", wanted.display());
    if wanted.symlink_metadata().is_ok() {
        return Err(at(Error::new(ErrorKind::Invalid, "the folder exists already")
            .advise("name another one, or remove it")));
    }
    std::fs::rename(packed, wanted).doing("name the folder of the shards").map_err(at)
}

/// Arguments of the benchmark that loads the shards twice.
fn starvation(urls: &str, pace: &Pace, json: bool) -> Vec<OsString> {
    let (batch, step) = (BATCH.to_string(), format!("{:.3}", pace.step.as_secs_f64()));
    let mut arguments = vec!["bench", "starvation", urls, "--profile", "custom"];
    arguments.extend(["--batch-size", &batch, "--step", &step]);
    arguments.extend(["--window", WINDOW, "--epochs", "2"]);
    arguments.extend(json.then_some("--json"));
    arguments.into_iter().map(OsString::from).collect()
}

/// Fails if the benchmark did, which has said why.
fn well(ended: ExitStatus) -> Result<()> {
    if ended.success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Closed, "the epochs failed, for the reason above")
        .at("status", ended)
        .advise("run forebay doctor, which checks this machine"))
}
