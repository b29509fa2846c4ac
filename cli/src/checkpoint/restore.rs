//! `forebay checkpoint restore`.

use std::path::PathBuf;

use indicatif::ProgressBar;

use super::super::{Done, Launcher, Target, bar_style};
use super::{place, say};

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
    let style = bar_style("{binary_bytes}/{binary_total_bytes}");
    let bar = ProgressBar::no_length().with_style(style);
    place.restore(folder, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    say("restored")
}
