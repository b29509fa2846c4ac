//! `forebay policy diff`.
//!
//! One rule: both files must be right; what differs only in how it is written is no difference.

use std::path::PathBuf;

use forebay_client::NODE_SOCKET;
use serde::Serialize;

use crate::cli::{Done, print, print_json};
use crate::config::{self, Change, Config};
use crate::embedded;

/// Tell what changes between two configurations, in words.
///
/// What is in effect is compared, defaults included. Exit code 0 whether they differ or not.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Arguments {
    /// The configuration as it is.
    old: PathBuf,
    /// The configuration as it is to be; the two may be written in different languages.
    new: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    changes: Vec<Change>,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (old, new) = (Config::read(&arguments.old)?, Config::read(&arguments.new)?);
    let changes = config::diff(&old, &new, NODE_SOCKET, embedded::memory() as u64);
    if arguments.json {
        return Ok(print_json(&Document { changes })?);
    }
    if changes.is_empty() {
        return Ok(print("nothing changes")?);
    }
    Ok(print(&changes.iter().map(Change::to_string).collect::<Vec<_>>().join("\n"))?)
}
