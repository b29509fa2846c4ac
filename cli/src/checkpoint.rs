//! `forebay checkpoint`.

mod push;
mod remove;
mod restore;
mod show;
mod size;

use std::time::Duration;

use bytesize::ByteSize;
use forebay_checkpoints::{CheckpointReport, CheckpointsReport};
use forebay_client::{CheckpointPlace, Level, Watch};
use forebay_error::{Result, printable};
use forebay_source::Options;
use indicatif::ProgressBar;

use super::{Done, Launcher, Query, Target, bar_style, print};

/// Time for one answer: a block takes milliseconds, and the retries of a slow store a minute.
const ANSWER: Duration = Duration::from_secs(120);

/// Show checkpoints, wait for one, save a folder as one, restore or remove one.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the checkpoints that files of this node belong to: how far each is, and what holds it.
    Ls(Query),
    Show(show::Arguments),
    /// Wait until a checkpoint is durable here, uploaded, or visible as a whole.
    ///
    /// It also gives the daemon the credentials of this environment, for uploads that wait for
    /// some: a restart of the daemon forgets those of jobs.
    Wait(Wait),
    Push(push::Arguments),
    Restore(restore::Arguments),
    #[command(name = "rm")]
    Remove(remove::Arguments),
    Size(size::Arguments),
}

#[derive(Debug, clap::Args)]
pub(super) struct Wait {
    /// The checkpoint's URL.
    url: String,
    /// Level to wait for.
    #[arg(long, value_enum, default_value_t = Reached::Published)]
    level: Reached,
    /// Seconds to wait, by default a day.
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    timeout: u64,
    #[command(flatten)]
    target: Target,
}

/// Level of durability.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Reached {
    /// Durable on this node.
    Staged,
    /// Durable on this node and on another one of its cluster, or in the store.
    Replicated,
    /// All files of this node are in the store.
    Uploaded,
    /// Visible as a whole, on any node.
    Published,
}

pub(super) fn run(verb: &Verb, launcher: &Launcher) -> Done {
    match verb {
        Verb::Ls(query) => {
            let admin = query.target.admin_if_running()?;
            query.show(&admin, "/api/v1/checkpoints", list)
        }
        Verb::Wait(arguments) => wait(arguments, launcher),
        Verb::Show(arguments) => show::run(arguments, launcher),
        Verb::Push(arguments) => push::run(arguments, launcher),
        Verb::Restore(arguments) => restore::run(arguments, launcher),
        Verb::Remove(arguments) => remove::run(arguments, launcher),
        Verb::Size(arguments) => size::run(arguments),
    }
}

fn wait(arguments: &Wait, launcher: &Launcher) -> Done {
    let level = match arguments.level {
        Reached::Staged => Level::Staged,
        Reached::Replicated => Level::Replicated,
        Reached::Uploaded => Level::Uploaded,
        Reached::Published => Level::Published,
    };
    let mut place = place(&arguments.target, &arguments.url, launcher)?;
    place.timeout = Duration::from_secs(arguments.timeout);
    Ok(place.wait(level)?)
}

/// Place of a checkpoint, reached with the credentials of this environment.
pub(super) fn place(target: &Target, url: &str, launcher: &Launcher) -> Done<CheckpointPlace> {
    // A daemon that is not there has an exit code of its own.
    drop(target.connect(launcher)?);
    Ok(CheckpointPlace {
        address: target.address(launcher)?,
        url: url.to_owned(),
        name: String::new(),
        origin: Options::from_env().into_map(),
        timeout: ANSWER,
        watch: Watch::default(),
    })
}

fn list(report: &CheckpointsReport) -> String {
    let CheckpointsReport { staged_bytes, backlog_bytes, oldest_seconds, held_files, .. } = report;
    let checkpoints = &report.checkpoints;
    let bytes = |bytes: &u64| ByteSize(*bytes).display().iec().to_string();
    let kept = match report.kept_bytes {
        0 => String::new(),
        kept => format!("; keeps second copies of {} for other nodes", bytes(&kept)),
    };
    if checkpoints.is_empty() {
        return format!("no checkpoint has files on this node{kept}");
    }
    let oldest = oldest_seconds.map_or(String::new(), |age| format!(", the oldest for {age} s"));
    let held = match held_files {
        0 => String::new(),
        1 => "; 1 file needs help".to_owned(),
        files => format!("; {files} files need help"),
    };
    let mut lines = vec![format!(
        "{} on the tiers, {} not in the store yet{oldest}{held}{kept}",
        bytes(staged_bytes),
        bytes(backlog_bytes)
    )];
    lines.extend(checkpoints.iter().map(checkpoint));
    lines.join("\n")
}

/// A checkpoint, in a line, and its trouble in another.
fn checkpoint(checkpoint: &CheckpointReport) -> String {
    let CheckpointReport { url, level, files, bytes, uploaded_bytes, job, step, trouble, .. } =
        checkpoint;
    let step = step.map_or(String::new(), |step| format!("  step {step}"));
    let [uploaded, all] =
        [uploaded_bytes, bytes].map(|bytes| ByteSize(*bytes).display().iec().to_string());
    let (url, job) = (printable(url), printable(job));
    let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let line = format!("  {level:10}  {uploaded:>10} of {all:>10}  {files}{step}  {url}  ({job})");
    match trouble {
        Some(trouble) => format!("{line}\n    {}", printable(trouble)),
        None => line,
    }
}

/// Shows the bytes that some work has done, of all.
fn with_bar(work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<()>) -> Result<()> {
    let style = bar_style("{binary_bytes}/{binary_total_bytes}");
    let bar = ProgressBar::no_length().with_style(style);
    work(&mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    Ok(())
}

/// Prints the end of a verb that takes time.
fn say(text: &str) -> Done {
    Ok(print(text)?)
}
