//! `forebay checkpoint push`.

use std::path::PathBuf;

use forebay_client::{CheckpointPlace, Level, Push};
use forebay_error::{Error, ErrorKind};

use super::super::{Done, Failure, Launcher, Target};
use super::{place, say, with_bar};

/// Save all files of a folder, and publish them as one checkpoint.
///
/// The command returns once they are durable on this node; the daemon uploads them. With --wait it
/// returns once the checkpoint is visible. With --resume it saves nothing, and gives the daemon the
/// credentials of this environment for uploads that wait for some: a restart of the daemon forgets
/// those of jobs.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// Local folder, and URL of the checkpoint; with --resume the URL alone.
    #[arg(required = true, num_args = 1..=2, value_names = ["FOLDER", "URL"])]
    places: Vec<String>,
    /// Go on with the uploads of a checkpoint, with the credentials of this environment.
    #[arg(long, conflicts_with_all = ["step", "overwrite"])]
    resume: bool,
    /// Step of the training, for `keep` of the node's rule.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Replace a checkpoint that is published there already.
    #[arg(long)]
    overwrite: bool,
    /// Wait until it is visible.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let Arguments { places, resume, step, overwrite, wait, target } = arguments;
    match (&places[..], resume) {
        ([url], true) => {
            let place = place(target, url, launcher)?;
            let text = match place.resume()? {
                0 => "nothing of it waits on this node".to_owned(),
                1 => "goes on with 1 file; `forebay checkpoint ls` shows the upload".to_owned(),
                files => {
                    format!("goes on with {files} files; `forebay checkpoint ls` shows the upload")
                }
            };
            finish(place, &text, *wait)
        }
        ([folder, url], false) => {
            let place = place(target, url, launcher)?;
            let folder = PathBuf::from(folder);
            let (step, overwrite) = (*step, *overwrite);
            let push = Push { folder: &folder, place: &place, step, overwrite, job: "push" };
            with_bar(|progress| push.run(progress))?;
            let text = "durable on this node; `forebay checkpoint ls` shows the upload";
            finish(place, text, *wait)
        }
        _ => {
            let what = "push needs a folder and a URL; with --resume a URL alone";
            Err(Failure::Usage(Error::new(ErrorKind::Invalid, what)))
        }
    }
}

/// Prints the end, or waits for the publication first.
fn finish(place: CheckpointPlace, text: &str, wait: bool) -> Done {
    if !wait {
        return say(text);
    }
    let waiting = CheckpointPlace { timeout: forebay_client::TIMEOUT_MAX, ..place };
    waiting.wait(Level::Published)?;
    say("published")
}
