//! `forebay man`: the manual, for packages.
//!
//! A page says what `--help` of its verb says, and there is one for each that help lists.

use std::path::PathBuf;

use clap::CommandFactory;
use forebay_error::Doing;

use super::Done;

/// Write the manual's pages, one for each verb.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The folder, which is made if there is none.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let directory = &arguments.directory;
    let at = |error: forebay_error::Error| error.at("directory", directory.display());
    std::fs::create_dir_all(directory).doing("make the manual's folder").map_err(at)?;
    // A page about `help` would say what every other one does.
    let command = super::Arguments::command().disable_help_subcommand(true);
    let written = clap_mangen::generate_to(command, directory);
    Ok(written.doing("write the manual").map_err(at)?)
}
