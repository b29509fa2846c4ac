//! `forebay config`.
//!
//! One rule: what is shown may be shown to anybody.

use std::path::PathBuf;

use forebay_client::NODE_SOCKET;
use forebay_config as config;
use forebay_config::Config;
use forebay_config::embedded;

use super::daemon::CONFIG;
use super::{Done, print, print_json};

/// Look at the node daemon's configuration.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Read a configuration as a daemon would, and print it with every default.
    ///
    /// What URLs may hide (user names, passwords, queries) is left out. It says what a daemon started
    /// now would go by; `forebay policy diff` tells how one that runs differs from that.
    Show(Show),
    /// Print the JSON Schema of a configuration file, by which editors complete and check it.
    Schema,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Show(arguments) => show(arguments),
        Verb::Schema => Ok(print_json(&config::schema())?),
    }
}

fn show(arguments: &Show) -> Done {
    let config = Config::read(&arguments.config)?;
    let document = config::document(&config, NODE_SOCKET, embedded::memory() as u64);
    print_document(&document, arguments.json)
}

/// Prints a configuration, or a part of one.
pub(super) fn print_document(document: &serde_json::Value, json: bool) -> Done {
    match json {
        true => Ok(print_json(document)?),
        false => Ok(print(config::text(document).trim_end())?),
    }
}
