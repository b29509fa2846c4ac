//! `forebay checkpoint rm`.

use bytesize::ByteSize;
use forebay_client::Removed;

use super::super::{Change, Done, Launcher};
use super::place;

/// Remove a checkpoint: uploads that are under way on this node, and what is published.
///
/// The checkpoint disappears as a whole before its first file goes. In the store, only what Forebay
/// put there is removed. It needs the right to save there.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Arguments {
    /// URL of the checkpoint, or of a file of its own that this node saved.
    url: String,
    #[command(flatten)]
    change: Change,
}

pub(super) fn run(arguments: &Arguments, launcher: &Launcher) -> Done {
    let Arguments { url, change } = arguments;
    let place = place(&change.target, url, launcher)?;
    let removed = place.remove(change.dry_run)?;
    let what = if change.dry_run { "would be removed" } else { "removed" };
    change.output.print(&removed, |removed| {
        let Removed { local_files, local_bytes, stored_files, stored_bytes } = removed;
        let part = |files: &u64, bytes: &u64, place: &str| {
            let noun = if *files == 1 { "file" } else { "files" };
            format!("{files} {noun} ({}) {place}", ByteSize(*bytes).display().iec())
        };
        let here = part(local_files, local_bytes, "on this node");
        format!("{what}: {here}, {}", part(stored_files, stored_bytes, "in the store"))
    })
}
