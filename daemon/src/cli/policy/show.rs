//! `forebay policy show`.
//!
//! One rule: it shows what decides about shards, every default included, and no secret.

use std::path::PathBuf;

use forebay_client::NODE_SOCKET;

use crate::cli::daemon::CONFIG;
use crate::cli::{Done, print, print_json};
use crate::config::{self, Config};
use crate::embedded;

/// Print a configuration's tiers, sources, data sets and tenants with every default.
///
/// `forebay config show` prints the daemon's own settings, too.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Arguments {
    /// The configuration file.
    #[arg(value_name = "FILE", default_value = CONFIG)]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let config = Config::read(&arguments.file)?;
    let document = config::document(&config, NODE_SOCKET, embedded::memory() as u64);
    let policy = config::policy(&document);
    if arguments.json {
        return Ok(print_json(&policy)?);
    }
    Ok(print(config::text(&policy).trim_end())?)
}
