//! `forebay config show`.
//!
//! Every default is shown, and no secret.

use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_client::NODE_SOCKET;
use forebay_config::{Config, embedded};
use serde_json::Value;

use super::apply;
use crate::daemon::CONFIG;
use crate::{Done, Query, Target, print, print_json};

/// Print a configuration with every default.
///
/// User names, passwords and queries of URLs are masked. If FILE is the running daemon's own file
/// and differs from the configuration in force, a line on standard error says so.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration file.
    #[arg(value_name = "FILE", default_value = CONFIG)]
    file: PathBuf,
    /// Print the rules in force in the running daemon: tiers, sources, data sets, tenants, sockets.
    #[arg(long, conflicts_with = "file")]
    running: bool,
    #[command(flatten)]
    query: Query,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    if arguments.running {
        let applied = apply::ask(&arguments.query.target, None, true)?;
        return print_document(&applied.running, arguments.query.output.json);
    }
    let config = Config::read(&arguments.file)?;
    let memory = embedded::memory() as u64;
    let document = forebay_config::document(&config, NODE_SOCKET, memory);
    print_document(&document, arguments.query.output.json)?;
    if let Some(note) = drift(&arguments.query.target, &arguments.file) {
        // Standard error may be closed; then nobody reads the note.
        let _ = writeln!(std::io::stderr(), "forebay: {note}");
    }
    Ok(())
}

/// Prints a configuration, or a part of one.
fn print_document(document: &Value, json: bool) -> Done {
    match json {
        true => Ok(print_json(document)?),
        false => Ok(print(forebay_config::text(document).trim_end())?),
    }
}

/// Describes the drift of the running daemon from this file, if the file is its own. Callers who
/// may not ask the daemon get no note.
fn drift(target: &Target, file: &Path) -> Option<String> {
    let applied = apply::ask(target, None, true).ok()?;
    let is_own = std::path::absolute(file).is_ok_and(|file| file == applied.own_file);
    let changes = applied.changes.len();
    (is_own && changes > 0).then(|| {
        let changes =
            if changes == 1 { "1 change".to_owned() } else { format!("{changes} changes") };
        format!(
            "the running daemon differs from this file in {changes}: `forebay config diff` shows \
             them, `forebay config apply` puts them in force"
        )
    })
}
