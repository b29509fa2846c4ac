//! `forebay credentials`: what a daemon starts to find AWS credentials. Nobody types it.

use std::ffi::OsString;

use super::{Done, Launcher};

/// Name on the command line.
const VERB: &str = "credentials";

/// Find AWS credentials for a daemon, as this process's environment says, and write them to
/// standard output.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

/// The command that starts one; `launcher` runs this very program.
pub(super) fn command(launcher: &Launcher) -> Vec<OsString> {
    launcher.iter().cloned().chain([OsString::from(VERB)]).collect()
}

pub(super) fn run(_: &Arguments) -> Done {
    Ok(forebay_source::lend()?)
}
