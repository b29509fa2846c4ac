//! `forebay checkpoint restore`.

use std::path::PathBuf;

use super::super::{Done, Launcher, Target};
use super::{place, say, with_bar};

/// Copy all files of a published checkpoint to a new folder.
///
/// The folder appears once all files are in it, each compared with its checksums. Files that this
/// node saved come from its disk, all others from the store.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// URL of the checkpoint.
    url: String,
    /// Local folder, which does not exist or is empty.
    folder: PathBuf,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let Arguments { url, folder, target } = arguments;
    let place = place(target, url, launcher)?;
    with_bar(|progress| place.restore(folder, progress))?;
    say("restored")
}
