//! `forebay reader`: what a daemon starts to read files. Nobody types it.

use std::ffi::OsString;

use forebay_wire::files::Asking;

use super::{Done, Launcher};

/// Name on the command line.
const VERB: &str = "reader";

/// Read files for a daemon, which starts this with a socket for standard input.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

/// The command that starts one; `launcher` runs this very program.
pub(super) fn command(launcher: &Launcher) -> Vec<OsString> {
    launcher.iter().cloned().chain([OsString::from(VERB)]).collect()
}

pub(super) fn run(_: &Arguments) -> Done {
    Ok(forebay_source::serve(|client| {
        let mut asking = Asking::new(client)?;
        Ok(Box::new(move |path| asking.open(path)))
    })?)
}
